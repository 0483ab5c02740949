from __future__ import annotations

import os

import numpy as np

from evidcore.case import VolumeRef
from evidcore.volume.usable import why_unusable


def test_a_good_file_has_nothing_against_it_and_a_bad_one_its_reason(write, tmp_path):
    ref = VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16))))
    assert why_unusable(ref, tmp_path / "cache") is None
    content = (tmp_path / "scan.nii.gz").read_bytes()
    (tmp_path / "scan.nii.gz").write_bytes(content[:-9])
    reason = why_unusable(ref, tmp_path / "cache")
    assert reason is not None
    assert "the gzip stream ends too early" in reason


def test_a_verdict_is_remembered_for_the_state_of_the_file(write, tmp_path):
    ref = VolumeRef(path=str(write(np.zeros((4, 5, 6), np.int16), "a.nii")))
    assert why_unusable(ref, tmp_path / "cache") is None
    facts = os.stat(ref.path)
    (tmp_path / "a.nii").write_bytes(bytes(facts.st_size))
    os.utime(ref.path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert why_unusable(ref, tmp_path / "cache") is None, "same size and time: not read again"
    os.utime(ref.path, ns=(1, 1))
    assert why_unusable(ref, tmp_path / "cache") is not None
