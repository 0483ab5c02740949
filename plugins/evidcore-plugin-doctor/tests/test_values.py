"""Intensity, spacing and fill: single volumes with a known answer."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_doctor.intensity import empty_parts, even_regions, impossible, not_hounsfield, runs
from evidcore_plugin_doctor.spacing import too_small, unlikely

from evidcore.api import VolumeRef
from evidcore.data import Geometry

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def geometry(shape, spacing):
    return Geometry(shape_zyx=shape, affine=np.diag([*spacing, 1.0]))


def odd(shape, spacing, **marks):
    ref = VolumeRef(path="a.nii.gz", **marks)
    grid = geometry(shape, spacing)
    return list(unlikely(ref, grid, grid))


def filled(hu, value):
    """Fill the sides of a scan, as scanners do outside their circle."""
    hu[:, :15], hu[:, -15:] = value, value
    return hu


def cropped(hu):
    """Return a part of a scan that shows no air."""
    return hu[1:15, 22:50, 22:50]


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("change", "severity", "told"),
    [
        (lambda hu: hu, None, ""),
        (lambda hu: filled(hu, -2000), None, ""),
        (lambda hu: filled(hu, -2048), None, ""),
        (lambda hu: filled(hu, -3024), None, ""),
        (cropped, None, ""),
        (lambda hu: (hu + 1024) / 4095, "error", r"values run from 0 to 0\.\d+: scaled to a unit range"),
        (lambda hu: ((hu + 160) * 0.6).clip(0, 255), "error", "values run from 0 to 255: a windowed picture"),
        (lambda hu: hu - 1024, "error", "the intercept was applied twice"),
        (lambda hu: filled(hu, -2000) - 1024, "error", "the intercept was applied twice"),
        (lambda hu: cropped(hu) - 1024, "error", "the intercept was applied twice"),  # told by its fat
        (lambda hu: hu + 1024, "error", r"soft tissue lies at (9\d\d|10\d\d|11[01]\d) HU .* Subtract 1024"),
        (lambda hu: 2.0 * hu, "error", "the values begin at -20"),
        (lambda hu: 1.5 * hu, "error", "the values begin at -15"),
        (lambda hu: 0.5 * hu, "error", "the values begin at -5"),
        (lambda hu: hu + 100, "error", "the values begin at -9"),
        (lambda hu: -hu, "error", "bone below -"),
        (lambda hu: RNG.integers(1300, 3000, (20, 20, 20)), "warning", r"0 % of the voxels lie within -200"),
        (lambda hu: RNG.integers(0, 400, (20, 20, 20)), "warning", "the lowest value is 0: no air and no"),
        (lambda hu: RNG.gamma(2.0, 120.0, (30, 40, 40)) - 47, "warning", "no air and no fat.* It may be MR"),
    ],
)
def test_values_are_told_by_where_air_and_tissue_lie(tools, change, severity, told):
    array = change(tools.torso(1).astype(np.float32)).astype(np.float32)
    found, text = not_hounsfield(tools.as_volume(array)) or (None, "")
    assert found == severity
    assert re.search(told, text), text


@pytest.mark.parametrize("value", [1e30, -32768.0])
def test_what_no_ct_holds_is_named_with_its_place(tools, value):
    array = tools.torso(1).astype(np.float32)
    assert impossible(tools.as_volume(array)) is None
    array[5, 6, 7] = value
    _, text = impossible(tools.as_volume(array))
    assert "1 of 339264 voxels lie beyond -10000 to 100000 HU, the first at z=5, y=6, x=7: " in text
    assert f"{value:g}" in text


@pytest.mark.parametrize(("shape", "spacing"), TABLE["likely"])
def test_what_scanners_make_is_likely(shape, spacing):
    assert odd(shape, spacing) == []


@pytest.mark.parametrize(("shape", "spacing", "said"), TABLE["unlikely"])
def test_what_no_scanner_makes_is_named_with_its_value(shape, spacing, said):
    ((_, text),) = odd(shape, spacing)
    assert said in text


def test_slices_of_mr_may_lie_along_any_axis():
    assert odd((200, 256, 30), (0.9, 0.9, 4.0), intensity="arbitrary") == []
    assert odd((100, 512, 512), (1.0, 1.0, 1.0), intensity="arbitrary") == []  # a default header, of no CT
    ((_, text),) = odd((200, 256, 30), (0.9, 1.8, 4.0), intensity="arbitrary")
    assert "pixels are 2 times as long as wide" in text


def test_a_body_smaller_than_anybodys_is_told(tools):
    assert too_small(tools.as_volume(tools.torso(1))) is None
    _, text = too_small(tools.as_volume(tools.torso(1), (0.6, 0.55, 0.5)))
    assert "a spacing of 0.6 x 0.55 x 0.5 mm (z, y, x) makes the chest 3" in text
    assert "mm wide, expected at least 80 mm" in text
    crop = tools.torso(1)[1:15, 22:50, 22:50]  # the body runs out of it: nothing is known of its width
    assert too_small(tools.as_volume(crop, (0.6, 0.55, 0.5))) is None


def test_a_table_that_contradicts_the_file_is_named_with_both():
    used, stated = geometry((100, 512, 512), (1.5, 0.7, 0.7)), geometry((100, 512, 512), (1.0, 1.0, 1.0))
    ref = VolumeRef(path="a.nii.gz", spacing_mm_zyx=(1.5, 0.7, 0.7))
    ((severity, text),) = unlikely(ref, used, stated)
    assert severity == "warning"
    assert "states a spacing of 1 x 1 x 1 mm (z, y, x), the table 1.5 x 0.7 x 0.7 mm" in text
    assert list(unlikely(ref, used, used)) == []


def parts(volume):
    return [text for _, text in empty_parts(volume)]


def test_slices_of_air_at_the_ends_are_no_fault_slices_of_water_are(tools):
    array = tools.torso(1)
    array[:3], array[-2:] = -1024, -1000
    assert parts(tools.as_volume(array)) == []
    array[0] = 0
    assert parts(tools.as_volume(array))[0].startswith("1 of 62 slices hold a single value each (0): z = 0.")


def test_outside_ct_only_slices_within_are_a_fault(tools):
    array = np.random.default_rng(0).normal(100, 20, (12, 10, 10)).astype(np.float32)
    array[:2], array[-1] = 0, 0
    assert parts(tools.as_volume(array, intensity="arbitrary")) == []
    array[[5, 7, 8]] = 3.5
    (text,) = parts(tools.as_volume(array, intensity="arbitrary"))
    assert text.startswith("3 of 12 slices hold a single value each (3.5): z = 5, 7-8.")


def test_regions_of_one_value_are_told_with_their_slices_and_clipped_values_are_none(tools):
    array = tools.torso(1)
    assert list(even_regions(tools.as_volume(array))) == []
    assert list(even_regions(tools.as_volume(np.clip(array, -800, 60)))) == []
    array[20:23, 20:50, 20:60] = 0
    ((severity, text),) = even_regions(tools.as_volume(array))
    assert severity == "error"
    assert text.startswith("3 of 62 slices hold regions of exactly 0 HU: z = 20-22.")


def test_numbers_are_written_as_runs():
    assert runs([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert runs([1, 3, 5, 7, 9]) == "1, 3, 5, 7, ..."
