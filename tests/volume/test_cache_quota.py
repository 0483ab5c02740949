from __future__ import annotations

import os
import shutil
import time

import pytest

from evidcore.errors import RunError
from evidcore.volume.cache_quota import ABANDONED_S, MOST_BYTES, CacheQuota, limit_bytes


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
