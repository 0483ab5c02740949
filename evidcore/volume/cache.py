"""The cache folder: atomic, checked files that may be deleted at any time."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from evidcore.errors import RunError

DIGEST_BYTES = 16


def cache_root() -> Path:
    """Return the folder for everything that can be made again: EVID_CACHE, else the user's cache folder."""
    named = os.environ.get("EVID_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("evidcore", appauthor=False))


@contextlib.contextmanager
def naming_full_disk(folder: Path) -> Iterator[None]:
    """Turn a full disk or an unwritable cache folder into an error that names the folder and EVID_CACHE."""
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
            f"{folder}: {reasons[cause.errno]}. Free space or rights there, "
            f"or set EVID_CACHE to another folder."
        ) from cause


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old one or the new one, never a part."""
    with naming_full_disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def store(path: Path, content: bytes) -> None:
    """Write a cache file with its checksum in front."""
    write_atomically(path, _digest(content) + content)


def fetch(path: Path) -> bytes | None:
    """Read back what `store` wrote; None where nothing is, or the checksum fails: make it again."""
    try:
        held = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    digest, content = held[:DIGEST_BYTES], held[DIGEST_BYTES:]
    return content if digest == _digest(content) else None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
