"""Slices as pictures, compared with the volume; windows by content; what stays in memory."""

import io

import numpy as np
import pytest
from evidcore_plugin_view.opened_scan import Scan
from PIL import Image

from evidcore.api import VolumeRef
from evidcore.data import Geometry, Volume, save_volume


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a volume (z, y, x) and returns its reference."""

    def write(array, name="scan.nii.gz", intensity="hu", spacing_mm_zyx=(5.0, 1.0, 2.0)):
        geometry = Geometry(shape_zyx=array.shape, affine=np.diag([*spacing_mm_zyx, 1.0]))
        volume = Volume(array=array.astype(np.int16), geometry=geometry, intensity=intensity)
        save_volume(volume, tmp_path / name)
        return VolumeRef(path=str(tmp_path / name), intensity=intensity)

    return write


def test_a_picture_is_the_slice_in_its_window_and_a_value_is_told_with_its_place(written):
    array = np.random.default_rng(1).integers(-1000, 1000, (4, 5, 6))
    scan = Scan(written(array))
    seen = {"axial": array[2], "coronal": array[::-1, 2], "sagittal": array[::-1, :, 2]}
    for plane, values in seen.items():
        picture = np.asarray(Image.open(io.BytesIO(scan.png(plane, 2, -400, 600))))
        wanted = np.clip((values + 400) / 1000, 0, 1) * 255
        assert np.abs(picture - wanted).max() < 1
        told = scan.plane(plane)
        assert (told["height"], told["width"]) == values.shape
    assert scan.value(2, 1, 3) == {"value": float(array[2, 1, 3]), "mm_zyx": [10.0, 1.0, 6.0]}
    assert scan.plane("axial")["aspect"] == pytest.approx(6 * 2 / (5 * 1))
    assert scan.plane("coronal")["aspect"] == pytest.approx(6 * 2 / (4 * 5))
    assert scan.plane("sagittal")["aspect"] == pytest.approx(5 * 1 / (4 * 5))


def test_the_window_fits_what_is_seen(written, cases):
    chest, abdomen = (Scan(cases[name]["test"][0].volumes[0]) for name in ("chest", "abdomen"))
    assert next(iter(chest.windows())) == "lung"
    assert next(iter(abdomen.windows())) == "mediastinum"
    arbitrary = Scan(written(np.arange(1000).reshape(10, 10, 10), intensity="arbitrary"))
    assert list(arbitrary.windows()) == ["full range"]
    assert arbitrary.windows()["full range"] == pytest.approx((9.99, 989.01))


def test_a_window_around_a_mask_shows_what_lies_beside_it(written):
    array = np.full((20, 20, 20), -800)
    array[:, :, 10:] = 40
    scan = Scan(written(array))
    nodule, heart = (np.zeros(array.shape, dtype=bool) for _ in range(2))
    nodule[9:11, 9:11, 3:5] = heart[9:11, 9:11, 16:18] = True
    assert scan.window_around(nodule) == "lung"
    assert scan.window_around(heart) == "mediastinum"
    assert scan.window_around(np.zeros_like(heart)) is None
