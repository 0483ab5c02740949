"""Covered encoder input, compared with what `prepare` gives for a scan whose file has the cell covered."""

import dataclasses

import numpy as np
import pytest
import torch
from evidcore_plugin_audit.covering_bank import CoveredCrop, CoveringBank
from evidcore_testing import TinyEncoder

from evidcore.api import Crop, EncoderInput, VolumeRef, prepare
from evidcore.data import Geometry, Volume, save_volume
from evidcore.model.bank import FeatureBank

SHAPE = (8, 16, 16)
CELL = (2, 6, 4, 8, 8, 16)
WIDE = (-1000.0, 400.0)  # HU
SPECS = {
    "resized": EncoderInput(size_zyx=(4, 8, 8), spacing_mm_zyx=None, windows=(WIDE,)),
    "at a spacing": EncoderInput(
        size_zyx=(6, 10, 6), spacing_mm_zyx=(4.0,) * 3, windows=(WIDE, (-160.0, 240.0))
    ),
    "as it is": EncoderInput(size_zyx=SHAPE, spacing_mm_zyx=None, windows=(WIDE,)),
}
PLACES = {  # of the cell, by hand
    "resized": (slice(None), slice(1, 3), slice(2, 4), slice(4, 8)),  # every second voxel
    # 4 x 8 x 8 voxels of 4 mm, one more on each side of z and y, one less of x
    "at a spacing": (slice(None), slice(2, 4), slice(3, 5), slice(3, 6)),
    "as it is": (slice(None), slice(2, 6), slice(4, 8), slice(8, 16)),
}


@pytest.fixture
def scan(tmp_path):
    """A scan of constant tissue, and the same with air in the cell."""
    geometry = Geometry(shape_zyx=SHAPE, affine=np.diag([2.0, 2.0, 2.0, 1.0]))
    array = np.full(SHAPE, 40, dtype=np.int16)
    refs = []
    for name in ("own", "covered"):
        path = tmp_path / f"{name}.nii.gz"
        save_volume(Volume(array=array.copy(), geometry=geometry, intensity="hu"), path)
        refs.append(VolumeRef(path=str(path), intensity="hu"))
        array[2:6, 4:8, 8:16] = -1000
    return refs


def given(bank, crop, size):
    return bank.pixels([bank.handle(crop, size)])[0]


@pytest.mark.parametrize("name", SPECS)
def test_the_voxels_whose_centre_lies_in_the_cell_are_as_in_a_blank_volume(scan, name):
    spec, place = SPECS[name], PLACES[name]
    own, covered = scan
    bank, size = CoveringBank(FeatureBank(spec)), spec.size_zyx
    result = given(bank, CoveredCrop(volume=own, cell_zyx=CELL), size)
    expected = prepare(Crop(volume=own), spec, size).clone()
    expected[place] = -1
    assert torch.equal(result, expected)
    in_file = prepare(Crop(volume=covered), spec, size)  # mixes both sides at the edge of the cell
    assert (in_file[place] < prepare(Crop(volume=own), spec, size)[place]).all()
    if name == "as it is":
        assert torch.equal(result, in_file)


def test_a_part_of_the_scan_is_covered_where_the_cell_is(scan):
    spec = SPECS["as it is"]
    bank, own = CoveringBank(FeatureBank(spec)), scan[0]
    part = CoveredCrop(volume=own, box_zyx=(4, 5, 0, 16, 0, 16), cell_zyx=CELL)
    result = given(bank, part, (1, 16, 16))
    expected = torch.zeros(1, 16, 16, dtype=torch.bool)
    expected[0, 4:8, 8:16] = True
    assert torch.equal(result[0] == -1, expected)
    assert bank.changes(part, (1, 16, 16)) is True
    beside = dataclasses.replace(part, box_zyx=(7, 8, 0, 16, 0, 16))
    assert bank.changes(beside, (1, 16, 16)) is None  # nothing of the cell is shown


def test_covering_air_changes_nothing(scan):
    spec = SPECS["as it is"]
    bank = CoveringBank(FeatureBank(spec))
    assert bank.changes(CoveredCrop(volume=scan[1], cell_zyx=CELL), SHAPE) is False


def test_features_of_what_is_not_covered_are_those_of_the_own_bank(scan):
    encoder = TinyEncoder()
    own = FeatureBank(encoder.input)
    bank, size = CoveringBank(own), encoder.input.size_zyx
    crop = Crop(volume=scan[0])
    handles = [
        bank.handle(crop, size),
        bank.handle(CoveredCrop(volume=scan[0]), size),
        bank.handle(CoveredCrop(volume=scan[0], cell_zyx=CELL), size),
    ]
    result = {}
    for group, patches in bank.patches(handles, encoder):
        result |= dict(zip(group, patches.features, strict=True))
    plain, uncovered, covered = (result[handle] for handle in handles)
    assert torch.allclose(plain, uncovered, atol=1e-5)
    assert not torch.allclose(plain, covered, atol=1e-2)
    assert own.encoded == 1  # covered crops leave nothing behind
    assert bank.size_zyx(handles[2]) == size
