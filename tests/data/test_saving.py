import re

import nibabel
import numpy as np
import pytest
import SimpleITK
from PIL import Image

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import Geometry, Volume, save_mask, save_volume

SCAN = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
LESION = np.zeros(SCAN.shape, bool)
LESION[1, 2, 3:], LESION[-1, 0, 0] = True, True


@pytest.mark.parametrize("axes", ["LPS", "RAS", "SAL", "PIR"])
@pytest.mark.parametrize("name", ["m.nii.gz", "m.nii"])
def test_a_mask_lies_on_the_grid_of_its_file(write, tmp_path, axes, name):
    path = write(SCAN, axes=axes)
    ref = VolumeRef(path=str(path))
    save_mask(LESION, ref, tmp_path / name)
    source, saved = nibabel.load(path), nibabel.load(tmp_path / name)
    assert saved.shape == source.shape
    np.testing.assert_array_equal(saved.affine, source.affine)
    # second opinion: the voxels that nibabel finds inside hold the values that the mask picks in body axes
    inside = np.asarray(saved.dataobj) == 1
    assert set(np.asarray(source.dataobj)[inside]) == set(SCAN[LESION])
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / name)), read(ref)), LESION)


def test_affines_codes_kind_and_shape_of_a_nifti_file_are_kept(tmp_path):
    affine = np.array([[-1.0, 0, 0, 4], [0, -1.0, 0.01, 6], [0, 0, 2.5, -9], [0, 0, 0, 1]])
    image = nibabel.Nifti2Image(SCAN.T[..., None].astype(np.float32), affine)
    image.set_sform(affine, 2)
    image.set_qform(affine, 1)
    image.header.set_slope_inter(2.0, -1000.0)
    image.header["cal_max"] = 400
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"private"))
    image.to_filename(tmp_path / "a.nii.gz")
    save_mask(LESION, VolumeRef(path=str(tmp_path / "a.nii.gz")), tmp_path / "m.nii.gz")
    saved = nibabel.load(tmp_path / "m.nii.gz")
    assert isinstance(saved, nibabel.Nifti2Image)
    assert saved.shape == (6, 5, 4, 1)
    assert saved.get_data_dtype() == np.uint8
    assert set(np.unique(saved.get_fdata())) == {0, 1}
    for form in ("qform", "sform"):
        np.testing.assert_allclose(
            getattr(saved, f"get_{form}")(), getattr(image, f"get_{form}")(), atol=1e-6
        )
        assert saved.header[f"{form}_code"] == image.header[f"{form}_code"]
    assert saved.header["cal_max"] == 0
    assert b"private" not in saved.to_bytes()


def test_arrays_and_pictures_get_a_mask_that_reads_back(tmp_path):
    np.save(tmp_path / "a.npy", SCAN[::-1])
    ref = VolumeRef(path=str(tmp_path / "a.npy"), axes="IPL", spacing_mm_zyx=(3.0, 2.0, 1.0))
    save_mask(LESION, ref, tmp_path / "m.nii.gz")
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / "m.nii.gz")), read(ref)), LESION)
    Image.fromarray(SCAN[0].astype(np.uint8)).save(tmp_path / "p.png")
    ref = VolumeRef(path=str(tmp_path / "p.png"), intensity="arbitrary")
    mask = SCAN[:1] > 20
    save_mask(mask, ref, tmp_path / "p.nii.gz")
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / "p.nii.gz")), read(ref)), mask)


def test_a_mask_keeps_the_spacing_that_the_file_states(write, tmp_path):
    path = write(SCAN)
    ref = VolumeRef(path=str(path), spacing_mm_zyx=(1.0, 1.0, 1.0))
    save_mask(LESION, ref, tmp_path / "m.nii.gz")
    np.testing.assert_array_equal(nibabel.load(tmp_path / "m.nii.gz").affine, nibabel.load(path).affine)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / "m.nii.gz")), read(ref)), LESION)


def test_a_mask_of_a_leaning_scan_lies_on_its_leaning_grid(tmp_path):
    shear = np.array([[-1.0, 0, 0, 4], [0, -1.0, -0.8, 6], [0, 0, 2.5, -9], [0, 0, 0, 1]])
    path = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((20, 24, 22), np.int16), shear), path)
    ref = VolumeRef(path=str(path), tilted="resample")
    volume = read(ref)
    mask = np.zeros(volume.shape_zyx, bool)
    mask[6:14, 12:20, 5:15] = True
    save_mask(mask, ref, tmp_path / "m.nii.gz")
    saved = nibabel.load(tmp_path / "m.nii.gz")
    np.testing.assert_allclose(saved.affine, shear, atol=1e-6)
    # second opinion: the centre of mass in mm, by each grid's own affine
    x, y, z = np.argwhere(np.asarray(saved.dataobj)).mean(axis=0)
    right, front, up, _ = saved.affine @ [x, y, z, 1]
    place = volume.affine @ [*np.argwhere(mask).mean(axis=0), 1]
    np.testing.assert_allclose([up, -front, -right], place[:3], atol=0.3)
    back = read_mask(MaskRef(path=str(tmp_path / "m.nii.gz")), volume)
    assert 2 * (back & mask).sum() / (back.sum() + mask.sum()) > 0.9


def odd(change=(), spacing=(0.8, 0.8, 3.0), turn=0.0, axes=(0, 1, 2), signs=(-1, -1, 1)):
    """Return an affine whose columns are turned about z, permuted, mirrored, and then changed."""
    angle = np.radians(turn)
    turned = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = (turned * signs)[:, axes] * spacing
    affine[:3, 3] = [12.5, -7.25, 30]
    for row, column, amount in change:
        affine[row, column] += amount
    return affine


ROUNDED = [(0, 1, 0.0032), (1, 0, 0.0024)]
ODD = {  # an affine (x, y, z), and the codes of qform and sform
    "rounded": (odd(ROUNDED), 0, 1), "rounded, with a qform": (odd(ROUNDED), 1, 1),
    "rounded, of a template": (odd(ROUNDED), 0, 4), "oblique": (odd(turn=20), 0, 2),
    "oblique, qform alone": (odd(turn=20), 1, 0), "mirrored": (odd(signs=(1, -1, 1)), 0, 1),
    "mirrored, rounded": (odd(ROUNDED, signs=(-1, 1, -1)), 0, 1),
    "sub-millimetre": (odd([(0, 1, 0.0002)], spacing=(0.04, 0.05, 0.06)), 0, 1),
    "axes exchanged": (odd([(0, 1, 0.003)], axes=(2, 0, 1), turn=3), 0, 1),
    "slices first, mirrored": (odd(axes=(2, 1, 0), signs=(1, 1, 1)), 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("saves", ["mask", "volume"])
def test_saved_over_an_odd_grid_it_opens_in_itk_and_nibabel_with_the_same_voxels(tmp_path, name, saves):
    affine, q_code, s_code = ODD[name]
    image = nibabel.Nifti1Image(np.arange(24 * 20 * 12, dtype=np.int16).reshape(24, 20, 12), affine)
    image.set_qform(affine if q_code else None, q_code)
    image.set_sform(affine if s_code else None, s_code)
    nibabel.save(image, tmp_path / "a.nii.gz")
    ref, path = VolumeRef(path=str(tmp_path / "a.nii.gz"), tilted="resample"), tmp_path / "m.nii.gz"
    volume = read(ref)
    values = volume.array > np.median(volume.array) if saves == "mask" else volume.array
    save_mask(values, ref, path) if saves == "mask" else save_volume(volume, path)
    saved, itk = nibabel.load(path), SimpleITK.ReadImage(str(path))
    assert itk.GetSize() == saved.shape
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(itk).T, np.asarray(saved.dataobj))
    if saves == "mask":
        np.testing.assert_allclose(saved.affine, affine, atol=1e-5)
    steps = nibabel.affines.voxel_sizes(saved.affine)
    np.testing.assert_allclose(itk.GetSpacing(), steps, rtol=1e-4)
    ends = [(x, y, z) for x in (0, saved.shape[0] - 1) for y in (0, saved.shape[1] - 1) for z in (0, 11)]
    ends = [end for end in ends if end[2] < saved.shape[2]]
    places = [np.multiply(itk.TransformIndexToPhysicalPoint(end), [-1, -1, 1]) for end in ends]
    apart = places - nibabel.affines.apply_affine(saved.affine, ends)
    assert np.abs(apart).max() < 0.2 * max(steps)  # ITK holds no rounded axes: it takes the nearest rotation


def test_a_slice_and_a_sheared_scan_are_saved_as_they_lie(tmp_path):
    geometry = Geometry(shape_zyx=(1, 5, 6), affine=np.diag([3.0, 2.0, 1.0, 1.0]))
    volume = Volume(array=SCAN.reshape(-1, 5, 6)[:1], geometry=geometry, intensity="hu")
    save_volume(volume, tmp_path / "s.nii.gz")
    itk = SimpleITK.ReadImage(str(tmp_path / "s.nii.gz"))
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(itk), volume.array)
    assert itk.GetSpacing() == pytest.approx((1, 2, 3))
    sheared = odd([(1, 2, 0.4)])
    image = nibabel.Nifti1Image(np.zeros((24, 20, 12), np.int16), sheared)
    image.set_qform(None, 0)
    nibabel.save(image, tmp_path / "a.nii.gz")
    ref = VolumeRef(path=str(tmp_path / "a.nii.gz"), tilted="resample")
    save_mask(np.zeros(read(ref).shape_zyx, bool), ref, tmp_path / "m.nii.gz")
    assert nibabel.load(tmp_path / "m.nii.gz").header["qform_code"] == 0  # it would lie elsewhere by degrees


def test_what_cannot_be_saved_is_refused(write, tmp_path):
    ref = VolumeRef(path=str(write(SCAN)))
    for mask, name, said in (
        (LESION, "m.nrrd", "m.nrrd: masks are saved as NIfTI. End the name in .nii.gz"),
        (LESION.T, "m.nii", "is boolean with shape (4, 5, 6) (z, y, x), got bool with shape (6, 5, 4)"),
        (LESION.astype(np.uint8), "m.nii", "got uint8 with shape (4, 5, 6). Make it on the grid"),
    ):
        with pytest.raises(DataError, match=re.escape(said)):
            save_mask(mask, ref, tmp_path / name)
        assert not (tmp_path / name).exists()
