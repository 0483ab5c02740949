import os
import re
import tomllib
import tracemalloc
from pathlib import Path

import nrrd
import numpy as np
import pytest
import SimpleITK
from read_scans import SHAPE, assert_placed, scan

from evidcore.api import DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import read_geometry
from evidcore.data.files import files_of

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

DIRECTIONS = np.diag([1.0, 2.0, 3.0])
HEADER = {"space": "left-posterior-superior", "space directions": DIRECTIONS, "space origin": [10, 20, 30]}


def write(path: Path, array_xyz: np.ndarray, **header: object) -> Path:
    fields = {name: value for name, value in (HEADER | header).items() if value is not None}
    nrrd.write(str(path), array_xyz, fields)
    return path


def test_axes_and_spacing_take_the_place_of_a_header_that_states_no_orientation(tmp_path):
    array = np.arange(120, dtype=np.int16).reshape(4, 5, 6)  # runs down, forward, left
    nrrd.write(str(tmp_path / "scan.nrrd"), array)
    with pytest.raises(DataError, match="states no orientation"):
        read(VolumeRef(path=str(tmp_path / "scan.nrrd")))
    ref = VolumeRef(path=str(tmp_path / "scan.nrrd"), axes="IAL", spacing_mm_zyx=(3.0, 2.0, 1.0))
    volume = read(ref)
    np.testing.assert_array_equal(volume.array, array[::-1, ::-1])
    assert volume.spacing_mm_zyx == (3.0, 2.0, 1.0)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(VolumeRef(path=str(path)))
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2", "ascii"])
@pytest.mark.parametrize("name", ["scan.nrrd", "scan.nhdr"])
def test_every_encoding_is_read(tmp_path, encoding, name):
    path = write(tmp_path / name, scan().T, encoding=encoding)
    volume = read(VolumeRef(path=str(path)))
    np.testing.assert_array_equal(volume.array, scan())
    assert volume.array.dtype == np.int16
    assert volume.spacing_mm_zyx == (3.0, 2.0, 1.0)
    np.testing.assert_array_equal(volume.affine[:3, 3], [30, 20, 10])
    assert read_geometry(VolumeRef(path=str(path))).fits(volume.geometry)


@pytest.mark.parametrize(
    ("space", "senses"),
    [("left-posterior-superior", (1, 1, 1)), ("LPS", (1, 1, 1)), ("left-anterior-superior", (1, -1, 1)),
     ("right-anterior-superior", (-1, -1, 1)), ("RAS", (-1, -1, 1))],
)  # fmt: skip
def test_the_same_scan_in_any_space_is_the_same_volume(tmp_path, space, senses):
    directions, origin = DIRECTIONS * senses, np.array([10, 20, 30]) * senses
    path = write(
        tmp_path / "a.nrrd",
        scan().T,
        **{"space": space, "space directions": directions, "space origin": origin},
    )
    volume = read(VolumeRef(path=str(path)))
    np.testing.assert_array_equal(volume.array, scan())
    np.testing.assert_allclose(volume.affine, [[3, 0, 0, 30], [0, 2, 0, 20], [0, 0, 1, 10], [0, 0, 0, 1]])


def test_axes_that_are_permuted_and_flipped_are_turned(tmp_path):
    # file axes run to superior, right, posterior
    directions = np.array([[0, 0, 3.0], [-1.0, 0, 0], [0, 2.0, 0]])
    stored = scan().transpose(0, 2, 1)[:, ::-1]
    path = write(tmp_path / "a.nrrd", stored, **{"space directions": directions, "space origin": [5, 0, 0]})
    volume = read(VolumeRef(path=str(path)))
    np.testing.assert_array_equal(volume.array, scan())
    assert_placed(volume, SimpleITK.ReadImage(str(path)))


def test_an_axis_of_one_without_direction_is_dropped(tmp_path):
    directions = np.vstack([np.full(3, np.nan), DIRECTIONS])
    path = write(tmp_path / "a.nrrd", scan().T[None], **{"space directions": directions})
    np.testing.assert_array_equal(read(VolumeRef(path=str(path))).array, scan())
    path = write(tmp_path / "b.nrrd", np.stack([scan().T] * 3), **{"space directions": directions})
    assert "expected 3. Split a series in time, echoes, or layers of masks that overlap, into" in refusal(
        path
    )
    assert "is a 2D image, shape 6x5x1" in refusal(write(tmp_path / "c.nrrd", scan().T[:, :, :1]))


@pytest.mark.parametrize(
    ("header", "shown"),
    [({"space": None, "space directions": None, "space origin": None}, "states no orientation (no"),
     ({"space": "scanner-xyz"}, "states no orientation (space 'scanner-xyz'), so left and right are"),
     ({"space": "left-posterior-superio"}, "Did you mean 'left-posterior-superior'? Expected space"),
     ({"space directions": None}, "states no orientation (no space directions)"),
     ({"space units": ["um", "um", "um"]}, "its space units are ['um', 'um', 'um'], expected mm"),
     ({"space directions": np.diag([1.0, 0, 1])}, "spacings above 0 mm, got spacings [1.0, 0.0, 1.0]"),
     ({"space directions": np.array([[1, 0, 0], [1, 0, 0], [0, 0, 1.0]])},
      "the voxel axes lie in one plane, directions [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]")],
)  # fmt: skip
def test_a_header_that_does_not_do_is_refused_with_its_value(tmp_path, header, shown):
    assert shown in refusal(write(tmp_path / "a.nrrd", scan().T, **header))


@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2", "ascii"])
def test_a_file_that_is_cut_off_is_named(tmp_path, encoding):
    path = write(tmp_path / "a.nrrd", scan().T, encoding=encoding)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 40])
    assert "its voxels cannot be read (" in refusal(path)


@pytest.mark.parametrize("encoding", ["gzip", "bzip2"])
@pytest.mark.parametrize("name", ["a.nrrd", "a.nhdr"])
def test_more_than_the_header_states_is_not_unpacked(tmp_path, encoding, name):
    path = write(tmp_path / name, np.zeros((400, 400, 400), np.int16), encoding=encoding)  # 128 MB
    path.write_bytes(path.read_bytes().replace(b"sizes: 400 400 400", b"sizes: 4 5 6"))
    tracemalloc.start()
    assert "unpacks to more than the 240 bytes that its header states. Copy or convert" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2", "ascii"])
@pytest.mark.parametrize("name", ["a.nrrd", "a.nhdr"])
def test_a_sparse_file_is_not_read(tmp_path, encoding, name):
    path = write(tmp_path / name, scan().T, encoding=encoding)
    os.truncate(files_of(str(path))[-1], 1 << 28)
    tracemalloc.start()
    assert "states 240 bytes of voxels, their file has 268435456 bytes. Copy or convert" in refusal(path)
    path.write_text("NRRD0004\n# ")
    os.truncate(path, 1 << 28)
    assert "has no usable NRRD header (" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_damage_and_other_content_are_named(tmp_path):
    path = write(tmp_path / "a.nrrd", scan().T)
    content = path.read_bytes()
    for other, said in (
        (content[:-30] + bytes([content[-30] ^ 16]) + content[-29:], "its voxels cannot be read ("),
        (b"no NRRD file at all\n", "has no usable NRRD header (Invalid NRRD magic line"),
        (b"NRRD0004\ntype: short\n\n", "has no usable NRRD header ("),
    ):
        path.write_bytes(other)
        assert said in refusal(path)


def test_the_voxels_of_a_detached_header_are_named_where_they_are_missing(tmp_path):
    path = write(tmp_path / "a.nhdr", scan().T, encoding="raw")
    (voxels,) = set(tmp_path.iterdir()) - {path}
    assert files_of(str(path)) == [path, voxels]
    voxels.write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(DataError, match=f"{voxels}: is a pointer of git-lfs"):
        read(VolumeRef(path=str(path)))
    voxels.unlink()
    assert f"its voxels should lie in {voxels}: there is no such file" in refusal(path)
    path.write_text(path.read_text().replace(voxels.name, "slice%03d.raw 1 4 1"))
    assert "its voxels lie in several files, data file 'slice%03d.raw 1 4 1'; one is read" in refusal(path)


@pytest.mark.parametrize("encoding", ["raw", "gzip"])
def test_a_header_names_voxels_in_its_own_folder_alone(tmp_path, encoding):
    (tmp_path / "scans/sub").mkdir(parents=True)
    path = write(tmp_path / "scans/a.nhdr", scan().T, encoding=encoding)
    (voxels,) = set(path.parent.glob("a.*")) - {path}
    text = path.read_text()
    path.write_text(text.replace(voxels.name, f"./sub/{voxels.name}"))
    inner = voxels.rename(path.parent / "sub" / voxels.name)
    np.testing.assert_array_equal(read(VolumeRef(path=str(path))).array, scan())
    inner.rename(tmp_path / voxels.name)
    for outer in (str(tmp_path / voxels.name), f"../{voxels.name}", f"sub/../../{voxels.name}"):
        path.write_text(text.replace(voxels.name, f"a.raw\ndatafile: {outer}"))  # which pynrrd reads first
        assert f"its header names {outer!r}, outside its own folder. Put the voxels beside" in refusal(path)


def test_a_segment_of_3d_slicer_is_picked_by_its_name(tmp_path):
    volume = read(VolumeRef(path=str(write(tmp_path / "scan.nrrd", scan().T))))
    labels = np.zeros(SHAPE, np.uint8)
    labels[1, 1, 1:3], labels[2, 2, 2] = 4, 7
    names = {"Segment0_Name": "liver", "Segment0_LabelValue": "4"}
    names |= {"Segment1_Name": "large tumour", "Segment1_LabelValue": "7"}
    path = write(tmp_path / "scan.seg.nrrd", labels.T, **names)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), key="liver"), volume), labels == 4)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), key="large tumour"), volume), labels == 7)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path)), volume), labels > 0)
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(path), label=7), volume), labels == 7)
    with pytest.raises(DataError, match=r"key 'liver' and label 7 both pick a segment\. Give one\."):
        read_mask(MaskRef(path=str(path), key="liver", label=7), volume)
    with pytest.raises(DataError, match=r"no segment 'large'\..*It holds: 4 'liver', 7 'large tumour'"):
        read_mask(MaskRef(path=str(path), key="large"), volume)
    for value in ("one", "", "1.0", "9" * 5000):
        path = write(tmp_path / "odd.seg.nrrd", labels.T, **names | {"Segment1_LabelValue": value})
        with pytest.raises(DataError, match=r"odd.*: a value of its header is missing or of another type"):
            read_mask(MaskRef(path=str(path), key="liver"), volume)
    path = write(tmp_path / "twice.seg.nrrd", labels.T, **names | {"Segment1_Name": "liver"})
    with pytest.raises(DataError, match=r"2 segments are called 'liver'\..* Name one by its number"):
        read_mask(MaskRef(path=str(path), key="liver"), volume)
    layers = {"space directions": np.vstack([np.full(3, np.nan), DIRECTIONS])}  # of segments that overlap
    path = write(tmp_path / "layers.seg.nrrd", np.stack([labels.T] * 2), **names | layers)
    with pytest.raises(DataError, match=r"4 axes, shape .* or layers of masks that overlap, into one file"):
        read_mask(MaskRef(path=str(path), key="liver"), volume)


def test_real_files_are_those_of_simpleitk(real_data):
    files = [*(real_data / "pyradiomics").glob("*.nrrd"), real_data / "chest_imaging_platform/ct-64.nrrd"]
    assert len(files) > 5
    for path in files:
        volume = read(VolumeRef(path=str(path), intensity="arbitrary"))
        image = SimpleITK.DICOMOrient(SimpleITK.ReadImage(str(path)), "LPS")
        np.testing.assert_array_equal(volume.array, SimpleITK.GetArrayFromImage(image))
        np.testing.assert_allclose(volume.affine[:3, 3], image.GetOrigin()[::-1], atol=1e-5)
        np.testing.assert_allclose(volume.spacing_mm_zyx, image.GetSpacing()[::-1], atol=1e-6)


@pytest.mark.parametrize(("field", "value", "says"), TABLE["numbers"])
def test_numbers_that_are_none_and_sizes_beyond_memory_are_named(tmp_path, field, value, says):
    path = write(tmp_path / "scan.nrrd", scan().T)
    path.write_bytes(
        re.sub(rf"{field}: .*".encode(), f"{field}: {value}".encode(), path.read_bytes(), count=1)
    )
    assert says in refusal(path)
