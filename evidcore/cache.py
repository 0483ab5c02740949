"""The cache folder: everything in it can be made again, and any of it may be deleted at any time.

`Cache(namespace)` is its only writer; docs/reference/cache.md lists the namespaces. The key of an entry holds
all that it depends on, so it is never changed. It appears in one move: processes and machines may share the
folder. Its checksum is verified where it is read; a damaged one is named in the log, deleted, made again.

All namespaces lie below one limit, and the longest unused entry leaves first, whichever namespace it is of.
The times of a file say when it was used: the file system is the one index that processes and machines share.
An open file stays readable after its deletion. A path that was handed out does not, so each process lists
those in a lease: a file that is locked while the process lives.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import fcntl
import functools
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidcore.errors import DataError, RunError

if TYPE_CHECKING:  # they would double the time of `evid --help`
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

Key = str | Sequence[Any] | Mapping[str, Any]  # a name, or what the name is the hash of, in JSON's types

MOST_BYTES = 50_000_000_000
MOST_TEXT_BYTES = 1 << 30  # tables of half a million questions are smaller
LEAVES_FREE = 0.5  # of what the disk would have free without the entries
SPARE = 0.05  # of the limit, made free at once, so that not every new entry scans the folders
LARGE_BYTES = 1 << 20  # the first entry of a process that is as large scans the folders
ABANDONED_S = 3600.0  # a part of an entry this old belongs to a process that was killed
DIGEST_BYTES = 16
OTHER_CACHE = "set EVID_CACHE to another folder"

_TAG = "CACHEDIR.TAG"  # in each folder of a namespace: backups leave it out, and eviction looks nowhere else
_TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# made by evidcore; bford.info/cachedir\n"
_LEASES, _LEASE = ".leases", ".lease"
_ARRAY = ".safetensors"

_looks_only = contextvars.ContextVar("looks_only", default=False)
log = logging.getLogger(__name__)


class CorruptEntry(Exception):
    """An entry does not hold what was written; says why."""


def cache_folder() -> Path:
    """Return the folder for everything that can be made again: EVID_CACHE, else the user's cache folder."""
    if named := os.environ.get("EVID_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "evidcore"


def downloads(root: Path, *parts: str) -> Path:
    """Return a folder for what is fetched, which fills bit by bit: it is not counted, and never evicted."""
    return root.joinpath("hub", *parts)


def key_of(asked: Key) -> str:
    """Return a name as it is, and of all else the hash."""
    if isinstance(asked, str):
        return asked
    text = json.dumps(asked, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()


class Cache:
    """The entries of one namespace.

    `get` and `put` take small content, `get_or_make` JSON values, `get_array` and `put_array` arrays whose
    slices are read one by one; `file` and `folder` give a path to those who open it themselves. What does not
    fit below the limit is not put, files and folders are always written.

    All raise a RunError that names the folder where the disk is full or may not be written to, or one that
    names EVID_CACHE_GB where that is no size.
    """

    def __init__(self, namespace: str, root: Path | None = None, *, is_private: bool = False) -> None:
        """Open no file yet.

        Args:
            namespace: a folder of the cache, listed in docs/reference/cache.md.
            root: the cache folder; None: that of the environment, whenever it is used.
            is_private: nobody else may look into it.
        """
        self.namespace, self._root, self._is_private = namespace, root, is_private

    @property
    def root(self) -> Path:
        """The cache folder."""
        return self._root or cache_folder()

    @property
    def evicted_bytes(self) -> int:
        """What this process has evicted so far, of all namespaces."""
        return _process(self.root).evicted_bytes

    def path(self, key: Key, suffix: str = "") -> Path:
        """Return where an entry lies or would lie."""
        return self.root / self.namespace / f"{key_of(key)}{suffix}"

    def get_or_make(self, key: Key, make: Callable[[], Any]) -> Any:
        """Return the JSON value of an entry, which `make` gives where there is none."""
        content = self.get(key)
        if content is None:
            content = json.dumps(make()).encode()
            self.put(key, content)
        return json.loads(content)

    def get(self, key: Key) -> bytes | None:
        """Return what was put; None where nothing was, or nothing that may be read and is sound."""
        path = self.path(key)
        try:
            stored = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        content = stored[DIGEST_BYTES:]
        if stored[:DIGEST_BYTES] != _digest(content):
            _drop(path, "its checksum does not fit")
            return None
        _touch(path)
        return content

    def put(self, key: Key, content: bytes, *, keep_newer_than: float = math.inf) -> bool:
        """Write what is read as a whole; tell whether it fits below the limit.

        Entries used after `keep_newer_than`, in seconds since 1970, are not evicted for it.
        """
        stored = _digest(content) + content
        return self._put(self.path(key), len(stored), lambda file: file.write_bytes(stored), keep_newer_than)

    def get_array(self, key: Key) -> CachedArray | None:
        """Return an array whose slices are read when they are used; None where `get` gives None."""
        path = self.path(key, _ARRAY)
        with contextlib.suppress(CorruptEntry):
            array = _open_array(path)
            _touch(path)
            return array
        return None

    def put_array(
        self, key: Key, array: Array, facts: Mapping[str, Any], *, keep_newer_than: float = math.inf
    ) -> bool:
        """Write an array of int16 or float32 and JSON-like facts about it, as `put` does."""
        path = self.path(key, _ARRAY)
        return self._put(path, array.nbytes, lambda file: _save(file, array, facts), keep_newer_than)

    def file(self, key: Key, suffix: str, write: Callable[[Path], object]) -> Path:
        """Return the path of a file, written if it is not there; it stays while this process lives.

        Whether it is sound is for its format to say.
        """
        path = self.path(key, suffix)
        _process(self.root).lease(path)
        if not path.exists():
            with naming_full_disk(path.parent):
                self._make_namespace()
                with appearing(path) as partial:
                    write(partial)
            _process(self.root).reserve(_size_bytes(path))
        return path

    def folder(self, key: Key, fill: Callable[[Path], object]) -> Path:
        """Return the path of a folder, made if it is not there; it stays while this process lives.

        `fill` writes the files into an empty folder. Processes that want the same one wait for the first.
        """
        from filelock import FileLock

        def write(partial: Path) -> None:
            partial.mkdir()
            fill(partial)

        path = self.path(key)
        if path.exists():
            return self.file(key, "", write)
        with naming_full_disk(path.parent):
            self._make_namespace()
            with FileLock(path.with_name(f".{path.name}.lock")):
                return self.file(key, "", write)

    def _put(
        self, path: Path, size_bytes: int, write: Callable[[Path], object], keep_newer_than: float
    ) -> bool:
        if _looks_only.get() or not _process(self.root).reserve(size_bytes, keep_newer_than):
            return False
        # others may clear the folder away meanwhile
        with contextlib.suppress(FileNotFoundError, FileExistsError), naming_full_disk(path.parent):
            self._make_namespace()
            with appearing(path) as partial:
                write(partial)
        return True

    def _make_namespace(self) -> None:
        tag = self.root / self.namespace / _TAG
        if _looks_only.get():
            raise RunError(f"{tag.parent}: holds it no more, and looking at a run makes no data anew.")
        if not tag.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            tag.parent.mkdir(mode=0o700 if self._is_private else 0o777, exist_ok=True)
            tag.write_text(_TAG_TEXT, encoding="utf-8")


@contextlib.contextmanager
def looking_only() -> Iterator[None]:
    """Make nothing anew: what a data set of a stranger's run would draw or convert is refused."""
    token = _looks_only.set(True)
    try:
        yield
    finally:
        _looks_only.reset(token)


class CachedArray:
    """An array whose slices are read and verified when they are used."""

    def __init__(
        self, array: Array, facts: Mapping[str, Any], checksums: Array | None = None, path: Path | None = None
    ) -> None:
        """Take an array in memory, or the map of one in the file `path` with a checksum for each slice."""
        self.facts, self.is_on_disk = facts, path is not None
        self.shape: tuple[int, ...] = array.shape
        self.size_bytes: int = array.nbytes
        self._array, self._checksums, self._path = array, checksums, path
        self._sound: set[int] = set()

    def slices(self, start: int, stop: int) -> Array:
        """Return slices `start` to `stop`, read-only; no others are read."""
        part: Array = self._array[start:stop]
        if self._checksums is not None and self._path is not None:
            from isal.isal_zlib import crc32

            for index, plane in enumerate(part, start):
                if index not in self._sound and crc32(plane) != self._checksums[index]:
                    raise _drop(self._path, f"slice {index} of {len(self._checksums)} has another checksum")
                self._sound.add(index)
        part.flags.writeable = False
        return part


def _open_array(path: Path) -> CachedArray | None:
    """Map a file of `_save`; None where there is none, or none that may be read."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    try:
        file: Any = safe_open(path, "np")  # which finds a damaged header, and would copy each slice
        stored, checksums = file.get_slice("array"), file.get_tensor("checksums")
        dtype, shape = stored.get_dtype(), stored.get_shape()
        digest, _, facts = file.metadata()["facts"].partition(" ")
        if digest != _array_digest(facts, dtype, shape, checksums):
            raise _drop(path, "its header has another checksum")
        with path.open("rb") as raw:
            header = json.loads(raw.read(int.from_bytes(raw.read(8), "little")))
            start = raw.tell() + header["array"]["data_offsets"][0]
            array = np.memmap(raw, {"I16": np.int16, "F32": np.float32}[dtype], "r", start, tuple(shape))
        return CachedArray(np.asarray(array), json.loads(facts), checksums, path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
        raise _drop(path, f"its header cannot be read ({cause})") from cause


def _drop(path: Path, fault: str) -> CorruptEntry:
    """Delete a damaged entry, with a line in the log; return the error to raise."""
    log.warning("%s: %s; it is made again", path, fault)
    with contextlib.suppress(FileNotFoundError, PermissionError):
        path.unlink()
    return CorruptEntry(f"{path}: {fault}")


def _save(path: Path, array: Array, facts: Mapping[str, Any]) -> None:
    import numpy as np
    from isal.isal_zlib import crc32
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    array = np.ascontiguousarray(array)
    checksums = np.array([crc32(part) for part in array], np.uint32)  # safetensors itself has no checksum
    text, dtype = json.dumps(facts), {"int16": "I16", "float32": "F32"}[array.dtype.name]
    noted = {"facts": f"{_array_digest(text, dtype, array.shape, checksums)} {text}"}  # more: in any order
    path.touch()
    mode = path.stat().st_mode  # by the umask; what safetensors writes only its owner may read
    try:
        save_file({"array": array, "checksums": checksums}, path, metadata=noted)
    except SafetensorError as cause:
        number = re.search(r"os error (\d+)", str(cause))
        raise OSError(int(number[1]) if number else errno.EIO, str(cause)) from cause
    path.chmod(mode)


def _array_digest(facts: str, dtype: str, shape: Sequence[int], checksums: Array) -> str:
    """Return a checksum over all but the voxels."""
    return _digest(f"{facts} {dtype} {list(shape)}".encode() + checksums.tobytes()).hex()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _touch(path: Path) -> None:
    """Mark an entry as used now; in a read-only folder it counts as unused.

    The time of change of a file stays, for hashes are remembered by it.
    """
    with contextlib.suppress(OSError):
        now_ns = time.time_ns()
        os.utime(path, ns=(now_ns, now_ns if path.is_dir() else path.stat().st_mtime_ns))


def _used_s(facts: os.stat_result) -> float:
    """Return when an entry was used; to list the files of a folder is no use of it."""
    return facts.st_mtime if stat.S_ISDIR(facts.st_mode) else max(facts.st_atime, facts.st_mtime)


class _Process:
    """What this process knows of a cache folder: how full it is, and what it has handed out as paths.

    Each process counts on its own, and scans the folder when it writes its first large entry and again
    whenever it has written 5 % of the limit. So each may exceed the limit by 5 % and one entry.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.evicted_bytes = root, 0
        self._used_bytes: int | None = None  # None: not scanned yet
        self._unseen_bytes = 0  # written since the last scan
        self._leased: set[str] = set()
        self._lease: int | None = None  # its open file
        self._lock = threading.Lock()

    def reserve(self, size_bytes: int, keep_newer_than: float = math.inf) -> bool:
        """Reserve space for an entry, evicting others if need be; tell whether it may be written."""
        with self._lock:
            limit = limit_bytes(self.root, self._used_bytes or 0)
            if size_bytes > limit:
                return False
            is_due = self._used_bytes is None and size_bytes >= LARGE_BYTES
            is_full = (self._used_bytes or 0) + size_bytes > limit
            if is_due or is_full or self._unseen_bytes > SPARE * limit:
                self._used_bytes, limit = self._evict(size_bytes, keep_newer_than)
                self._unseen_bytes = 0
                if self._used_bytes + size_bytes > limit:
                    return False
            self._unseen_bytes += size_bytes
            if self._used_bytes is not None:
                self._used_bytes += size_bytes
            return True

    def _evict(self, size_bytes: int, keep_newer_than: float) -> tuple[int, int]:
        """Delete what is longest unused if a new entry does not fit; return the bytes used, and the limit."""
        entries = sorted(_entries(self.root))
        used = sum(size for _, size, _ in entries)
        limit = limit_bytes(self.root, used)
        if used + size_bytes > limit:
            leased = _leases(self.root)
            for used_s, size, path in entries:
                if used_s >= keep_newer_than or used + size_bytes <= (1 - SPARE) * limit:
                    break
                if f"{path.parent.name}/{path.name}" in leased:
                    continue
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if _used_s(path.stat()) == used_s:  # nobody has used it since it was listed
                        _delete(path)
                        used -= size
                        self.evicted_bytes += size
        return used, limit

    def lease(self, path: Path) -> None:
        """Spare an entry while this process lives; others find it in a file that stays locked as long."""
        name = f"{path.parent.name}/{path.name}"
        with self._lock, contextlib.suppress(OSError):  # in a read-only folder nothing is evicted
            if self._lease is None:
                (self.root / _LEASES).mkdir(parents=True, exist_ok=True)
                fresh = self.root / _LEASES / secrets.token_hex(8)
                self._lease = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                fcntl.flock(self._lease, fcntl.LOCK_EX)
                fresh.rename(fresh.with_suffix(_LEASE))  # so that it is never seen unlocked
            if name not in self._leased:
                os.write(self._lease, f"{name}\n".encode())
                self._leased.add(name)
        _touch(path)


_process = functools.cache(_Process)


def _leases(root: Path) -> set[str]:
    """Return what living processes have leased; delete the files of others."""
    names: set[str] = set()
    for path in (root / _LEASES).glob(f"*{_LEASE}"):
        with (
            contextlib.suppress(FileNotFoundError, PermissionError),
            path.open("r+", encoding="utf-8") as file,
        ):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except OSError:
                names.update(file.read().splitlines())
    return names


def _entries(root: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield the time of last use, size and path of each entry; delete what killed processes left."""
    for tag in root.glob(f"*/{_TAG}"):
        with contextlib.suppress(FileNotFoundError), os.scandir(tag.parent) as listing:
            for item in listing:
                with contextlib.suppress(FileNotFoundError):
                    facts, path = item.stat(), Path(item.path)
                    if item.name.startswith("."):
                        if facts.st_mtime < time.time() - ABANDONED_S:
                            _delete(path)
                    elif item.name != _TAG:
                        yield _used_s(facts), _size_bytes(path) if item.is_dir() else facts.st_size, path


def _size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]))


def _delete(path: Path) -> None:
    if path.is_dir():
        doomed = path.with_name(f".{secrets.token_hex(4)}")  # a folder, too, disappears in one move
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def limit_bytes(root: Path, used_bytes: int) -> int:
    """Return the limit: EVID_CACHE_GB, else 50 GB or half of the disk's free space, whichever is less."""
    named = os.environ.get("EVID_CACHE_GB")
    if named:
        try:
            size_gb = float(named)
        except ValueError:
            size_gb = -1.0
        if not 0 <= size_gb < math.inf:
            raise RunError(
                f"EVID_CACHE_GB: must be a size in GB, 0 or more, got {named!r}. Try EVID_CACHE_GB=50."
            )
        return int(size_gb * 1e9)
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    return min(MOST_BYTES, int(LEAVES_FREE * (shutil.disk_usage(there).free + used_bytes)))


@contextlib.contextmanager
def naming_full_disk(folder: Path, *, or_else: str = OTHER_CACHE) -> Iterator[None]:
    """Turn a full disk or an unwritable folder into an error that names the folder and what to do.

    `or_else` says what helps beside space or rights there.
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


def plain_file(path: str | os.PathLike[str], *, is_text: bool = True) -> Path:
    """Return the path of a file that can be read to its end, or of a model's folder with such files.

    Whoever reads it says that it is missing.

    Raises:
        DataError: if it is a pipe, a socket or a device, or a text beyond memory, as a sparse file may be.
    """
    place = Path(path)
    with contextlib.suppress(OSError, ValueError):  # a name may hold a null byte
        facts = place.stat()
        if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
            raise DataError(f"{path}: is a pipe, a socket or a device. Name a file.")
        for item in place.iterdir() if is_text and stat.S_ISDIR(facts.st_mode) else ():
            plain_file(item, is_text=item.suffix in (".json", ".txt", ".jinja", ".model"))
        if is_text and facts.st_size > MOST_TEXT_BYTES:
            why = f"holds {facts.st_size / 1e9:.3g} GB of text, at most {MOST_TEXT_BYTES / 1e9:.3g} are read"
            raise DataError(f"{path}: {why}. Check that it is the right file.")
    return place


def write_atomically(path: Path, content: bytes, *, or_else: str = OTHER_CACHE) -> None:
    """Write a file so that readers see the old one or the new one, never a part."""
    with naming_full_disk(path.parent, or_else=or_else):
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing(path) as partial, partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Give the path of a file or folder to make, which gets the name `path` at the end, in one move."""
    partial = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield partial
        publish(partial, path)
    except BaseException:
        _delete(partial)
        raise


def publish(made: Path, path: Path) -> None:
    """Give a file or folder its name in one move; drop a folder where another process was faster."""
    try:
        os.replace(made, path)
    except OSError:
        if not (made.is_dir() and path.is_dir()):
            raise
        shutil.rmtree(made)
