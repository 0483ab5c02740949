from pathlib import Path

import nibabel
import numpy as np
import pytest
from nibabel.processing import resample_from_to

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import FileGrid, Geometry, Volume, read_geometry
from evidcore.data.placement import place, tilt_degrees


def geometry(shape=(4, 5, 6), spacing=(3.0, 2.0, 1.0), origin=(10.0, 20.0, 30.0)) -> Geometry:
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = origin
    return Geometry(shape_zyx=shape, affine=affine)


def test_the_gap_between_grids_is_measured_at_the_worst_corner_in_voxels():
    # 1 % more spacing in x: the far corner, 5 voxels out, lies 0.05 mm = 0.05 voxels away
    assert np.isclose(geometry().apart_voxels(geometry(spacing=(3.0, 2.0, 1.01))), 0.05)
    # 0.6 mm in z is 0.2 voxels of 3 mm
    assert np.isclose(geometry().apart_voxels(geometry(origin=(10.6, 20.0, 30.0))), 0.2)


def test_grids_fit_up_to_a_tenth_of_a_voxel():
    assert geometry().fits(geometry(origin=(10.2, 20.0, 30.0)))
    assert not geometry().fits(geometry(origin=(10.4, 20.0, 30.0)))
    assert not geometry().fits(geometry(shape=(4, 5, 7)))


SHAPE = (20, 24, 22)
X, Y, Z = np.indices(SHAPE)
SMOOTH = (300 * np.sin(X / 5) + 200 * np.cos(Y / 6) + 10 * Z).round().astype(np.int16)  # no sharp edges, HU
SHEAR = np.array([[-1.0, 0, 0, 4], [0, -1.0, -0.8, 6], [0, 0, 2.5, -9], [0, 0, 0, 1]])  # RAS, x y z


def turned(degrees: float) -> np.ndarray:
    """Return an RAS affine whose axes are turned about x, in file order x, y, z."""
    angle = np.radians(degrees)
    turn = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    return nibabel.affines.from_matvec(turn @ np.diag([-1.0, -1.5, 2.5]), [3, 4, 5])


def save(path: Path, array_xyz: np.ndarray, affine: np.ndarray) -> str:
    nibabel.save(nibabel.Nifti1Image(array_xyz, affine), path)
    return str(path)


def by_nibabel(path: str, volume: Volume) -> tuple[np.ndarray, np.ndarray]:
    """Return nibabel's values at the voxels of `volume`, and where all their neighbours are in the file."""
    image = nibabel.load(path)
    back = np.eye(4)[[2, 1, 0, 3]]
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ back @ volume.affine @ back
    wanted = (volume.shape_zyx[::-1], affine)
    held = nibabel.Nifti1Image(image.get_fdata(dtype=np.float32), image.affine)
    ones = nibabel.Nifti1Image(np.ones(image.shape, np.float32), image.affine)
    values, whole = (resample_from_to(item, wanted, order=1, cval=0).get_fdata() for item in (held, ones))
    return values.T, whole.T > 0.999


@pytest.mark.parametrize("affine", [SHEAR, turned(9.0), turned(-30.0)], ids=["shear", "9", "30"])
def test_leaning_axes_are_resampled_as_nibabel_does(tmp_path, affine):
    path = save(tmp_path / "a.nii.gz", SMOOTH, affine)
    ref = VolumeRef(path=path, tilted="resample")
    volume = read(ref)
    assert tilt_degrees(volume.geometry) < 1e-6
    assert volume.array.dtype == np.int16
    assert read_geometry(ref).fits(volume.geometry)
    values, whole = by_nibabel(path, volume)
    assert whole.mean() > 0.3
    np.testing.assert_allclose(volume.array[whole], values[whole], atol=1)
    assert (volume.array[~whole] == -1000).any()


@pytest.mark.parametrize("affine", [SHEAR, turned(9.0), turned(-30.0)], ids=["shear", "9", "30"])
def test_a_given_spacing_counts_along_the_voxel_axes_wherever_they_point(tmp_path, affine):
    path = save(tmp_path / "a.nii.gz", SMOOTH, affine)
    grid = FileGrid(shape=SHAPE, affine=np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine)
    given = (5.0, 3.0, 2.0)
    stated, result = (
        place(grid, VolumeRef(path=path, tilted="resample", spacing_mm_zyx=spacing)).meant
        for spacing in (None, given)
    )
    assert result.spacing_mm_zyx == pytest.approx(given)
    for axis in range(3):  # a step along a voxel axis is as long as given, and points where it did
        before = stated.affine[:3, axis]
        expected = before / np.linalg.norm(before) * given[axis]
        np.testing.assert_allclose(result.affine[:3, axis], expected, atol=1e-9)
    np.testing.assert_allclose(result.affine[:3, 3], stated.affine[:3, 3])


@pytest.mark.parametrize("affine", [SHEAR, turned(-30.0)], ids=["shear", "30 degrees"])
def test_a_mask_on_the_leaning_grid_is_at_each_voxel_what_the_nearest_one_says(tmp_path, affine):
    labels = (np.random.default_rng(4).random(SHAPE) < 0.3).astype(np.uint8)
    path = save(tmp_path / "a.nii.gz", SMOOTH, affine)
    volume = read(VolumeRef(path=path, tilted="resample"))
    mask = read_mask(MaskRef(path=save(tmp_path / "m.nii.gz", labels, affine)), volume)
    from_file = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    to_file = np.linalg.inv(from_file) @ np.eye(4)[[2, 1, 0, 3]] @ volume.affine
    at = np.moveaxis(np.indices(volume.shape_zyx), 0, -1) @ to_file[:3, :3].T + to_file[:3, 3]
    nearest = np.round(at).astype(int)
    inside = ((nearest >= 0) & (nearest < SHAPE)).all(-1)
    expected = np.zeros(volume.shape_zyx, dtype=bool)
    expected[inside] = labels[tuple(nearest[inside].T)] > 0
    is_clear = (np.abs(at - nearest) < 0.49).all(-1)  # between two voxels either is right
    assert is_clear.mean() > 0.9
    assert expected.any()
    np.testing.assert_array_equal(mask[is_clear], expected[is_clear])


def test_outside_of_a_scan_of_arbitrary_intensity_is_its_lowest_value(tmp_path):
    path = save(tmp_path / "a.nii.gz", SMOOTH, SHEAR)
    volume = read(VolumeRef(path=path, tilted="resample", intensity="arbitrary"))
    assert volume.array.min() == SMOOTH.min()


def test_a_mask_of_a_part_on_the_leaning_grid_is_that_of_the_whole_and_one_on_another_is_refused(tmp_path):
    labels = np.zeros(SHAPE, np.uint8)
    labels[6:14, 8:16, 5:15] = 3
    path = save(tmp_path / "a.nii.gz", SMOOTH, SHEAR)
    mask_path = save(tmp_path / "m.nii.gz", labels, SHEAR)
    moved = SHEAR @ nibabel.affines.from_matvec(np.eye(3), [0, 0, 4])
    part_path = save(tmp_path / "part.nii.gz", labels[:, :, 4:18], moved)
    volume = read(VolumeRef(path=path, tilted="resample"))
    mask = read_mask(MaskRef(path=mask_path, label=3), volume)
    np.testing.assert_array_equal(read_mask(MaskRef(path=part_path), volume), mask)
    straight = save(tmp_path / "s.nii.gz", labels, np.diag([-1.0, -1.0, 2.5, 1.0]))
    with pytest.raises(
        DataError, match=r"s\.nii\.gz: the mask lies on another grid than its volume: mask 22x24x20"
    ):
        read_mask(MaskRef(path=straight), volume)


def test_arrays_of_masks_lie_on_the_straight_grid(tmp_path):
    volume = read(VolumeRef(path=save(tmp_path / "a.nii.gz", SMOOTH, SHEAR), tilted="resample"))
    held = np.zeros(volume.shape_zyx, bool)
    held[3, 4, 5] = True
    np.savez(tmp_path / "m.npz", lesion=held)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / "m.npz")), volume), held)


def test_a_straight_file_is_not_touched_by_resample(tmp_path):
    path = save(tmp_path / "a.nii.gz", SMOOTH, np.diag([-1.0, -1.5, 2.5, 1.0]))
    item, other = read(VolumeRef(path=path)), read(VolumeRef(path=path, tilted="resample"))
    np.testing.assert_array_equal(item.array, other.array)
    assert other.source is None


# --- spacing and rescale --------------------------------------------------------------------------


def test_a_spacing_takes_the_place_of_the_file_s_for_volume_and_masks(write):
    array = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
    path, mask = write(array, axes="RAS"), write((array > 60).astype(np.uint8), "m.nii.gz", axes="PIR")
    ref = VolumeRef(path=str(path), spacing_mm_zyx=(1.5, 0.7, 0.8))
    volume = read(ref)
    assert volume.spacing_mm_zyx == pytest.approx((1.5, 0.7, 0.8))
    assert read_geometry(ref).fits(volume.geometry)
    np.testing.assert_array_equal(volume.array, array)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(mask)), volume), array > 60)
    right = str(write((array > 60).astype(np.uint8), "r.nii.gz", (1.5, 0.7, 0.8)))
    with pytest.raises(DataError, match=r"mask 4x5x6 voxels of 1\.5x0\.7x0\.8 mm .* volume .* of 3x2x1"):
        read_mask(MaskRef(path=right), volume)


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, -1024.0), (2.0, 10.0), (0.5, 0.25)])
def test_a_rescale_is_applied_once_on_top_of_the_file_s_own(tmp_path, slope, intercept):
    stored = np.arange(120, dtype=np.int16).reshape(6, 5, 4)
    image = nibabel.Nifti1Image(stored, np.diag([-1.0, -1.0, 1.0, 1.0]))
    image.header.set_slope_inter(3.0, 7.0)
    image.to_filename(tmp_path / "a.nii")
    with (tmp_path / "a.nii").open("r+b") as file:  # nibabel computes a slope of its own as it saves
        file.seek(112)
        file.write(np.array([3.0, 7.0], "<f4").tobytes())
    held = np.asarray(nibabel.load(tmp_path / "a.nii").dataobj.get_unscaled())
    volume = read(VolumeRef(path=str(tmp_path / "a.nii"), rescale=(slope, intercept)))
    own = held.T * 3.0 + 7.0
    np.testing.assert_allclose(volume.array, own * slope + intercept)


def test_a_rescale_of_whole_numbers_keeps_them_whole(write):
    array = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
    path = str(write(array))
    volume = read(VolumeRef(path=path, rescale=(1.0, -1024.0)))
    np.testing.assert_array_equal(volume.array, array - 1024)
    assert volume.array.dtype == np.int16
    mask = read_mask(MaskRef(path=path, label=5), volume)
    assert mask.sum() == 1, "labels are not rescaled"


@pytest.mark.parametrize(
    ("options", "shown"),
    [({"rescale": (0.0, 1.0)}, "rescale must be a slope other than 0 and an intercept, got (0.0, 1.0)"),
     ({"rescale": (1.0, np.inf)}, "got (1.0, inf)"),
     ({"spacing_mm_zyx": (1.0, -2.0, 1.0)}, "must be three numbers above 0 mm, got (1.0, -2.0, 1.0)"),
     ({"axes": "SPL"}, "axes 'SPL' take the place of the header's grid; spacing_mm_zyx must be given"),
     ({"axes": "SPS", "spacing_mm_zyx": (1.0, 1.0, 1.0)}, "name each body axis once, of L or R"),
     ({"key": "ct"}, "key 'ct' picks nothing of a .nii.gz file, which names no part")],
)  # fmt: skip
def test_what_the_reference_says_wrongly_is_refused(write, options, shown):
    path = write(np.zeros((4, 5, 6), np.int16))
    for read_what in (read, read_geometry):
        with pytest.raises(DataError) as caught:
            read_what(VolumeRef(path=str(path), **options))
        assert str(caught.value).startswith(f"{path}: ")
        assert shown in str(caught.value)


@pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz"])
def test_axes_and_spacing_take_the_place_of_a_header_that_states_no_orientation(tmp_path, name):
    array = np.arange(120, dtype=np.int16).reshape(4, 5, 6)  # runs down, forward, left
    path = str(tmp_path / name)
    image = nibabel.Nifti1Image(array, None)
    image.header["qform_code"] = image.header["sform_code"] = 0
    nibabel.save(image, path)
    with pytest.raises(DataError, match="states no orientation"):
        read(VolumeRef(path=path))
    volume = read(VolumeRef(path=path, axes="IAL", spacing_mm_zyx=(3.0, 2.0, 1.0)))
    np.testing.assert_array_equal(volume.array, array[::-1, ::-1])
    assert volume.spacing_mm_zyx == (3.0, 2.0, 1.0)


# --- a real scan ----------------------------------------------------------------------------------


def test_a_real_tilted_scan_is_straightened(real_data):
    path = str(real_data / "niivue_images/CT_pitch.nii.gz")
    volume = read(VolumeRef(path=path, tilted="resample"))
    values, whole = by_nibabel(path, volume)
    assert whole.mean() > 0.3
    np.testing.assert_allclose(volume.array[whole], values[whole], atol=1)
    assert values[whole].std() > 10  # there is an image in it
