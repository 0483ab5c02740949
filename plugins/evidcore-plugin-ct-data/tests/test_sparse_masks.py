"""Sparse masks against dense ones that are turned by hand."""

import dataclasses
import zipfile

import numpy as np
import pytest
from evidcore_plugin_ct_data.sparse_masks import SparseMasks
from evidcore_testing import check_format
from scipy import sparse

from evidcore.api import DataError, MaskRef, VolumeRef, read_mask
from evidcore.data import Geometry, Volume
from evidcore.data.arrays import BareArray
from evidcore.data.files import format_of

SHAPE = (3, 4, 5)  # of the file: x, y, z


@pytest.fixture
def masks():
    """Two classes, no voxel like its mirror image; the second has a stored zero, which is no voxel."""
    result = np.zeros((2, *SHAPE), np.int32)
    result[0, 0, 1, 4] = 1
    result[0, 2, 3, 3] = 1
    result[1, 1, 0, 0] = 1
    return result


@pytest.fixture
def file(tmp_path, masks):
    stored = masks.copy()
    stored[1, 2, 3, 4] = 1
    matrix = sparse.csr_matrix(stored.reshape(2, -1))
    matrix.data[matrix.indices == 59] = 0  # kept in the matrix, and no voxel
    path = tmp_path / f"mask_{masks.shape}.npz"
    sparse.save_npz(path, matrix)
    return str(path)


def grid(*shape):
    geometry = Geometry(shape_zyx=shape, affine=np.eye(4))
    return Volume(array=np.zeros(shape, np.int16), geometry=geometry, intensity="arbitrary")


@pytest.mark.parametrize(
    ("axes", "turned"),
    [
        ("LPS", lambda mask: mask.transpose(2, 1, 0)),
        ("RAS", lambda mask: mask[::-1, ::-1].transpose(2, 1, 0)),
        ("IPL", lambda mask: mask[::-1]),
    ],
)
def test_a_row_is_turned_to_body_axes(file, masks, axes, turned):
    for row in (0, 1):
        expected = turned(masks[row] > 0)
        mask = read_mask(MaskRef(path=file, key=str(row), axes=axes), like=grid(*expected.shape))
        np.testing.assert_array_equal(mask, expected)
        assert mask.dtype == np.bool_


def test_the_older_name_says_its_shape_too(tmp_path, masks):
    path = tmp_path / "case_1.(2, 3, 4, 5).npz"
    sparse.save_npz(path, sparse.csr_matrix(masks.reshape(2, -1)))
    ref = MaskRef(path=str(path), key="0", axes="LPS")
    assert np.argwhere(read_mask(ref, like=grid(5, 4, 3))).tolist() == [[3, 3, 2], [4, 1, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "2"}, r"key '2' must be a row of the matrix, 0 to 1"),
        ({"key": None}, r"key None must be a row of the matrix, 0 to 1"),
        ({"label": 1}, r"label 1 picks nothing of a sparse mask, whose rows are picked by key\. Leave the"),
        ({"axes": None}, r"does not say where its axes run to. Set axes on the dataset"),
        ({"axes": "LPL"}, r"axes must name each body axis once.*got .LPL.\. Write for instance"),
        ({"axes": "SPL"}, r"row 0 has shape \(3, 4, 5\) in body axes, its volume \(5, 4, 3\).*got 'SPL'"),
    ],
)
def test_what_cannot_be_read_is_named(file, change, message):
    ref = dataclasses.replace(MaskRef(path=file, key="0", axes="LPS"), **change)
    with pytest.raises(DataError, match=message):
        read_mask(ref, like=grid(5, 4, 3))


def test_a_name_that_lies_about_the_shape_is_refused(tmp_path, masks):
    huge = r"row 0 has shape \(10000, 10000, 10000\) in body axes, its volume \(5, 4, 3\)"
    lies = r"3 masks of 3x4x5 voxels, the matrix has shape \(2, 60\)"
    ends = "must end in its shape"
    names = ("mask.npz", "mask_(3, 3, 4, 5).npz", "mask_(1, 10000, 10000, 10000).npz")
    for name, message in zip(names, (ends, lies, huge), strict=True):
        path = tmp_path / name
        sparse.save_npz(path, sparse.csr_matrix(masks.reshape(2, -1)))
        with pytest.raises(DataError, match=message):
            read_mask(MaskRef(path=str(path), key="0", axes="LPS"), like=grid(5, 4, 3))


def test_what_unpacks_to_more_than_its_volume_is_refused(file):
    np.savez_compressed(file, **np.load(file), more=np.zeros(10**7, np.int32))
    with pytest.raises(DataError, match=r"unpacks to 40\.0 MB, its volume \(5, 4, 3\) has far fewer voxels"):
        read_mask(MaskRef(path=file, key="0", axes="LPS"), like=grid(5, 4, 3))


def test_what_unpacks_to_more_than_it_states_is_refused(file):
    members = [*np.load(file)]
    for packed, said in ((zipfile.ZIP_LZMA, "npz: .* is packed by"), (8, "sparse matrix .Bad CRC")):
        with zipfile.ZipFile(file, "w", packed) as archive:
            for name in members:
                archive.writestr(f"{name}.npy", bytes(1 << 20))
                archive.filelist[-1].file_size = 10
        with pytest.raises(DataError, match=said):
            read_mask(MaskRef(path=file, key="0", axes="LPS"), like=grid(5, 4, 3))


def test_arrays_beside_them_are_read_as_by_the_core(tmp_path, file):
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    (tmp_path / "scan").mkdir()
    np.savez(tmp_path / "scan" / "a.npz", array)
    ref = VolumeRef(path=str(tmp_path / "scan" / "a.npz"), axes="SPL", spacing_mm_zyx=(1.0, 1.0, 1.0))
    check_format(SparseMasks(), ref, Volume(array=array, geometry=grid(3, 4, 5).geometry, intensity="hu"))
    assert type(format_of(ref.path)) is BareArray
    assert type(format_of(file)) is SparseMasks
