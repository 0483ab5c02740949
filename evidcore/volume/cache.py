"""The cache folder: atomic, checked files that may be deleted at any time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from evidcore.errors import RunError

DIGEST_BYTES = 16
OTHER_CACHE = "set EVID_CACHE to another folder"


def cache_root() -> Path:
    """Return the folder for everything that can be made again: EVID_CACHE, else the user's cache folder."""
    named = os.environ.get("EVID_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("evidcore", appauthor=False))


@contextlib.contextmanager
def naming_full_disk(folder: Path, *, or_else: str = OTHER_CACHE) -> Iterator[None]:
    """Turn a full disk or an unwritable folder into an error that names the folder and what to do.

    Args:
        folder: what is written to.
        or_else: what else helps than space or rights there.
    """
    try:
        yield
    except OSError as cause:
        reasons = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EROFS: "the folder is read-only",
            errno.EACCES: "no permission to write here",
        }
        if cause.errno not in reasons:
            raise
        raise RunError(
            f"{folder}: {reasons[cause.errno]}. Free space or rights there, or {or_else}."
        ) from cause


def write_atomically(path: Path, content: bytes, *, or_else: str = OTHER_CACHE) -> None:
    """Write a file so that readers see the old one or the new one, never a part.

    Raises:
        RunError: if the disk is full or may not be written to; `or_else` says what else helps.
    """
    with naming_full_disk(path.parent, or_else=or_else):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` in one move at the end; its rights follow the umask."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def store(path: Path, content: bytes) -> None:
    """Write a cache file with its checksum in front."""
    write_atomically(path, _digest(content) + content)


def fetch(path: Path) -> bytes | None:
    """Read back what `store` wrote; None where nothing is, nothing may be read, or the checksum fails."""
    try:
        held = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    digest, content = held[:DIGEST_BYTES], held[DIGEST_BYTES:]
    return content if digest == _digest(content) else None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
