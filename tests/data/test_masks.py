from __future__ import annotations

import re
from pathlib import Path

import nibabel
import numpy as np
import pytest

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import Volume

SHAPE = (4, 5, 6)


@pytest.fixture
def volume(write) -> Volume:
    return read(VolumeRef(path=str(write(np.zeros(SHAPE, np.int16)))))


@pytest.fixture
def labels() -> np.ndarray:
    array = np.zeros(SHAPE, np.uint8)
    array[1, 2, 3:], array[3, 0, 0] = 5, 2
    return array


@pytest.mark.parametrize("axes", ["LPS", "RAS", "SAL", "PIR"])
def test_a_label_map_of_any_orientation_lies_on_its_volume(write, volume, labels, axes):
    path = str(write(labels, "mask.nii.gz", axes=axes))
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), volume), labels > 0)
    np.testing.assert_array_equal(read_mask(MaskRef(path=path, label=5), volume), labels == 5)
    assert not read_mask(MaskRef(path=path, label=9), volume).any()
    floats = str(write(labels.astype(np.float32), "floats.nii.gz", axes=axes))
    np.testing.assert_array_equal(read_mask(MaskRef(path=floats, label=2), volume), labels == 2)


def test_an_array_of_an_npz_is_read(tmp_path, volume, labels):
    path = tmp_path / "masks.npz"
    np.savez_compressed(path, nodule=labels == 5, lung=labels > 0)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), key="nodule"), volume), labels == 5)
    np.savez_compressed(path, labels)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path)), volume), labels > 0)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), label=2), volume), labels == 2)


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_the_axes_of_a_bare_mask_count_as_those_of_a_bare_volume(tmp_path, volume, labels, ending):
    path = str(tmp_path / f"m.{ending}")
    # from z, y, x upwards, backwards and to the left: to x, z, y that run to the right, downwards, forwards
    turned = labels.transpose(2, 0, 1)[::-1, ::-1, ::-1]
    np.savez(path, turned) if ending == "npz" else np.save(path, turned)
    np.testing.assert_array_equal(read_mask(MaskRef(path=path, axes="RIA"), volume), labels > 0)
    with pytest.raises(DataError, match=r"axes must name each body axis once.*got 'RIR'"):
        read_mask(MaskRef(path=path, axes="RIR"), volume)


def test_axes_of_a_file_that_states_its_own_are_refused(write, volume, labels):
    path = write(labels.astype(np.uint8), "m.nii.gz")
    assert "axes 'SPL' is for bare arrays; this file states its own. Leave axes out." in refusal(
        path, volume, axes="SPL"
    )


def refusal(path: Path, volume: Volume, **pick: object) -> str:
    with pytest.raises(DataError) as caught:
        read_mask(MaskRef(path=str(path), **pick), volume)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message


def test_another_grid_is_refused_with_both_grids(write, volume, labels):
    path = write(labels, "mask.nii.gz", (3.0, 2.0, 1.5))
    assert (
        "the mask lies on another grid than its volume: mask 4x5x6 voxels of 3x2x1.5 mm "
        "from (0.0, 0.0, 0.0) mm (z, y, x), volume 4x5x6 voxels of 3x2x1 mm from (0.0, 0.0, 0.0) mm"
    ) in refusal(path, volume)


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
def test_a_mask_of_a_part_of_its_volume_is_put_where_it_belongs(write, volume, labels, axes):
    path = moved(write, labels[1:4, 2:, :], "crop.nii.gz", (1, 2, 0))
    nibabel.save(nibabel.as_closest_canonical(nibabel.load(path)), path)
    expected = np.zeros(SHAPE, bool)
    expected[1:4, 2:] = labels[1:4, 2:] > 0
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), volume), expected)
    item = moved(write, labels[1:2], "slice.nii.gz", (1, 0, 0))
    np.testing.assert_array_equal(read_mask(MaskRef(path=item), volume)[1], labels[1] > 0)


def test_a_mask_that_lies_between_the_voxels_is_refused(write, volume, labels):
    path = moved(write, labels[1:3], "crop.nii.gz", (1.3, 0, 0))
    message = refusal(Path(path), volume)
    assert "mask 2x5x6 voxels of 3x2x1 mm from (3.9, 0.0, 0.0) mm" in message
    assert "volume 4x5x6 voxels of 3x2x1 mm from (0.0, 0.0, 0.0) mm" in message


def test_a_mask_that_reaches_out_of_its_volume_is_refused_with_the_count(write, volume, labels):
    path = moved(write, labels, "off.nii.gz", (2, 0, 0))
    message = refusal(Path(path), volume)
    assert (
        "1 of 4 voxels of the mask lie outside its volume: mask 4x5x6 voxels of 3x2x1 mm from (6.0, "
        in message
    )
    larger = np.pad(labels, ((1, 2), (0, 0), (3, 1)))
    path = moved(write, larger, "larger.nii.gz", (-1, 0, -3))
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), volume), labels > 0)


def test_an_array_of_another_shape_is_refused_with_both(tmp_path, volume, labels):
    np.savez(tmp_path / "m.npz", lung=labels.T > 0)
    message = refusal(tmp_path / "m.npz", volume)
    assert "array 'lung' has shape (6, 5, 4), its volume (4, 5, 6) (z, y, x)" in message


def test_a_wrong_key_is_refused_with_the_nearest(tmp_path, volume, labels):
    np.savez(tmp_path / "m.npz", nodule=labels, lung=labels)
    message = refusal(tmp_path / "m.npz", volume, key="nodul")
    assert "holds no array 'nodul'. Did you mean 'nodule'? It holds: nodule, lung" in message
    assert "holds no array None. It holds: nodule, lung" in refusal(tmp_path / "m.npz", volume)


def test_a_key_into_a_label_map_is_refused(write, volume, labels):
    assert "key 'lung' picks nothing of a label map, whose objects have numbers" in refusal(
        write(labels, "m.nii.gz"), volume, key="lung"
    )


def test_probabilities_are_refused(write, tmp_path, volume, labels):
    soft = labels * np.float32(0.25)
    write(soft, "m.nii.gz")
    message = refusal(tmp_path / "m.nii.gz", volume)
    assert re.search(r"a mask holds whole numbers, got (0\.5|1\.25) in 4 voxels", message)
    for odd in (np.nan, np.inf):
        np.savez(tmp_path / "m.npz", np.full(SHAPE, odd))
        assert f"got {odd} in 120 voxels" in refusal(tmp_path / "m.npz", volume)
