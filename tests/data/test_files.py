"""Which format reads a path, which files stand behind it, and what is said where none does."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evidcore.api import DataError, Format, MaskRef, VolumeRef, read, read_mask
from evidcore.data import FileGrid, Stored, content_hash, stem
from evidcore.data.arrays import BareArray
from evidcore.data.content import volume_key
from evidcore.data.files import file_state, files_of, format_of, reader_mark
from evidcore.data.nifti import Nifti
from evidcore.data.pictures import Picture
from evidcore.data.stored import CHECK_PATH, unreadable
from evidcore.errors import ContractError, PluginError

SCAN = np.arange(120, dtype=np.int16).reshape(4, 5, 6)


def test_a_format_is_found_by_the_longest_ending_that_one_has(tmp_path):
    arrays, scans = {"a.npz": BareArray, "a.nii.npy": BareArray}, {"a.NII.GZ": Nifti, "a.b.nii": Nifti}
    for name, kind in {**arrays, **scans, "a.JPEG": Picture}.items():
        (tmp_path / name).write_bytes(b"x")
        assert type(format_of(str(tmp_path / name))) is kind
    assert format_of(str(tmp_path / "a.NII.GZ")) is format_of(str(tmp_path / "a.NII.GZ")), "built once"
    assert [stem(name) for name in ("a/b.c.nii.gz", "b.NPY", "b.foo", "b")] == ["b.c", "b", "b.foo", "b"]


def test_a_file_that_is_whole_stands_alone(write):
    path = write(SCAN)
    assert files_of(str(path)) == [path]
    before = file_state(str(path))
    assert before is not None
    os.utime(path, ns=(1, 1))
    assert file_state(str(path)) != before
    assert file_state(str(path.with_name("gone.nii"))) is None


def test_a_format_that_is_not_read_is_named_with_those_that_are(tmp_path):
    (tmp_path / "a.mhb").write_bytes(b"x" * 500)
    for ask in (format_of, files_of, content_hash):
        with pytest.raises(DataError) as caught:
            ask(str(tmp_path / "a.mhb"))
        message = str(caught.value)
        assert message.startswith(f"{tmp_path}/a.mhb: is no format that is read, its ending is '.mhb'")
        assert ".jpeg, .jpg" in message
        assert ".nii, .nii.gz" in message
        assert ".npy, .npz" in message


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.png", "a.npz", "a.dcm", "a.nrrd", "series/a.dcm"])
@pytest.mark.parametrize(
    ("content", "said"),
    [(b"version https://git-lfs", "is a pointer of git-lfs, not the file. Type `git lfs pull`"),
     (b"\n<!DOCTYPE html><p>Log in", "is an HTML page, not the file. Download it again")],
)  # fmt: skip
def test_what_a_download_left_in_place_of_a_file_is_named(write, tmp_path, name, content, said):
    path, like = tmp_path / name, read(VolumeRef(path=str(write(SCAN))))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    asked = str(path.parent if "/" in name else path)
    for ask in (lambda: read(VolumeRef(path=asked)), lambda: read_mask(MaskRef(path=asked), like)):
        with pytest.raises(DataError, match=f"^{path}: {said}"):
            ask()


def test_a_folder_named_like_a_file_is_taken_for_what_it_is(tmp_path):
    (tmp_path / "a.nii.gz" / "inside").mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"a\.nii\.gz: is a folder that no format recognises\. It holds the folders inside\."
    ):
        read(VolumeRef(path=str(tmp_path / "a.nii.gz")))


def test_a_format_of_a_package_that_is_not_installed_is_named_with_the_command(tmp_path):
    # in a process of its own, whose path holds no package but the core and the one that knows them all
    (tmp_path / "a.nrrd").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    done = subprocess.run([sys.executable, "-c", ALONE, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    named, folder = done.stdout.splitlines()
    assert named == (
        f"PluginError {tmp_path}/a.nrrd: no installed package reads .nrrd files. It comes with "
        f"`pip install evidcore-plugin-dicom`."
    )
    assert folder.startswith(f"DataError {tmp_path}/folder: is a folder that no format recognises.")
    assert folder.endswith("`pip install evidcore-plugin-dicom` reads .dcm, .nhdr, .nrrd.")


ALONE = """
import sys
from importlib import metadata
everything = metadata.distributions
here = ("evidcore", "evidcore-plugin-hub")
metadata.distributions = lambda: (one for one in everything() if one.metadata["Name"] in here)
from evidcore.errors import EvidError
from evidcore.data.files import format_of
for name in ("a.nrrd", "folder"):
    try:
        format_of(f"{sys.argv[1]}/{name}")
    except EvidError as error:
        print(type(error).__name__, error)
"""


class Ones(Format):
    """Every file is 4 x 5 x 6 ones."""

    takes = frozenset({"key"})

    def recognises(self, path):
        return Path(path).is_dir() and (Path(path) / "ones").exists()

    def open(self, ref):
        if ref.key == "fail":
            raise KeyError("no ones")
        grid = FileGrid(shape=(4, 5, 6), affine=np.eye(4))
        return Stored(grid=grid, load=lambda: {"": np.ones(grid.shape, np.int16)}[ref.key or ""])


def test_a_format_of_another_package_reads_its_ending_and_its_folders(offered, tmp_path):
    offered("evid-ones", "[evidcore.format]\nones.x = evid_ones:Ones\n", "2.5", Ones=Ones)
    (tmp_path / "a.ONES.X").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "ones").touch()
    for name in ("a.ONES.X", "folder"):
        ref = VolumeRef(path=str(tmp_path / name))
        assert read(ref).array.sum() == 120
        mask = read_mask(MaskRef(path=ref.path, label=1), read(ref))
        assert mask.all()
    assert reader_mark(str(tmp_path / "folder")) == ["evid-ones 2.5"]
    with pytest.raises(DataError, match=r"a\.ONES\.X: axes 'SPL' cannot be given for a \.ones\.x file"):
        read(VolumeRef(path=str(tmp_path / "a.ONES.X"), axes="SPL"))


def test_what_was_read_by_another_version_of_a_format_is_read_again(offered, tmp_path):
    (tmp_path / "a.ones1").write_bytes(b"x")
    ref = VolumeRef(path=str(tmp_path / "a.ones1"))
    offered("evid-ones-one", "[evidcore.format]\nones1 = evid_ones_one:Ones\n", "1.0", Ones=Ones)
    before = volume_key(ref)
    (tmp_path / "evid_ones_one-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: evid-ones-one\nVersion: 1.1\n"
    )
    os.utime(tmp_path, ns=(1, 1))  # as an installation changes the time of its folder
    assert volume_key(ref) != before


def test_a_format_that_fails_is_blamed_and_not_the_file(offered, tmp_path):
    offered("evid-ones-failing", "[evidcore.format]\nones2 = evid_ones_failing:Ones\n", Ones=Ones)
    (tmp_path / "a.ones2").write_bytes(b"x")
    for key, doing in (("fail", "opening"), ("gone", "loading")):
        with pytest.raises(
            ContractError,
            match=rf"format 'ones2' from evid-ones-failing 1\.0 failed while {doing} .*a\.ones2: KeyError",
        ):
            read(VolumeRef(path=str(tmp_path / "a.ones2"), key=key))


def test_two_packages_that_read_one_ending_or_one_folder_are_both_named(offered, tmp_path):
    class Others(Ones):
        pass

    offered("evid-ones-a", "[evidcore.format]\nones3 = evid_ones_a:Ones\n", Ones=Ones)
    offered("evid-ones-b", "[evidcore.format]\nones3 = evid_ones_b:Others\n", Others=Others)
    (tmp_path / "a.ones3").write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "ones").touch()
    for name in ("a.ones3", "folder"):
        with pytest.raises(PluginError) as caught:
            format_of(str(tmp_path / name))
        assert str(caught.value) == (
            f"{tmp_path / name}: is read by 2 installed formats: evid-ones-a 1.0 (format 'ones3') and "
            f"evid-ones-b 1.0 (format 'ones3'). Uninstall one of them."
        )


def test_a_broken_package_hides_no_format_and_is_named_where_it_might_have_helped(offered, write, tmp_path):
    offered("evid-ones-broken", "[evidcore.format]\nones4 = evid_ones_broken:Missing\n")
    np.testing.assert_array_equal(read(VolumeRef(path=str(write(SCAN)))).array, SCAN)
    (tmp_path / "IM1").write_bytes(b"x" * 200)
    with pytest.raises(DataError, match=r"IM1: is no format that is read.* evid-ones-broken 1\.0 could not"):
        format_of(str(tmp_path / "IM1"))
    (tmp_path / "a.ones4").write_bytes(b"x")
    with pytest.raises(PluginError, match=r"format 'ones4' from evid-ones-broken 1\.0 could not be imported"):
        format_of(str(tmp_path / "a.ones4"))


@pytest.mark.parametrize("name", ["a" * 300 + ".nii", "a" * 300])
def test_a_path_that_the_system_refuses_is_named(tmp_path, name):
    for ask in (format_of, files_of, content_hash):
        with pytest.raises(
            DataError, match=r"a: cannot be read \(File name too long\)|nii: cannot be read \("
        ):
            ask(str(tmp_path / name))
    assert file_state(str(tmp_path / name)) is None


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        ("Jose\u0301/a.nii", "Jos\xe9/a.nii"),
        ("Jos\xe9/a.nii", "Jose\u0301/a.nii"),
        ("set/Scan.NII", "Set/scan.nii"),
    ],
)
def test_a_name_in_another_spelling_is_told_with_the_remedy(tmp_path, there, asked):
    found, path, link = tmp_path / there, tmp_path / asked, tmp_path / "a.nii"
    found.parent.mkdir()
    found.touch()
    link.symlink_to("nowhere")
    with pytest.raises(DataError) as caught:
        format_of(str(path))
    told = f"{path}: there is no such file. {found} is there: its name differs in letter case or Unicode form"
    assert str(caught.value) == f"{told}. Write it so, or rename it."
    assert str(unreadable(link)) == f"{link}: there is no such file. {CHECK_PATH}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
@pytest.mark.parametrize("ending", ["nii", "nii.gz", "npy", "npz", "png"])
def test_a_file_without_rights_is_named(write, tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    write(SCAN).rename(path)  # of whatever content
    path.chmod(0)
    bare = {"axes": "SPL", "spacing_mm_zyx": (1.0, 1.0, 1.0)} if ending in {"npy", "npz"} else {}
    ref = VolumeRef(path=str(path), intensity="arbitrary", **bare)
    for ask in (read, volume_key):
        with pytest.raises(DataError, match=f"a.{ending}: .*Permission denied"):
            ask(ref)
    path.chmod(0o700)
