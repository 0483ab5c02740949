from __future__ import annotations

import gzip
import zlib

import numpy as np
import pytest

from evidcore.volume.gunzip import gunzip

PLAIN = np.random.default_rng(0).integers(0, 50, 40_000).astype(np.int16).tobytes()
PACKED = gzip.compress(PLAIN)


def test_it_unpacks_what_gzip_packed_all_members_of_it():
    assert gunzip(PACKED) == PLAIN
    assert gunzip(PACKED + gzip.compress(b"more")) == PLAIN + b"more"


@pytest.mark.parametrize(
    "content",
    [
        PACKED[:-9],
        PACKED[: len(PACKED) // 2],
        PACKED[:3],
        b"x" + PACKED,
        PACKED[:-8] + b"12345678",
        PACKED[:500] + b"\xff" * 60 + PACKED[560:],
    ],
    ids=["end missing", "half", "three bytes", "no gzip", "checksum", "damaged"],
)
def test_what_gzip_refuses_is_refused_in_the_same_way(content):
    with pytest.raises((EOFError, gzip.BadGzipFile, zlib.error)) as theirs:
        gzip.decompress(content)
    with pytest.raises(theirs.type):
        gunzip(content)
