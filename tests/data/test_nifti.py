import gzip
import os
import subprocess
import sys
import tomllib
import tracemalloc
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evidcore.api import DataError, VolumeRef, read
from evidcore.data import read_geometry

NOISE = np.random.default_rng(0).normal(size=(10, 20, 30)).astype(np.float32)


def scan(shape=(4, 5, 6), dtype=np.int16) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def save(path: Path, array_xyz: np.ndarray, affine: np.ndarray, **header: object) -> Path:
    image = nibabel.Nifti1Image(array_xyz, affine)
    for key, value in header.items():
        image.header[key] = value
    nibabel.save(image, path)
    return path


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.permutations(["LR", "PA", "SI"]), flips=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    spacing=st.tuples(*[st.floats(0.3, 8.0)] * 3), shape=st.tuples(*[st.integers(2, 6)] * 3),
    name=st.sampled_from(["scan.nii", "scan.nii.gz"]),
)  # fmt: skip
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
@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (2.5, -1000.0), (0.0, 7.0), (np.nan, np.nan)])
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
    expected = stored * slope + intercept if abs(slope) > 0 else stored  # 0 means no scaling, as NaN does
    np.testing.assert_allclose(volume.array, expected)


def turned(degrees: float) -> np.ndarray:
    """Return a turn about x."""
    angle = np.radians(degrees)
    return np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])


def test_a_slight_tilt_is_read_and_kept_in_the_affine(tmp_path):
    affine = nibabel.affines.from_matvec(turned(0.5) * [2.0, 2.0, 3.0])
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


@pytest.mark.parametrize(
    ("array", "held"),
    [
        (scan(dtype=np.uint8), "int16"), (scan(dtype=np.int16), "int16"), (scan(dtype=np.int32), "int16"),
        (scan(dtype=np.int32) * 1000, "float32"), (scan(dtype=np.float64), "float32"),
    ],
)  # fmt: skip
def test_whole_numbers_that_fit_stay_int16_and_nobody_may_write_to_them(write, array, held):
    result = read(VolumeRef(path=str(write(array)))).array
    assert result.dtype == held
    np.testing.assert_array_equal(result, array)
    with pytest.raises(ValueError, match="read-only"):
        result[0, 0, 0] = 1


def test_nifti_2_big_endian_files_and_long_extensions_are_read(tmp_path):
    affine = np.diag([-1.0, -1.0, 1.0, 1.0])
    big = nibabel.Nifti1Image(scan(), affine, nibabel.Nifti1Header(endianness=">"))
    extended = nibabel.Nifti1Image(scan(), affine)
    extended.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"x" * 5000))
    series = nibabel.Nifti1Image(scan()[..., None], affine)  # of one volume
    for number, image in enumerate((nibabel.Nifti2Image(scan(), affine), big, extended, series)):
        image.to_filename(tmp_path / f"{number}.nii.gz")
        ref = VolumeRef(path=str(tmp_path / f"{number}.nii.gz"))
        np.testing.assert_array_equal(read(ref).array, scan().T)
        assert read_geometry(ref).fits(read(ref).geometry)


# --- what is refused ------------------------------------------------------------------------------


def spoiled(change, array, name: str = "scan.nii.gz"):
    """Write an array whose file's content is changed."""

    def make(write, folder):
        path = write(array, name)
        path.write_bytes(change(path.read_bytes()))
        return path

    return make


def written(array):
    return lambda write, folder: write(array)


def stored(array):
    return lambda write, folder: save(folder / "a.nii", array, np.eye(4))


def flipped(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def with_header(**header: object):
    """Write a file whose header says something of its own; nibabel itself would mend it or refuse."""

    def make(write, folder):
        image = nibabel.Nifti1Image(scan(), np.eye(4))
        image.set_qform(np.eye(4), 1)
        usual = {"sform_code": 1, "scl_slope": 1, "scl_inter": 0, "vox_offset": 352}
        for key, value in {**usual, **header}.items():
            image.header[key] = value
        (folder / "a.nii").write_bytes(image.header.binaryblock + bytes(4) + scan().tobytes(order="F"))
        return folder / "a.nii"

    return make


def with_voxel(value: float, *places: tuple[int, int, int], dtype=np.float32) -> np.ndarray:
    array = scan(dtype=dtype)
    for place in places:
        array[place] = value
    return array


def beyond(folder, x, y):
    header = nibabel.Nifti2Header()
    header.set_data_dtype(np.int16)
    header["dim"], header["sform_code"] = [3, x, y, 2, 1, 1, 1, 1], 1
    with gzip.open(folder / "a.nii.gz", "wb") as file:
        file.write(header.binaryblock + bytes(2000))
    return folder / "a.nii.gz"


ODD = [(1, 2, 3), (3, 0, 0)]
RGB = np.zeros((4, 5, 6), [("R", "u1"), ("G", "u1"), ("B", "u1")])
ENDED = "the gzip stream ends too early (Compressed file ended before the end-of-stream marker was"
NO_NUMBERS = "2 of 120 voxels are NaN or infinite, the first at z=1, y=2, x=3. Replace them"
HEADERS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MADE = {  # what writes the file, and what is said of it
    "missing": (lambda write, folder: folder / "gone.nii.gz", "there is no such file. Check the path"),
    "empty": (spoiled(lambda _: b"", scan()), "the file is empty, 0 bytes"),
    "cut": (spoiled(lambda all_: all_[:500], NOISE), ENDED),
    "cut late": (spoiled(lambda all_: all_[:9000], NOISE), ENDED),
    "cut at its end": (spoiled(lambda all_: all_[:-9], NOISE), ENDED),
    "checksum": (spoiled(lambda all_: all_[:-8] + b"12345678", NOISE), "the gzip stream is damaged ("),
    "a bit": (spoiled(flipped, NOISE), "the gzip stream is damaged ("),
    "cut, unpacked": (
        spoiled(lambda all_: all_[:-10], scan(), "a.nii"),
        "holds 230 bytes of voxels, its header promises 240: the file is cut off",
    ),
    "other": (spoiled(lambda _: b"not a volume " * 100, scan()), "has no usable NIfTI header ("),
    "short": (spoiled(lambda _: b"short", scan(), "a.nii"), "has no usable NIfTI header ("),
    "packed": (
        lambda write, folder: write(scan()).rename(folder / "b.nii"),
        "is named .nii but gzip-compressed. Rename it to b.nii.gz",
    ),
    "unpacked": (spoiled(gzip.decompress, scan(), "c.nii.gz"), "not gzip-compressed. Rename it to c.nii."),
    "2D": (stored(scan((8, 9))), "is a 2D image, shape 8x9; a volume has at least 2 voxels"),
    "2D with an axis": (stored(scan((8, 9, 1))), "is a 2D image, shape 8x9x1;"),
    "2D along x": (stored(scan((1, 8, 9))), "is a 2D image, shape 1x8x9;"),
    "a series": (stored(scan((4, 5, 6, 7))), "has 4 axes, shape 4x5x6x7; expected 3. Split a series"),
    "no voxels": (stored(scan((4, 0, 6))), "holds no voxels, shape 4x0x6"),
    "NaN": (written(with_voxel(np.nan, *ODD)), NO_NUMBERS),
    "infinite": (written(with_voxel(-np.inf, *ODD)), NO_NUMBERS),
    "too large": (written(with_voxel(1e300, (0, 0, 0), dtype=np.float64)), "1 of 120 voxels are NaN or inf"),
    "complex": (stored(scan(dtype=np.complex64)), "voxels are complex64, expected one real number each"),
    "colours": (stored(RGB), "expected one real number each"),
    **{name: (with_header(**header), said) for name, (header, said) in HEADERS.items()},
    "beyond 64 bits": (
        lambda write, folder: beyond(folder, 2**40, 2**40),
        "its header states shape 1099511627776x1099511627776x2, 4.84e+15 GB of voxels; at most 4.3 GB",
    ),
    "6 GB": (lambda write, folder: beyond(folder, 2**16, 2**15), "65536x32768x2, 8.59 GB of voxels; at most"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_file_that_is_no_volume_is_refused(write, tmp_path, name, refusal):
    make, said = MADE[name]
    assert said in refusal(VolumeRef(path=str(make(write, tmp_path))))


def test_a_packed_file_is_not_unpacked_beyond_what_its_header_promises(write, refusal):
    path = write(scan())
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content + bytes(1 << 20)))  # some writers pad
    np.testing.assert_array_equal(read(VolumeRef(path=str(path))).array, scan())
    path.write_bytes(gzip.compress(content + bytes(300 << 20)))
    tracemalloc.start()
    said = refusal(VolumeRef(path=str(path)))
    assert "holds 1048817 bytes of voxels, its header promises 240: the file is not read further." in said
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_a_sparse_file_is_not_read_beyond_what_its_header_promises(write, refusal):
    plain, packed = write(scan(), "a.nii"), write(scan(), "b.nii.gz")
    for path in (plain, packed):
        os.truncate(path, 1 << 28)
    tracemalloc.start()
    said = refusal(VolumeRef(path=str(plain)))
    assert "holds 268435104 bytes of voxels, its header promises 240: the file is not read further." in said
    np.testing.assert_array_equal(read(VolumeRef(path=str(packed))).array, scan())  # zeros behind a stream
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_all_members_of_a_packed_file_are_unpacked(write):
    path = write(NOISE)
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:5000]) + gzip.compress(content[5000:]))
    np.testing.assert_array_equal(read(VolumeRef(path=str(path))).array, NOISE)


@pytest.mark.parametrize("code", ["sform_code", "qform_code"])
def test_two_statements_that_do_not_contradict_each_other_are_read(tmp_path, code):
    """A scan in two spaces, rounded numbers, a pixdim that nobody filled in."""
    fitting = [{"quatern_d": 0.05, code: 2}, {"srow_x": [1.004, 0.004, 0, 0]}]
    fitting.append({"qform_code": 0, "pixdim": [1, 0, 0, 0, 0, 0, 0, 0]})
    for header in fitting:
        read(VolumeRef(path=str(with_header(**header)(None, tmp_path)), tilted="resample"))
    resized = with_header(srow_x=[1.2, 0, 0, 0])(None, tmp_path)
    ref = VolumeRef(path=str(resized), spacing_mm_zyx=(1.0, 1.0, 1.2))  # the table says which is true
    assert read(ref).spacing_mm_zyx == pytest.approx((1.0, 1.0, 1.2))


@pytest.mark.parametrize("read_what", [read, read_geometry])
def test_oblique_and_sheared_axes_are_refused_by_name(tmp_path, read_what):
    path = save(tmp_path / "a.nii.gz", scan(), nibabel.affines.from_matvec(turned(9.0)))
    with pytest.raises(DataError, match=r"axes are oblique, 9\.0° off the body axes; at most 1° is read"):
        read_what(VolumeRef(path=str(path)))
    shear = np.eye(4)
    shear[1, 2] = np.tan(np.radians(12.0))  # a tilted gantry
    path = save(tmp_path / "b.nii.gz", scan(), shear, qform_code=0)
    with pytest.raises(DataError, match=r"axes are sheared, 12\.0° off .*tilted = 'resample'"):
        read_what(VolumeRef(path=str(path)))


# --- real scans -----------------------------------------------------------------------------------


def test_real_scans_stored_in_body_axes_come_out_as_stored(real_data):
    for path in sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz")):
        volume, image = read(VolumeRef(path=str(path))), nibabel.load(path)
        assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")
        np.testing.assert_array_equal(volume.array, image.get_fdata(dtype=np.float32).T)
