import os
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import read_geometry

GREYS = np.arange(30, dtype=np.uint8).reshape(5, 6)
LOSSY = "is a JPEG by its content, which keeps no labels. Save it as PNG."


def ref(path: Path, **options: object) -> VolumeRef:
    return VolumeRef(path=str(path), **{"intensity": "arbitrary"} | options)


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


def test_a_picture_holds_no_hounsfield_units(tmp_path, refusal):
    Image.fromarray(GREYS).save(tmp_path / "a.png")
    assert "a picture holds no Hounsfield units. Set intensity = 'arbitrary'" in refusal(
        ref(tmp_path / "a.png", intensity="hu")
    )


def test_what_is_no_single_picture_is_refused(tmp_path, refusal):
    for content in (b"no picture", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\n"):
        (tmp_path / "a.png").write_bytes(content)  # PostScript would start Ghostscript
        assert "is not a readable picture (cannot identify" in refusal(ref(tmp_path / "a.png"))
    frames = [Image.fromarray(GREYS + number) for number in range(3)]
    frames[0].save(tmp_path / "b.png", save_all=True, append_images=frames[1:])
    assert "holds 3 pictures, expected one" in refusal(ref(tmp_path / "b.png"))
    Image.fromarray(GREYS[:1]).save(tmp_path / "c.png")
    assert "is 6 x 1 pixels, expected at least 2 each way" in refusal(ref(tmp_path / "c.png"))
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "d.png")
    os.truncate(tmp_path / "d.png", 2000)
    assert "is not a readable picture (" in refusal(ref(tmp_path / "d.png"))


def test_a_mask_of_a_picture_is_a_picture_in_greys(tmp_path):
    Image.fromarray(GREYS).save(tmp_path / "a.png")
    volume, path = read(ref(tmp_path / "a.png")), str(tmp_path / "m.png")
    for stored, label, mode in (((GREYS > 20).astype(np.uint8) * 3, 3, "L"), (GREYS > 20, 1, "1")):
        Image.fromarray(stored).save(path)
        with Image.open(path) as picture:
            assert picture.mode == mode
        for picked in (None, label):
            np.testing.assert_array_equal(read_mask(MaskRef(path=path, label=picked), volume)[0], GREYS > 20)
    for mode, kind, said in (
        ("P", "PNG", r"a mask is .* in greys, .* got colours \(mode 'P'\)"),
        ("L", "JPEG", LOSSY),
    ):
        Image.fromarray(GREYS).convert(mode).save(path, kind)
        with pytest.raises(DataError, match=rf"m\.png: {said}"):
            read_mask(MaskRef(path=path), volume)
