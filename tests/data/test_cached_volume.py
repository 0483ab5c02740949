import dataclasses
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from evidcore.api import VolumeRef, read
from evidcore.cache import cache_folder
from evidcore.data import volume_cache
from evidcore.data.cached_volume import PERCENTILES, VolumeCache

VALUES = np.random.default_rng(0).integers(-1000, 2001, (12, 220, 200)).astype(np.int16)  # 1.06 MB


@pytest.fixture
def ref(write) -> VolumeRef:
    return VolumeRef(path=str(write(VALUES, "scan.nii")))


def entries() -> list[Path]:
    return sorted((cache_folder() / "volumes").glob("*.safetensors"))


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_a_kept_volume_is_the_one_that_was_read(write, dtype):
    values = VALUES / np.float32(4) if dtype == np.float32 else VALUES
    ref = VolumeRef(path=str(write(values, "s.nii", axes="RAS")))
    expected = read(ref)
    for _ in range(2):
        held = volume_cache.get_or_put(ref)
        assert held.is_on_disk
        result = held.volume()
        assert result.array.dtype == expected.array.dtype
        np.testing.assert_array_equal(result.array, expected.array)
        np.testing.assert_array_equal(result.affine, expected.affine)
        assert result.intensity == "hu"
    np.testing.assert_array_equal(held.slice(7), expected.array[7])
    np.testing.assert_array_equal(held.part((2, 5, 10, 20, 30, 31)), expected.array[2:5, 10:20, 30:31])


def test_what_the_values_span_is_on_disk_with_them(ref):
    before = volume_cache.percentile_ends(ref)
    volume_cache.get_or_put(ref)
    after = volume_cache.percentile_ends(ref)
    assert before == after
    flat = read(ref).array.reshape(-1)
    np.testing.assert_allclose(after, np.percentile(flat, PERCENTILES))


def test_a_slice_comes_without_the_file_and_without_the_other_slices(ref, damaged, zeroed):
    place = cache_folder() / "scan.nii"  # of an entry the time tells whether its hash holds
    place.parent.mkdir()
    ref = dataclasses.replace(ref, path=str(Path(ref.path).rename(place)))
    volume_cache.get_or_put(ref)
    (entry,) = entries()
    for z in (0, 11):
        damaged(entry, VALUES[z])
    zeroed(ref.path)
    np.testing.assert_array_equal(volume_cache.get_or_put(ref).slice(5), VALUES[5])


def test_a_damaged_slice_is_made_again_with_one_line(ref, caplog, damaged):
    volume_cache.get_or_put(ref)
    (entry,) = entries()
    damaged(entry, VALUES[3])
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(volume_cache.get_or_put(ref).slice(3), VALUES[3])
    assert [record.getMessage() for record in caplog.records] == [
        f"{entry}: slice 3 of 12 has another checksum; it is made again"
    ]
    caplog.clear()
    np.testing.assert_array_equal(volume_cache.get_or_put(ref).slice(3), VALUES[3])
    assert not caplog.records


def test_an_entry_goes_with_the_content_and_the_marks_and_not_with_the_path(ref, tmp_path):
    volume_cache.get_or_put(ref)
    copy = tmp_path / "copy.nii"
    copy.write_bytes(Path(ref.path).read_bytes())
    assert volume_cache.get(dataclasses.replace(ref, path=str(copy))) is not None
    assert volume_cache.get(dataclasses.replace(ref, intensity="arbitrary")) is None
    assert volume_cache.get(dataclasses.replace(ref, rescale=(2.0, 0.0))) is None


def test_a_changed_file_is_another_volume(ref, write):
    volume_cache.get_or_put(ref)
    write(VALUES + 1, "scan.nii")
    np.testing.assert_array_equal(volume_cache.get_or_put(ref).slice(0), VALUES[0] + 1)
    np.testing.assert_array_equal(volume_cache.read(ref).array, VALUES + 1)


@pytest.mark.parametrize(("depth", "room_gb"), [(4, "1"), (12, "0")], ids=["small", "without room"])
def test_what_is_not_kept_is_held_in_memory(write, monkeypatch, depth, room_gb):
    monkeypatch.setenv("EVID_CACHE_GB", room_gb)
    held = volume_cache.get_or_put(VolumeRef(path=str(write(VALUES[:depth], "scan.nii"))))
    np.testing.assert_array_equal(held.slice(2), VALUES[2])
    assert not held.is_on_disk
    assert entries() == []


def test_the_bound_holds_and_a_volume_in_use_is_not_broken(write, monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "0.0025")  # two of them
    first, second, third = (VolumeRef(path=str(write(VALUES + n, f"{n}.nii"))) for n in range(3))
    volume_cache.get_or_put(first)
    (entry,) = entries()
    held = volume_cache.get_or_put(second)
    os.utime(next(path for path in entries() if path != entry), (1, 1))
    volume_cache.get_or_put(third)
    assert [volume_cache.get(ref) is not None for ref in (first, second, third)] == [True, False, True]
    np.testing.assert_array_equal(held.slice(9), VALUES[9] + 1)


@pytest.mark.parametrize("ask", [VolumeCache.read, lambda own, ref: own.get_or_put(ref).volume()])
def test_a_file_that_is_replaced_while_it_is_read_is_not_kept_as_the_next(ref, write, read_meanwhile, ask):
    own = VolumeCache()  # no other test has put anything into its memory
    with read_meanwhile(ref.path, lambda: write(VALUES + 1, "scan.nii")):
        np.testing.assert_array_equal(ask(own, ref).array, VALUES)
    assert entries() == []
    np.testing.assert_array_equal(ask(own, ref).array, VALUES + 1)
