import dataclasses
import hashlib
import os

import numpy as np
import pytest

from evidcore.api import Crop, EncoderInput, VolumeRef
from evidcore.cache import Cache, cache_folder
from evidcore.data import content, content_key, file_hash

SPEC = EncoderInput(size_zyx=(4, 5, 6), spacing_mm_zyx=None, windows=((-1000.0, 1000.0),))


@pytest.fixture
def shown(write) -> Crop:
    return Crop(volume=VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16)))))


def test_every_setting_changes_the_key(shown):
    variants = [
        (shown, SPEC),
        (dataclasses.replace(shown, box_zyx=(0, 2, 0, 5, 0, 6)), SPEC),
        (dataclasses.replace(shown, blank=True), SPEC),
        (shown, dataclasses.replace(SPEC, size_zyx=(4, 5, 7))),
        (shown, dataclasses.replace(SPEC, spacing_mm_zyx=(1.0, 1.0, 1.0))),
        (shown, dataclasses.replace(SPEC, windows=((-1000.0, 999.0),))),
        (shown, dataclasses.replace(SPEC, windows=())),
    ]
    keys = [content_key(*variant) for variant in variants]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**63 for key in keys)


def test_equal_pixels_have_one_key_whatever_the_path_and_how_they_are_asked_for(shown, tmp_path):
    other = tmp_path / "copy.nii.gz"
    other.write_bytes((tmp_path / "scan.nii.gz").read_bytes())
    key = content_key(shown, SPEC)
    assert key == content_key(Crop(volume=VolumeRef(path=str(other))), SPEC)
    assert key == content_key(shown, SPEC, (4, 5, 6)) != content_key(shown, SPEC, (1, 5, 6))
    blank = dataclasses.replace(shown, blank=True)
    gone = Crop(volume=VolumeRef(path="gone.nii.gz"), blank=True, box_zyx=(0, 1, 0, 1, 0, 1))
    assert content_key(blank, SPEC) == content_key(gone, SPEC)
    assert file_hash(other) == hashlib.blake2b(other.read_bytes(), digest_size=16).hexdigest()
    assert not cache_folder().exists()  # of small files


def test_a_large_file_s_hash_is_remembered_on_disk_and_checked(tmp_path, monkeypatch):
    path = tmp_path / "large.nii"
    path.write_bytes(bytes(content.REMEMBERED_BYTES))
    right = file_hash(path)
    (entry,) = (cache_folder() / "hashes").glob("[!C]*")
    content._known.clear()
    before = entry.stat().st_ino
    assert file_hash(path) == right
    assert entry.stat().st_ino == before, "a good entry is used, not written again"
    for damage in (b"", entry.read_bytes()[:-1], b"x" + entry.read_bytes()[1:]):
        content._known.clear()
        entry.write_bytes(damage)
        assert file_hash(path) == right
    facts = path.stat()
    path.write_bytes(b"x" * content.REMEMBERED_BYTES)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    while path.stat().st_ctime_ns == facts.st_ctime_ns:  # until the clock of the file system ticks
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert file_hash(path) != right, "of the same size and time"
    assert len(list((cache_folder() / "hashes").glob("[!C]*"))) == 2


def test_the_hash_of_an_entry_of_the_cache_is_remembered_while_it_is_used(tmp_path, monkeypatch):
    def used():
        return Cache("volumes").file("large", ".nii", lambda path: path.write_bytes(bytes(1 << 20)))

    before = file_hash(used()), used().stat().st_ctime_ns
    while used().stat().st_ctime_ns == before[1]:
        pass
    assert file_hash(used()) == before[0]
    assert len(list((cache_folder() / "hashes").glob("[!C]*"))) == 1
