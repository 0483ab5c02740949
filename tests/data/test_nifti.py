from __future__ import annotations

import gzip
import re
import subprocess
import sys
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import read_geometry
from evidcore.data.nifti import gunzip


def scan(shape=(4, 5, 6), dtype=np.int16) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def refusal(path: Path | str) -> str:
    with pytest.raises(DataError) as caught:
        read(VolumeRef(path=str(path)))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message


def save(path: Path, array_xyz: np.ndarray, affine: np.ndarray, **header: object) -> Path:
    image = nibabel.Nifti1Image(array_xyz, affine)
    for key, value in header.items():
        image.header[key] = value
    nibabel.save(image, path)
    return path


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.permutations(["LR", "PA", "SI"]),
    flips=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    spacing=st.tuples(*[st.floats(0.3, 8.0)] * 3),
    shape=st.tuples(*[st.integers(2, 6)] * 3),
    name=st.sampled_from(["scan.nii", "scan.nii.gz"]),
)
def test_any_orientation_of_a_file_gives_the_same_volume(write, pairs, flips, spacing, shape, name):
    axes = "".join(pair[int(flip)] for pair, flip in zip(pairs, flips, strict=True))
    array = scan(shape)
    volume = read(VolumeRef(path=str(write(array, name, spacing, axes))))
    np.testing.assert_array_equal(volume.array, array)
    np.testing.assert_allclose(volume.spacing_mm_zyx, spacing, rtol=1e-5)
    np.testing.assert_allclose(volume.affine, np.diag([*spacing, 1.0]), rtol=1e-5, atol=1e-4)


def test_a_voxel_lies_where_nibabel_says(tmp_path):
    # second opinion: nibabel's own affine, on a file whose axes are permuted and flipped
    affine = np.array([[0, 0, 2.0, -30.0], [-1.5, 0, 0, 40.0], [0, 4.0, 0, -7.0], [0, 0, 0, 1]])
    path = save(tmp_path / "a.nii.gz", scan((5, 3, 4)), affine)
    volume, image = read(VolumeRef(path=str(path))), nibabel.load(path)
    for index_xyz in np.ndindex(image.shape):
        right, front, up, _ = image.affine @ [*index_xyz, 1]
        inverse = np.linalg.inv(volume.affine) @ [up, -front, -right, 1]
        z, y, x = np.round(inverse[:3]).astype(int)
        assert volume.array[z, y, x] == np.asarray(image.dataobj)[index_xyz]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (1.0, -1024.0), (2.5, -1000.0), (0.0, 7.0)])
def test_slope_and_intercept_are_applied_once(tmp_path, dtype, slope, intercept):
    stored = scan(dtype=dtype) % 200
    path = tmp_path / "a.nii"
    header = nibabel.Nifti1Header()
    header.set_data_dtype(dtype)
    header.set_data_shape(stored.T.shape)
    header.set_sform(np.diag([-1.0, -1.0, 1.0, 1.0]), 1)
    header["scl_slope"], header["scl_inter"], header["vox_offset"] = slope, intercept, 352
    path.write_bytes(header.binaryblock + bytes(4) + stored.T.tobytes("F"))
    volume = read(VolumeRef(path=str(path)))
    np.testing.assert_allclose(volume.array, nibabel.load(path).get_fdata().T)
    expected = stored if slope == 0 else stored * slope + intercept  # NIfTI: slope 0 means no scaling
    np.testing.assert_allclose(volume.array, expected)


@pytest.mark.parametrize(
    ("dtype", "held"),
    [(np.uint8, "int16"), (np.int16, "int16"), (np.int32, "int16"), (np.float64, "float32")],
)
def test_whole_numbers_that_fit_stay_int16(write, dtype, held):
    assert read(VolumeRef(path=str(write(scan(dtype=dtype))))).array.dtype == held


def test_whole_numbers_that_do_not_fit_become_float32(write):
    volume = read(VolumeRef(path=str(write(scan(dtype=np.int32) * 1000))))
    assert volume.array.dtype == np.float32
    assert volume.array.max() == 119_000


def test_a_trailing_axis_of_one_is_dropped(tmp_path):
    path = save(tmp_path / "a.nii.gz", scan((4, 5, 6, 1)), np.eye(4))
    assert read(VolumeRef(path=str(path))).shape_zyx == (6, 5, 4)


def test_nifti_2_and_big_endian_files_are_read(tmp_path):
    affine = np.diag([-1.0, -1.0, 1.0, 1.0])
    nibabel.save(nibabel.Nifti2Image(scan(), affine), tmp_path / "two.nii.gz")
    big = nibabel.Nifti1Image(scan(), affine, nibabel.Nifti1Header(endianness=">"))
    big.to_filename(tmp_path / "big.nii.gz")
    for name in ("two.nii.gz", "big.nii.gz"):
        ref = VolumeRef(path=str(tmp_path / name))
        np.testing.assert_array_equal(read(ref).array, scan().T)
        assert read_geometry(ref).shape_zyx == (6, 5, 4)


def test_the_array_cannot_be_written_to(write):
    with pytest.raises(ValueError, match="read-only"):
        read(VolumeRef(path=str(write(scan())))).array[0, 0, 0] = 1


def test_a_slight_tilt_is_read_and_kept_in_the_affine(tmp_path):
    tilt = np.radians(0.5)
    turn = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    affine = nibabel.affines.from_matvec(turn * [2.0, 2.0, 3.0])
    volume = read(VolumeRef(path=str(save(tmp_path / "a.nii.gz", scan(), affine))))
    np.testing.assert_allclose(volume.spacing_mm_zyx, (3.0, 2.0, 2.0), rtol=1e-5)
    assert abs(volume.affine[0, 1]) > 0.01


@pytest.mark.slow
def test_a_reader_is_imported_for_its_format_and_torch_for_none(write):
    code = (
        "import sys; from evidcore import api as data; from evidcore.case import VolumeRef; "
        "data.read(VolumeRef(path=sys.argv[1])); "
        "assert not {'torch', 'nrrd', 'evidcore_plugin_dicom'} & sys.modules.keys(); data.prepare"
    )
    subprocess.run([sys.executable, "-c", code, write(scan())], check=True)


# --- what is refused ------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    assert "there is no such file. Check the path" in refusal(tmp_path / "gone.nii.gz")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "a.nii.gz").touch()
    assert "the file is empty, 0 bytes" in refusal(tmp_path / "a.nii.gz")


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_truncated_gzip_is_refused(write, share):
    path = write(np.random.default_rng(0).normal(size=(10, 20, 30)).astype(np.float32))
    content = path.read_bytes()
    kept = int(len(content) * share)
    path.write_bytes(content[:kept])
    assert f"the gzip stream ends too early, after {kept} bytes. Copy or convert" in refusal(path)


def test_a_flipped_bit_is_refused(write):
    path = write(np.random.default_rng(0).normal(size=(10, 20, 30)).astype(np.float32))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    assert "the gzip stream is damaged (" in refusal(path)


def test_an_unpacked_file_that_is_cut_off_is_refused(write):
    path = write(scan(), "a.nii")
    path.write_bytes(path.read_bytes()[:-10])
    assert "holds 230 bytes of voxels, its header promises 240: the file is cut off" in refusal(path)


def test_a_file_of_other_content_is_refused(tmp_path):
    (tmp_path / "a.nii").write_bytes(b"not a volume " * 100)
    assert "has no usable NIfTI header (" in refusal(tmp_path / "a.nii")
    (tmp_path / "b.nii").write_bytes(b"short")
    assert "has no usable NIfTI header (" in refusal(tmp_path / "b.nii")


def test_a_name_that_belies_the_packing_is_refused(write):
    path = write(scan())
    plain = path.rename(path.with_name("b.nii"))
    assert "is named .nii but gzip-compressed. Rename it to b.nii.gz" in refusal(plain)
    packed = plain.with_name("c.nii.gz")
    packed.write_bytes(gzip.decompress(plain.read_bytes()))
    assert "is named .gz but not gzip-compressed. Rename it to c.nii." in refusal(packed)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((8, 9), "is a 2D image, shape 8x9; a volume has at least 2 voxels"),
        ((8, 9, 1), "is a 2D image, shape 8x9x1;"),
        ((1, 8, 9), "is a 2D image, shape 1x8x9;"),
        ((4, 5, 6, 7), "has 4 axes, shape 4x5x6x7; expected 3. Split a series"),
        ((4, 0, 6), "holds no voxels, shape 4x0x6"),
    ],
)
def test_a_shape_that_is_no_volume_is_refused(tmp_path, shape, said):
    assert said in refusal(save(tmp_path / "a.nii.gz", scan(shape), np.eye(4)))


def test_a_qform_that_is_no_rotation_is_refused(tmp_path):
    path = save(tmp_path / "a.nii", scan(), np.eye(4))
    header = nibabel.Nifti1Header(path.read_bytes()[:348])
    header["sform_code"], header["qform_code"] = 0, 1
    header["quatern_b"] = header["quatern_c"] = 1.0
    path.write_bytes(header.binaryblock + path.read_bytes()[348:])
    assert "its qform is no rotation (" in refusal(path)


def test_spacings_in_another_unit_are_refused(tmp_path):
    image = nibabel.Nifti1Image(scan(), np.eye(4))
    image.header.set_xyzt_units("meter")
    image.to_filename(tmp_path / "a.nii")
    assert "spacings are in meter, expected mm: [1.0, 1.0, 1.0]. Write the file again" in refusal(
        tmp_path / "a.nii"
    )


def test_long_extensions_of_the_header_do_not_matter(tmp_path):
    image = nibabel.Nifti1Image(scan(), np.eye(4))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"x" * 5000))
    image.to_filename(tmp_path / "a.nii.gz")
    ref = VolumeRef(path=str(tmp_path / "a.nii.gz"))
    assert read_geometry(ref).fits(read(ref).geometry)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_voxels_that_are_no_numbers_are_counted_and_placed(write, bad):
    array = scan(dtype=np.float32)
    array[1, 2, 3] = array[3, 0, 0] = bad
    message = refusal(write(array))
    assert "2 of 120 voxels are NaN or infinite, the first at z=1, y=2, x=3. Replace them" in message


def test_values_beyond_float32_are_refused(write):
    array = scan(dtype=np.float64)
    array[0, 0, 0] = 1e300
    assert "1 of 120 voxels are NaN or infinite" in refusal(write(array))


def test_colours_and_complex_numbers_are_refused(tmp_path):
    path = save(tmp_path / "a.nii.gz", scan().astype(np.complex64), np.eye(4))
    assert "voxels are complex64, expected one real number each" in refusal(path)
    rgb = np.zeros((4, 5, 6), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert "expected one real number each" in refusal(save(tmp_path / "b.nii.gz", rgb, np.eye(4)))


@pytest.mark.parametrize("read_what", [read, read_geometry])
def test_oblique_and_sheared_axes_are_refused_by_name(tmp_path, read_what):
    tilt = np.radians(9.0)
    turn = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    path = save(tmp_path / "a.nii.gz", scan(), nibabel.affines.from_matvec(turn))
    with pytest.raises(DataError, match=r"axes are oblique, 9\.0° off the body axes; at most 1° is read"):
        read_what(VolumeRef(path=str(path)))
    shear = np.eye(4)
    shear[1, 2] = np.tan(np.radians(12.0))  # a tilted gantry
    path = save(tmp_path / "b.nii.gz", scan(), shear, qform_code=0)
    with pytest.raises(DataError, match=r"axes are sheared, 12\.0° off .*tilted = 'resample'"):
        read_what(VolumeRef(path=str(path)))


def test_a_file_without_orientation_is_refused(tmp_path):
    path = save(tmp_path / "a.nii.gz", scan(), np.eye(4))
    image = nibabel.load(path)
    image.set_sform(None, 0)
    image.set_qform(None, 0)
    nibabel.save(image, path)
    assert "qform_code and sform_code are 0), so left and right are unknown. Set it with nibabel" in refusal(
        path
    )


def test_two_orientations_that_contradict_are_refused(tmp_path):
    path = tmp_path / "a.nii.gz"
    image = nibabel.Nifti1Image(scan(), np.eye(4))
    image.set_sform(np.diag([-1.0, 1.0, 1.0, 1.0]), 1)
    image.set_qform(np.eye(4), 1)
    image.to_filename(path)
    assert "contradicts itself: qform runs to RAS, sform to LAS" in refusal(path)


def test_a_broken_affine_is_refused(tmp_path):
    affine = np.diag([1.0, 0.0, 2.0, 1.0])
    path = save(tmp_path / "a.nii.gz", scan(), np.eye(4))
    content = bytearray(gzip.decompress(path.read_bytes()))
    header = nibabel.Nifti1Header(bytes(content[:348]))
    header["srow_y"] = affine[1]
    path.write_bytes(gzip.compress(header.binaryblock + bytes(content[348:])))
    assert re.search(r"spacings above 0 mm, got spacings \[1\.0, 0\.0, 1\.0\]", refusal(path))


@pytest.mark.parametrize("row", [[0, 0, 0, 0], [np.nan] * 4])
def test_a_broken_sform_beside_a_qform_is_refused(tmp_path, row):
    image = nibabel.Nifti1Image(scan(), np.eye(4))
    image.set_qform(np.eye(4), 1)
    image.header["sform_code"] = 1
    for name in ("srow_x", "srow_y", "srow_z"):
        image.header[name] = row
    path = tmp_path / "a.nii"
    path.write_bytes(image.header.binaryblock + bytes(4) + scan().tobytes(order="F"))
    assert "the affine must be finite with spacings above 0 mm, got spacings [" in refusal(path)


# --- real scans -----------------------------------------------------------------------------------


def test_the_liver_lies_on_the_right_in_a_real_scan(real_data):
    # LIVER 5 and SPLEEN 1 in the label map of the same scan; both are looked up in body axes
    folder = real_data / "totalsegmentator"
    labels = read(VolumeRef(path=str(folder / "example_seg_fast_force_split.nii.gz"))).array
    scan_ = read(VolumeRef(path=str(folder / "example_ct.nii.gz")))
    assert labels.shape == scan_.array.shape
    liver, spleen = (np.argwhere(labels == label) for label in (5, 1))
    assert len(liver) > 1000
    assert len(spleen) > 100
    assert liver[:, 2].mean() < spleen[:, 2].mean() - 20  # x runs to the patient's left
    assert 20 < scan_.array[labels == 5].mean() < 200  # HU of liver, so volume and labels lie alike


def test_vertebrae_lie_behind_the_aorta_and_the_lungs_above_the_bladder(real_data):
    folder = real_data / "totalsegmentator"
    labels = read(VolumeRef(path=str(folder / "example_seg_fast_force_split.nii.gz"))).array
    centre = {label: np.argwhere(labels == label).mean(axis=0) for label in (14, 21, 28, 52)}
    right_lung, bladder, vertebra, aorta = (centre[label] for label in (14, 21, 28, 52))
    assert vertebra[1] > aorta[1]  # y runs to posterior
    assert right_lung[0] > bladder[0] + 50  # z runs to superior
    assert right_lung[2] < vertebra[2]


def test_real_scans_stored_in_body_axes_come_out_as_stored(real_data):
    for path in sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz")):
        volume, image = read(VolumeRef(path=str(path))), nibabel.load(path)
        assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")
        np.testing.assert_array_equal(volume.array, image.get_fdata(dtype=np.float32).T)


def test_a_mask_marks_soft_tissue_in_real_scans(real_data):
    for folder in sorted((real_data / "ibsi_validation").glob("STS_*")):
        volume = read(VolumeRef(path=str(folder / "CT_image.nii.gz")))
        mask = read_mask(MaskRef(path=str(folder / "CT_mask.nii.gz")), volume)
        assert mask.any()
        assert -150 < float(np.median(volume.array[mask])) < 150


def test_a_real_tilted_scan_is_refused(real_data):
    with pytest.raises(DataError, match=r"CT_pitch\.nii\.gz: the voxel axes are oblique, 16\.5° off"):
        read(VolumeRef(path=str(real_data / "niivue_images" / "CT_pitch.nii.gz")))


# --- gzip -----------------------------------------------------------------------------------------

PLAIN = np.random.default_rng(0).integers(0, 50, 40_000).astype(np.int16).tobytes()
PACKED = gzip.compress(PLAIN)


def test_it_unpacks_what_gzip_packed_all_members_of_it():
    assert gunzip(PACKED) == PLAIN
    assert gunzip(PACKED + gzip.compress(b"more")) == PLAIN + b"more"


@pytest.mark.parametrize(
    "content",
    [
        PACKED[:-9],
        PACKED[: len(PACKED) // 2],
        PACKED[:3],
        b"x" + PACKED,
        PACKED[:-8] + b"12345678",
        PACKED[:500] + b"\xff" * 60 + PACKED[560:],
    ],
    ids=["end missing", "half", "three bytes", "no gzip", "checksum", "damaged"],
)
def test_what_gzip_refuses_is_refused_in_the_same_way(content):
    with pytest.raises((EOFError, gzip.BadGzipFile, zlib.error)) as theirs:
        gzip.decompress(content)
    with pytest.raises(theirs.type):
        gunzip(content)
