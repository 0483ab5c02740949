"""The cache folder: atomic, checked files that may be deleted at any time; the longest unused go first."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from evidcore.errors import RunError
from evidcore.registry import cache_root

MOST_BYTES = 50_000_000_000
LEAVES_FREE = 0.5  # of what the disk would have free without these entries
SPARE = 0.05  # of the limit, made free at once, so that not every new entry scans the folders
ABANDONED_S = 3600.0  # a part of an entry this old belongs to a process that was killed


class CacheQuota:
    """The entries in some folders, kept below one limit.

    A process that has an entry open keeps it: what is deleted stays readable until it is closed. Each
    process counts on its own and scans the folders again when it has written 5 % of the limit. So each may
    exceed the limit by 5 % and one entry.
    """

    def __init__(self, *folders: Path) -> None:
        """Scan no folder yet."""
        self.folders = folders
        self._used_bytes: int | None = None
        self._unseen_bytes = 0  # written since the last scan
        self.deleted_bytes = 0  # by this process, to free space

    def reserve(self, size_bytes: int, *, spared_since_s: float = math.inf) -> bool:
        """Reserve space for an entry, evicting others if need be; tell whether it may be written.

        Args:
            size_bytes: of the entry.
            spared_since_s: entries used after this time, in seconds since 1970, stay.

        Raises:
            RunError: if EVID_CACHE_GB is no size.
        """
        if self._used_bytes is None:
            self._used_bytes = sum(size for _, size, _ in self._entries())
        limit = limit_bytes(self.folders[0], self._used_bytes)
        if size_bytes > limit:
            return False
        if self._used_bytes + size_bytes > limit or self._unseen_bytes > SPARE * limit:
            self._evict(limit, size_bytes, spared_since_s)
        if self._used_bytes + size_bytes > limit:
            return False
        self._used_bytes += size_bytes
        self._unseen_bytes += size_bytes
        return True

    def _evict(self, limit: int, size_bytes: int, spared_since_s: float) -> None:
        """Scan the folders again, and delete the longest unused entries if the new one would not fit."""
        entries = sorted(self._entries())
        held = sum(size for _, size, _ in entries)
        if held + size_bytes > limit:
            for used_s, size, path in entries:
                if used_s >= spared_since_s or held + size_bytes <= (1 - SPARE) * limit:
                    break
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    path.unlink()
                    held -= size
                    self.deleted_bytes += size
        self._used_bytes, self._unseen_bytes = held, 0

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Return the time of last use, size and path of each entry; delete what killed processes left."""
        found = []
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as listing:
                for item in listing:
                    with contextlib.suppress(FileNotFoundError):
                        facts = item.stat()
                        if item.name.startswith(".") and facts.st_mtime < time.time() - ABANDONED_S:
                            os.unlink(item.path)
                        else:
                            found.append((facts.st_mtime, facts.st_size, Path(item.path)))
        return found


def shared_quota() -> CacheQuota:
    """Return this process's quota of the folders of volumes and prepared inputs."""
    return _quota(cache_root() / "volumes", cache_root() / "inputs")


@functools.cache
def _quota(*folders: Path) -> CacheQuota:
    return CacheQuota(*folders)


def limit_bytes(folder: Path, used_bytes: int) -> int:
    """Return the limit: EVID_CACHE_GB, else 50 GB or half of the disk's free space, whichever is less.

    Args:
        folder: whose disk counts; it may not exist yet.
        used_bytes: size of the entries that are there.

    Raises:
        RunError: if EVID_CACHE_GB is no size; names its value.
    """
    named = os.environ.get("EVID_CACHE_GB")
    if named:
        try:
            size_gb = float(named)
        except ValueError:
            size_gb = -1.0
        if not 0 <= size_gb < math.inf:
            raise RunError(
                f"EVID_CACHE_GB: must be a size in GB, 0 or more, got {named!r}. For instance "
                f"EVID_CACHE_GB=50."
            )
        return int(size_gb * 1e9)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    return min(MOST_BYTES, int(LEAVES_FREE * (shutil.disk_usage(there).free + used_bytes)))


def touch(path: Path) -> None:
    """Mark an entry as used now; in a read-only folder it counts as unused."""
    with contextlib.suppress(FileNotFoundError, PermissionError, OSError):
        os.utime(path)


DIGEST_BYTES = 16
OTHER_CACHE = "set EVID_CACHE to another folder"


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
