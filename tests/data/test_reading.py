import errno
import os
import resource

import numpy as np
import psutil
import pytest
from PIL import Image

from evidcore.api import Cache, DataError, MaskRef, VolumeRef, read, read_mask
from evidcore.data import reading
from evidcore.data.reading import read_error


def test_a_verdict_is_remembered_for_the_state_of_the_file(write, tmp_path, zeroed):
    ref = VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16), "a.nii")))
    assert read_error(ref, tmp_path / "cache") is None
    zeroed(ref.path)
    assert read_error(ref, tmp_path / "cache") is None, "same size and time: not read again"
    os.utime(ref.path, ns=(1, 1))
    assert read_error(ref, tmp_path / "cache") is not None


def test_a_header_is_read_once_for_each_state_of_the_file(write, monkeypatch):
    asked, opened = [], reading.opened
    monkeypatch.setattr(reading, "opened", lambda ref: asked.append(ref) or opened(ref))
    ref = VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16), "a.nii")))
    [shape] = {reading.read_geometry(ref).shape_zyx for _ in range(3)}
    write(np.zeros((4, 5, 7), np.int16), "a.nii")
    assert reading.read_geometry(ref).shape_zyx != shape
    assert len(asked) == 2


def test_a_fault_of_the_disk_is_asked_again(write, tmp_path, read_meanwhile):
    ref = VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16))))

    def fail():
        raise OSError(errno.ESTALE, "Stale file handle", ref.path)

    with read_meanwhile(ref.path, fail):
        assert "Stale file handle" in (read_error(ref, tmp_path / "cache") or "")
    assert read_error(ref, tmp_path / "cache") is None


@pytest.mark.parametrize("free_bytes", [100_000_000, 400_000_000])  # while it is loaded, and afterwards
def test_what_unpacks_to_more_than_memory_holds_is_refused_by_name_and_asked_again(
    write, tmp_path, free_bytes
):
    small = read(VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16), "small.nii"))))
    ref = VolumeRef(path=str(write(np.zeros((600, 600, 600), np.uint8))))  # a packed file of 0.2 MB
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        limit = psutil.Process().memory_info().vms + free_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        assert "is too large for the memory that is left" in (read_error(ref, tmp_path / "cache") or "")
        with pytest.raises(DataError, match="is too large for the memory that is left"):
            read_mask(MaskRef(path=ref.path), small)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert read_error(ref, tmp_path / "cache") is None


def test_nothing_is_remembered_of_files_that_cannot_be_listed(write, tmp_path):
    ref = VolumeRef(path=str(tmp_path / "scan.nii"))
    assert "there is no such file" in (read_error(ref, tmp_path / "cache") or "")
    assert not (tmp_path / "cache").exists()
    write(np.zeros((4, 5, 6), np.int16), "scan.nii")
    assert read_error(ref, tmp_path / "cache") is None


@pytest.mark.parametrize("name", ["a.nii.gz", "a.png"])
def test_a_fault_of_the_content_is_remembered(write, tmp_path, name):
    path = tmp_path / name
    if name == "a.png":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:2000])
    else:
        write(np.zeros((4, 5, 6), np.int16), name)
        content = bytearray(path.read_bytes())
        content[-6] ^= 1  # the checksum
        path.write_bytes(content)
    ref = VolumeRef(path=str(path), intensity="arbitrary")
    reason = read_error(ref, tmp_path / "cache")
    assert reason is not None
    (entry,) = (tmp_path / "cache" / "usable").glob("[!C]*")
    assert Cache("usable", tmp_path / "cache").get(entry.name) == reason.encode()
