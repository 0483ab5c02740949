"""Gzip to bytes, 2.5 times as fast as Python's own."""

from __future__ import annotations

import zlib

from isal import igzip
from isal.isal_zlib import error as isal_error


def gunzip(content: bytes) -> bytes:
    """Unpack a gzip file; lengths and checksums of all its members are verified.

    Raises:
        EOFError: if it ends too early.
        gzip.BadGzipFile: if it is none, or a checksum fails.
        zlib.error: if it is damaged.
    """
    try:
        unpacked: bytes = igzip.decompress(content)  # type: ignore[no-untyped-call]
    except isal_error as cause:  # type: ignore[misc]  # its stub names the class as if it were an exception
        raise zlib.error(str(cause)) from cause
    return unpacked
