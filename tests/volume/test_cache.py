from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evidcore.case import VolumeRef
from evidcore.errors import RunError
from evidcore.volume import save_mask
from evidcore.volume.cache import cache_root, fetch, naming_full_disk, store, write_atomically
from evidcore.volume.cached_array import open_array, write_array


def test_the_environment_names_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"
    monkeypatch.delenv("EVID_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root().name == "evidcore"


def test_what_was_stored_comes_back_and_damage_does_not(tmp_path):
    entry = tmp_path / "deep" / "entry"
    assert fetch(entry) is None
    store(entry, b"content")
    assert fetch(entry) == b"content"
    for position in range(len(entry.read_bytes())):
        held = bytearray(entry.read_bytes())
        held[position] ^= 1
        (tmp_path / "damaged").write_bytes(held)
        assert fetch(tmp_path / "damaged") is None


def test_a_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path):
    write_atomically(tmp_path / "a", b"long content")
    write_atomically(tmp_path / "a", b"short")
    assert (tmp_path / "a").read_bytes() == b"short"
    assert os.listdir(tmp_path) == ["a"]


FULL = """
import sys
from pathlib import Path
from evidcore.errors import RunError
from evidcore.volume.cache import write_atomically
folder = Path(sys.argv[1])
write_atomically(folder / "kept", b"old")
try:
    write_atomically(folder / "kept", bytes(1 << 20))
except RunError as error:
    print(error)
print((folder / "kept").read_bytes(), sorted(path.name for path in folder.iterdir()))
"""


def test_a_full_disk_is_named_with_the_way_out(tmp_path):
    # a real full disk: 64 KiB of memory, mounted in a namespace of its own
    mount = f"mount -t tmpfs -o size=64k none {tmp_path}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    run = f"{mount} && exec {sys.executable} -c '{FULL}' {tmp_path}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", run], capture_output=True, text=True, check=True)
    assert f"{tmp_path}: the disk is full. Free space or rights there, or set EVID_CACHE" in done.stdout
    assert "b'old' ['kept']" in done.stdout, "the old file stays, no part of the new one does"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match=f"{tmp_path}: no permission to write here"):
        write_atomically(tmp_path / "a", b"")


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_others_may_read_what_the_umask_lets_them(tmp_path, umask, write):
    store(tmp_path / "a", b"")
    write_array(tmp_path / "b", np.zeros((2, 3), np.int16), {})
    ref = VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16))))
    save_mask(np.zeros((4, 5, 6), bool), ref, tmp_path / "m.nii")
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "b", "m.nii")} == {0o640}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_an_entry_that_may_not_be_read_is_made_again(tmp_path):
    store(tmp_path / "a", b"content")
    write_array(tmp_path / "b", np.zeros((2, 3), np.int16), {})
    for name in ("a", "b"):
        (tmp_path / name).chmod(0)
    assert fetch(tmp_path / "a") is None
    assert open_array(tmp_path / "b") is None


def test_a_caller_says_what_else_would_do(tmp_path):
    with (
        pytest.raises(
            RunError, match=r"the folder is read-only\. Free space or rights there, or save elsewhere\."
        ),
        naming_full_disk(tmp_path, or_else="save elsewhere"),
    ):
        raise OSError(errno.EROFS, "Read-only file system")
