import os
import re

import nibabel
import numpy as np
import pytest

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import Volume
from evidcore.data.masks import left_out

SHAPE = (4, 5, 6)
LABELS = np.zeros(SHAPE, np.uint8)
LABELS[1, 2, 3:], LABELS[3, 0, 0] = 5, 2


@pytest.fixture
def volume(write) -> Volume:
    return read(VolumeRef(path=str(write(np.zeros(SHAPE, np.int16)))))


@pytest.mark.parametrize("axes", ["LPS", "RAS", "SAL", "PIR"])
def test_a_label_map_of_any_orientation_lies_on_its_volume(write, volume, axes):
    path = str(write(LABELS, "mask.nii.gz", axes=axes))
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), volume), LABELS > 0)
    np.testing.assert_array_equal(read_mask(MaskRef(path=path, label=5), volume), LABELS == 5)
    assert not read_mask(MaskRef(path=path, label=9), volume).any()
    for dtype, first in ((np.float32, 0), (np.uint32, 614454272)):  # beyond 2^24, which float32 rounds
        path = str(write((LABELS + dtype(first)).astype(dtype), "other.nii.gz", axes=axes))
        for label in (2, 5):
            mask = read_mask(MaskRef(path=path, label=first + label), volume)
            np.testing.assert_array_equal(mask, np.equal(LABELS, label))


def test_an_array_of_an_npz_is_read(tmp_path, volume):
    path = tmp_path / "masks.npz"
    np.savez_compressed(path, nodule=LABELS == 5, lung=LABELS > 0)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), key="nodule"), volume), LABELS == 5)
    np.savez_compressed(path, LABELS)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path)), volume), LABELS > 0)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), label=2), volume), LABELS == 2)


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_the_axes_of_a_bare_mask_count_as_those_of_a_bare_volume(tmp_path, volume, ending):
    path = str(tmp_path / f"m.{ending}")
    # from z, y, x upwards, backwards and to the left: to x, z, y that run to the right, downwards, forwards
    turned = LABELS.transpose(2, 0, 1)[::-1, ::-1, ::-1]
    np.savez(path, turned) if ending == "npz" else np.save(path, turned)
    np.testing.assert_array_equal(read_mask(MaskRef(path=path, axes="RIA"), volume), LABELS > 0)
    with pytest.raises(DataError, match=r"axes must name each body axis once.*got 'RIR'"):
        read_mask(MaskRef(path=path, axes="RIR"), volume)


def test_the_slices_that_a_mask_leaves_out_are_counted():
    for slices, between in (
        ([2, 4, 6, 8], 1), ([2, 5, 8], 2), ([2, 4, 6, 17, 19, 21], 1), ([2, 6, 9, 10, 14], 3),
        ([2, 3, 4, 15, 16], 0), ([2, 3, 5, 6, 7], 0), ([2, 9], 0), ([], 0),
    ):  # fmt: skip
        mask = np.zeros((24, 6, 6), np.bool_)
        mask[slices, 2:5, 2:5] = True
        assert [left_out(np.moveaxis(mask, 0, axis), axis) for axis in range(3)] == [between] * 3
    mask[2, :2], mask[4, 2:4], mask[6, 4:] = True, True, True
    assert left_out(mask, 0) == 0, "parts that lie apart"


def moved(write, array: np.ndarray, name: str, offset_zyx: tuple[float, float, float]) -> str:
    """Write an array whose first voxel lies that many voxels from its volume's."""
    path = write(array, name)
    image = nibabel.load(path)
    dz, dy, dx = (offset * step for offset, step in zip(offset_zyx, (3.0, 2.0, 1.0), strict=True))
    affine = image.affine.copy()
    affine[:3, 3] += [-dx, -dy, dz]
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), affine), path)
    return str(path)


@pytest.mark.parametrize("axes", ["LPS", "RAI"])
def test_a_mask_of_a_part_of_its_volume_is_put_where_it_belongs(write, volume, axes):
    path = moved(write, LABELS[1:4, 2:, :], "crop.nii.gz", (1, 2, 0))
    nibabel.save(nibabel.as_closest_canonical(nibabel.load(path)), path)
    expected = np.zeros(SHAPE, bool)
    expected[1:4, 2:] = LABELS[1:4, 2:] > 0
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), volume), expected)
    item = moved(write, LABELS[1:2], "slice.nii.gz", (1, 0, 0))
    np.testing.assert_array_equal(read_mask(MaskRef(path=item), volume)[1], LABELS[1] > 0)


def test_a_mask_that_reaches_out_of_its_volume_where_nothing_is_marked_is_read(write, volume):
    larger = np.pad(LABELS, ((1, 2), (0, 0), (3, 1)))
    path = moved(write, larger, "larger.nii.gz", (-1, 0, -3))
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), volume), LABELS > 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16])
def test_labels_that_nibabel_scaled_are_the_labels_that_were_saved(tmp_path, volume, write, dtype):
    image = nibabel.load(write(np.where(LABELS == 2, 7, 37 * LABELS), "labels.nii.gz"))
    image.set_data_dtype(dtype)
    path = str(tmp_path / "scaled.nii.gz")
    nibabel.save(nibabel.Nifti1Image(image.get_fdata(), image.affine, image.header), path)
    values = nibabel.load(path).get_fdata()
    assert np.any(values != np.round(values))
    for label, drawn in ((7, 2), (185, 5)):
        mask = read_mask(MaskRef(path=path, label=label), volume)
        np.testing.assert_array_equal(mask, np.equal(LABELS, drawn))
    nibabel.save(nibabel.Nifti1Image(image.get_fdata() / 185, image.affine, image.header), path)
    with pytest.raises(DataError, match="Threshold probabilities first"):
        read_mask(MaskRef(path=path), volume)


def arrays(**held):
    def make(write, folder):
        np.savez(folder / "m.npz", **held)
        return folder / "m.npz"

    return make


def cut(write, folder):
    np.save(folder / "m.npy", LABELS.T)
    os.truncate(folder / "m.npy", 140)  # the header tells, however much the voxels would unpack to
    return folder / "m.npy"


def map_of(array, *spacing):
    return lambda write, folder: write(array, "m.nii.gz", *spacing)


def off(array, z):
    return lambda write, folder: moved(write, array, "m.nii.gz", (z, 0, 0))


AT_0 = "volume 4x5x6 voxels of 3x2x1 mm from (0.0, 0.0, 0.0) mm"
TWO = arrays(nodule=LABELS, lung=LABELS)
REFUSED = [  # what writes the mask, what is picked of it, and what is said
    (map_of(LABELS), {"axes": "SPL"}, "axes 'SPL' cannot be given for a map of labels by number, which"),
    (map_of(LABELS), {"key": "lung"}, "key 'lung' picks nothing of a map of labels by number, which names"),
    (
        map_of(LABELS, (3.0, 2.0, 1.5)),
        {},
        "the mask lies on another grid than its volume: mask 4x5x6 voxels of 3x2x1.5 mm "
        f"from (0.0, 0.0, 0.0) mm (z, y, x), {AT_0}",
    ),
    (off(LABELS[1:3], 1.3), {}, f"mask 2x5x6 voxels of 3x2x1 mm from (3.9, 0.0, 0.0) mm (z, y, x), {AT_0}"),
    (off(LABELS, 2), {}, "1 of 4 voxels of the mask lie outside its volume: mask 4x5x6 voxels of 3x2x1 mm "),
    (arrays(lung=LABELS.T > 0), {}, "array 'lung' has shape (6, 5, 4), its volume (4, 5, 6) (z, y, x)"),
    (cut, {}, "the array has shape (6, 5, 4), its volume (4, 5, 6)"),
    (TWO, {"key": "nodul"}, "holds no array 'nodul'. Did you mean 'nodule'? It holds: nodule, lung"),
    (TWO, {}, "holds no array None. It holds: nodule, lung"),
    (map_of(2 * LABELS * np.float32(0.25)), {}, "a mask holds whole numbers, got 2.5 in 3 voxels"),
    (map_of(LABELS * np.float32(2**24)), {"label": 2**24 + 1}, "label 16777217 is none that float32 tells"),
    (arrays(one=np.full(SHAPE, np.nan)), {}, "got nan in 120 voxels"),
    (arrays(one=np.full(SHAPE, np.inf)), {}, "got inf in 120 voxels"),
]


@pytest.mark.parametrize(("make", "pick", "said"), REFUSED)
def test_what_is_no_mask_of_its_volume_is_refused(write, tmp_path, volume, make, pick, said):
    path = str(make(write, tmp_path))
    with pytest.raises(DataError, match=f"^{re.escape(path)}: .*{re.escape(said)}"):
        read_mask(MaskRef(path=path, **pick), volume)
