"""Members of downloaded archives: only those that are wanted, each whole or absent."""

import glob
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from filelock import FileLock

from evidcore.api import DataError
from evidcore.cache import naming_full_disk
from evidcore.data import arrays

ENDINGS = (".tar.gz", ".tgz", ".tar", ".zip")

Inside = Callable[[str], str | None]  # a member's name -> its name in the set, None: not part of it


def unpack(archive: Path, wanted: Collection[str], inside: Inside, folder: Path) -> None:
    """Write the wanted members of an archive into a folder.

    They get their names when the whole archive has been read: a killed process leaves nothing that could be
    taken for a file of the set. One process unpacks an archive at a time; the next finds what the first left.

    A wanted name that ends in "/" stands for everything below.

    Raises:
        DataError: if the archive is damaged.
    """
    try:
        with naming_full_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f".{archive.name}.unpacking"):
                missing = {name for name in wanted if not (folder / name).exists()}
                if missing:
                    _unpack(archive, missing, inside, folder)
    except (OSError, RuntimeError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as cause:
        remedy = "Delete it and start again; it is fetched anew."
        raise DataError(f"{archive}: the archive is damaged ({cause}). {remedy}") from cause


def _unpack(archive: Path, wanted: Collection[str], inside: Inside, folder: Path) -> None:
    """Write the wanted members, none of which is there yet."""
    for left in folder.glob(f".{glob.escape(archive.name)}.*.partial"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(folder).free
    with tempfile.TemporaryDirectory(
        prefix=f".{archive.name}.", suffix=".partial", dir=folder, ignore_cleanup_errors=True
    ) as partial:
        for member, size, content in _members(archive):
            name = inside(member)
            if name is None or not _is_wanted(name, wanted):
                continue
            free -= size
            if free < 0:
                raise DataError(f"{archive}: unpacks to more than is free in {folder}. Free space there.")
            to = Path(partial, name)
            to.parent.mkdir(parents=True, exist_ok=True)
            with content() as source, to.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
        for name in wanted:
            made, place = Path(partial, name), folder / name
            if made.exists() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(made, place)


def _is_wanted(name: str, wanted: Collection[str]) -> bool:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return False  # would be written outside the folder
    return name in wanted or any(f"{parent}/" in wanted for parent in path.parents)


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Yield each file's name, size and how to open it, in the archive's order."""
    if archive.name.endswith(".zip"):
        with arrays.open_zip(archive) as file:
            for item in file.infolist():
                if not item.is_dir():
                    yield item.filename, item.file_size, lambda item=item: file.open(item)  # type: ignore[misc]
        return
    # in one pass: seeking back in a .gz starts from its beginning; bzip2 and xz unpack to any size at once
    with tarfile.open(archive, "r|" if archive.name.endswith(".tar") else "r|gz") as tape:
        for member in tape:
            stream = tape.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name, member.size, lambda stream=stream: stream  # type: ignore[misc]
