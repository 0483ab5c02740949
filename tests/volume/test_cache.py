from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from evidcore.case import VolumeRef
from evidcore.errors import RunError
from evidcore.volume import save_mask
from evidcore.volume.cache import (
    ABANDONED_S,
    MOST_BYTES,
    CacheQuota,
    cache_root,
    fetch,
    limit_bytes,
    naming_full_disk,
    store,
    write_atomically,
)
from evidcore.volume.cached_volume import open_array, write_array


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


@pytest.fixture(autouse=True)
def limit(monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "1e-6")  # 1000 bytes


def entry(path, size_bytes, used_s):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size_bytes))
    os.utime(path, (used_s, used_s))
    return path


def test_the_longest_unused_leave_first_in_all_folders(tmp_path):
    old = entry(tmp_path / "b" / "old", 400, 10.0)
    middle = entry(tmp_path / "a" / "middle", 300, 20.0)
    new = entry(tmp_path / "a" / "new", 200, 30.0)
    quota = CacheQuota(tmp_path / "a", tmp_path / "b")
    assert quota.reserve(100), "exactly full"
    assert old.exists()
    entry(tmp_path / "a" / "taken", 100, 40.0)
    assert quota.reserve(200)
    assert [path.exists() for path in (old, middle, new)] == [False, True, True]


def test_what_is_larger_than_the_limit_drives_nothing_out(tmp_path):
    old = entry(tmp_path / "a" / "old", 400, 10.0)
    assert not CacheQuota(tmp_path / "a").reserve(1001)
    assert old.exists()


def test_what_was_used_since_stays_and_the_new_one_finds_no_room(tmp_path):
    before, since = entry(tmp_path / "a" / "x", 300, 10.0), entry(tmp_path / "a" / "y", 600, 30.0)
    quota = CacheQuota(tmp_path / "a")
    assert not quota.reserve(500, spared_since_s=20.0)
    assert (before.exists(), since.exists()) == (False, True)
    assert quota.reserve(300, spared_since_s=20.0)


def test_entries_of_other_processes_are_seen_in_time(tmp_path):
    quota = CacheQuota(tmp_path / "a")
    assert quota.reserve(100)
    other = entry(tmp_path / "a" / "other", 900, 10.0)
    assert quota.reserve(40)  # more than 5 % of the limit was written unseen: it looks
    assert quota.reserve(60), "the folder is looked at before it is said to be full"
    assert quota.reserve(500)
    assert not other.exists()


def test_an_entry_in_use_stays_readable(tmp_path):
    with entry(tmp_path / "a" / "old", 900, 10.0).open("rb") as file:
        assert CacheQuota(tmp_path / "a").reserve(500)
        assert not (tmp_path / "a" / "old").exists()
        assert len(file.read()) == 900


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path):
    now = time.time()
    left = entry(tmp_path / "a" / ".entry.x1", 100, now - ABANDONED_S - 60)
    fresh = entry(tmp_path / "a" / ".entry.x2", 100, now)
    CacheQuota(tmp_path / "a").reserve(1)
    assert (left.exists(), fresh.exists()) == (False, True)


def test_the_limit_is_50_gb_or_half_of_the_free_disk(tmp_path, monkeypatch):
    monkeypatch.delenv("EVID_CACHE_GB")
    free = shutil.disk_usage(tmp_path).free
    assert limit_bytes(tmp_path / "not" / "there", 0) == pytest.approx(min(MOST_BYTES, free / 2), rel=0.05)


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_size_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv("EVID_CACHE_GB", text)
    with pytest.raises(RunError, match=f"EVID_CACHE_GB: must be a size in GB, 0 or more, got '{text}'"):
        CacheQuota(tmp_path).reserve(1)
