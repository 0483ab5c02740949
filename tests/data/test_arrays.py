import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from evidcore.api import MaskRef, VolumeRef, read, read_mask
from evidcore.data import read_geometry

SHAPE = (4, 5, 6)


def scan(dtype=np.int16) -> np.ndarray:
    return np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(dtype)


def ref(path: Path, **options: object) -> VolumeRef:
    return VolumeRef(path=str(path), **{"axes": "SPL", "spacing_mm_zyx": (3.0, 2.0, 1.0)} | options)


@pytest.mark.parametrize(
    ("axes", "turn"),
    [
        ("SPL", lambda array: array),
        ("IPL", lambda array: array[::-1]),
        ("LPS", lambda array: array.transpose(2, 1, 0)),
        ("RAS", lambda array: array[:, ::-1, ::-1].transpose(2, 1, 0)),
        ("PSR", lambda array: array[:, :, ::-1].transpose(1, 0, 2)),
    ],
)
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_an_array_is_turned_as_its_axes_say(tmp_path, axes, turn, name):
    path = tmp_path / name
    (np.save if name == "a.npy" else np.savez_compressed)(path, turn(scan()))
    volume = read(ref(path, axes=axes))
    np.testing.assert_array_equal(volume.array, scan())
    assert volume.spacing_mm_zyx == (3.0, 2.0, 1.0)
    assert read_geometry(ref(path, axes=axes)).fits(volume.geometry)


def test_leading_axes_of_one_are_dropped_and_fortran_order_is_read(tmp_path):
    for array in (scan(np.float64)[None, None], np.asfortranarray(scan(np.float64))):
        np.save(tmp_path / "a.npy", array)
        volume = read(ref(tmp_path / "a.npy"))
        np.testing.assert_array_equal(volume.array, scan())
        assert volume.array.dtype == np.float32


def test_a_key_names_the_array_and_one_array_needs_none(tmp_path, refusal):
    np.savez(tmp_path / "a.npz", ct=scan(), other=scan() + 1)
    np.testing.assert_array_equal(read(ref(tmp_path / "a.npz", key="other")).array, scan() + 1)
    assert "holds no array 'othe'. Did you mean 'other'? It holds: ct, other. Name one as key" in refusal(
        ref(tmp_path / "a.npz", key="othe")
    )
    assert "holds no array None. It holds: ct, other" in refusal(ref(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", ct=scan())
    np.testing.assert_array_equal(read(ref(tmp_path / "b.npz")).array, scan())
    np.save(tmp_path / "c.npy", scan())
    assert "holds one array, key 'ct' names another" in refusal(ref(tmp_path / "c.npy", key="ct"))


@pytest.mark.parametrize(
    ("options", "shown"),
    [({"axes": None}, "does not say where it lies; axes must be given. Set for instance axes = 'SPL'"),
     ({"spacing_mm_zyx": None}, "spacing_mm_zyx must be given"),
     ({"axes": None, "spacing_mm_zyx": None}, "axes and spacing_mm_zyx must be given"),
     ({"axes": "SPX"}, "axes must name each body axis once, of L or R, P or A, S or I, got 'SPX'"),
     ({"axes": "SIL"}, "got 'SIL'. Write for instance 'SPL'"),
     ({"axes": "SPLL"}, "got 'SPLL'")],
)  # fmt: skip
def test_what_the_array_does_not_say_must_be_given(tmp_path, options, shown, refusal):
    np.save(tmp_path / "a.npy", scan())
    assert shown in refusal(ref(tmp_path / "a.npy", **options))


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (np.zeros((5, 6)), "the array has shape 5x6, expected 3 axes after leading ones of length 1"),
        (np.zeros((2, 4, 5, 6)), "the array has shape 2x4x5x6, expected 3 axes"),
        (np.zeros((1, 5, 6)), "is a 2D image, shape 1x5x6"),
        (np.zeros((0, 5, 6)), "holds no voxels, shape 0x5x6"),
        (np.zeros(SHAPE, complex), "voxels are complex128, expected one real number each"),
        (np.full(SHAPE, "x"), "voxels are <U1, expected one real number each"),
        (np.full(SHAPE, np.nan), "120 of 120 voxels are NaN or infinite"),
    ],
)
def test_an_array_that_is_no_volume_is_refused(tmp_path, array, shown, refusal):
    np.save(tmp_path / "a.npy", array)
    assert shown in refusal(ref(tmp_path / "a.npy"))


def test_broken_files_are_named(tmp_path, refusal):
    for name in ("a.npy", "a.npz"):
        (tmp_path / name).write_bytes(b"no array")
        assert f"is not a readable .{name[2:]} file (" in refusal(ref(tmp_path / name))
    np.save(tmp_path / "cut.npy", scan())
    content = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(content[:-10])
    assert "cut.npy: is not a readable .npy file (" in refusal(ref(tmp_path / "cut.npy"))
    for packed, said in {
        zipfile.ZIP_BZIP2: "ct.npy is packed by another method",
        8: "a readable .npz",
    }.items():
        with zipfile.ZipFile(tmp_path / "lies.npz", "w", packed) as archive:
            archive.writestr("ct.npy", b"\x93NUMPY\2\0" + b"\xff" * 4 + bytes(1 << 27))
            archive.filelist[0].file_size = 1 << 27
        tracemalloc.start()
        assert said in refusal(ref(tmp_path / "lies.npz"))
        assert tracemalloc.get_traced_memory()[1] < 1e7
        tracemalloc.stop()
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}] * 8, dtype=object).reshape(2, 2, 2))
    assert "voxels are object, expected one real number each" in refusal(ref(tmp_path / "pickled.npy"))


def test_real_arrays_are_read_with_what_they_do_not_say(real_data):
    for path in sorted((real_data / "medsam2").glob("*.npz")):
        with np.load(path) as held:
            spacing, images, masks = held["spacing"], held["imgs"], held["gts"]
        x, y, z = (float(step) for step in spacing)
        volume = read(ref(path, key="imgs", intensity="arbitrary", spacing_mm_zyx=(z, y, x)))
        np.testing.assert_array_equal(volume.array, images)
        np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), key="gts"), volume), masks > 0)
