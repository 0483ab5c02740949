from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import read_geometry

GREYS = np.arange(30, dtype=np.uint8).reshape(5, 6)


def ref(path: Path, **options: object) -> VolumeRef:
    return VolumeRef(path=str(path), **{"intensity": "arbitrary"} | options)


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        read(ref(path, **options))
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_a_picture_is_a_volume_of_one_slice(tmp_path):
    Image.fromarray(GREYS).save(tmp_path / "a.png")
    volume = read(ref(tmp_path / "a.png"))
    np.testing.assert_array_equal(volume.array, GREYS[None])
    assert volume.spacing_mm_zyx == (1.0, 1.0, 1.0)
    assert read_geometry(ref(tmp_path / "a.png")).shape_zyx == (1, 5, 6)
    given = read(ref(tmp_path / "a.png", spacing_mm_zyx=(1.0, 0.5, 0.25)))
    assert given.spacing_mm_zyx == (1.0, 0.5, 0.25)


def test_16_bits_stay(tmp_path):
    Image.fromarray(GREYS.astype(np.uint16) * 1000).save(tmp_path / "a.png")
    np.testing.assert_array_equal(read(ref(tmp_path / "a.png")).array[0], GREYS.astype(int) * 1000)


def test_colours_become_luminance(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (5, 6, 4), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    # second opinion: matplotlib's reader and the weights of ITU-R 601
    held = matplotlib.image.imread(tmp_path / "a.png")[..., :3] * 255
    np.testing.assert_allclose(read(ref(tmp_path / "a.png")).array[0], held @ [0.299, 0.587, 0.114], atol=1)


@pytest.mark.parametrize("name", ["a.jpg", "a.jpeg", "a.JPG"])
def test_jpeg_is_read(tmp_path, name):
    Image.fromarray(np.full((16, 16), 77, np.uint8)).save(tmp_path / name)
    assert abs(read(ref(tmp_path / name)).array.astype(int) - 77).max() <= 1


def test_a_picture_holds_no_hounsfield_units(tmp_path):
    Image.fromarray(GREYS).save(tmp_path / "a.png")
    assert "a picture holds no Hounsfield units. Set intensity = 'arbitrary'" in refusal(
        tmp_path / "a.png", intensity="hu"
    )


def test_what_is_no_single_picture_is_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    assert "is not a readable picture (" in refusal(tmp_path / "a.png")
    frames = [Image.fromarray(GREYS + number) for number in range(3)]
    frames[0].save(tmp_path / "b.png", save_all=True, append_images=frames[1:])
    assert "holds 3 pictures, expected one" in refusal(tmp_path / "b.png")
    Image.fromarray(GREYS[:1]).save(tmp_path / "c.png")
    assert "is 6 x 1 pixels, expected at least 2 each way" in refusal(tmp_path / "c.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(
        tmp_path / "d.png"
    )
    content = (tmp_path / "d.png").read_bytes()
    (tmp_path / "d.png").write_bytes(content[:2000])
    assert "is not a readable picture (" in refusal(tmp_path / "d.png")


def test_a_mask_of_a_picture_is_a_picture_in_greys(tmp_path):
    Image.fromarray(GREYS).save(tmp_path / "a.png")
    Image.fromarray((GREYS > 20).astype(np.uint8) * 3).save(tmp_path / "m.png")
    volume = read(ref(tmp_path / "a.png"))
    for label in (None, 3):
        mask = read_mask(MaskRef(path=str(tmp_path / "m.png"), label=label), volume)
        np.testing.assert_array_equal(mask[0], GREYS > 20)
    Image.fromarray(GREYS > 20).save(tmp_path / "two.png")
    with Image.open(tmp_path / "two.png") as picture:
        assert picture.mode == "1"
    for label in (None, 1):
        mask = read_mask(MaskRef(path=str(tmp_path / "two.png"), label=label), volume)
        np.testing.assert_array_equal(mask[0], GREYS > 20)
    Image.fromarray(GREYS).convert("P").save(tmp_path / "p.png")
    with pytest.raises(DataError, match=r"p\.png: a mask is a picture in greys, .* got colours \(mode 'P'\)"):
        read_mask(MaskRef(path=str(tmp_path / "p.png")), volume)
    Image.fromarray(GREYS).save(tmp_path / "m.jpg")
    with pytest.raises(DataError, match=r"m\.jpg: a lossy picture keeps no labels"):
        read_mask(MaskRef(path=str(tmp_path / "m.jpg")), volume)
