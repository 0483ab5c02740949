"""The files of a published set: in the user's folder, or fetched from the Hub when they are first needed."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from evidcore_plugin_tables.case_reading import content_mark

from evidcore.api import DataError
from evidcore.cache import key_of, plain_file
from evidcore.data import file_hash
from evidcore.data.stored import unreadable
from evidcore.errors import NotDownloadedError
from evidcore_plugin_ct_data.archives import Inside, unpack
from evidcore_plugin_ct_data.hub import NotThere, Repository

log = logging.getLogger(__name__)

GB = 10**9
ARCHIVES = ".archives"  # where fetched archives are kept beside the set
FETCHED = ".fetched.jsonl"  # revision, name and state of every file that was fetched, a line each

TABLES = {".csv", ".json", ".jsonl", ".txt"}
State = list[int | str]  # bytes, of a folder how many files, and a hash


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a file of the set comes from."""

    name: str  # in the repository
    is_archive: bool = False  # the file is a member of it


def state_of(path: Path) -> State | None:
    """Return the content mark of a file or folder; of a table all of it counts; None of nothing."""
    if path.suffix in TABLES and path.exists():
        return [path.stat().st_size, file_hash(path)]
    if path.is_dir():
        marks = sorted([item.name, *content_mark(item)] for item in path.iterdir() if item.is_file())
        return [len(marks), key_of(marks)]
    return content_mark(path) if path.exists() else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """Finds the files of a set; names are relative to its folder, those of folders end in `/`.

    With a repository, what is not in the folder is fetched into it: tables when they are read, archives when
    a split is first walked, single files one by one as the cases are asked for.
    """

    folder: Path
    origins: Callable[[str], Sequence[Origin]]
    inside: Inside
    where_from: str  # the publisher's page, for messages
    others: Mapping[str, str]  # file name -> where else it is from
    repository: Repository | None = None
    max_gb: float = 50.0

    def path(self, name: str) -> Path:
        """Return where a file lies or will lie."""
        return self.folder / name

    def table(self, name: str) -> Path:
        """Return the path of a table, fetched if need be.

        Raises:
            NotDownloadedError: if the set's folder does not exist, and no repository is named.
        """
        place = self.folder / name
        if self.repository is None and not self.folder.is_dir():
            why = "there is no such folder, so the set is not on this machine"
            source = f"It comes from {self.where_from}; docs/reference/layouts.md says what to download"
            remedy = "Put it there, or set path to where it lies."
            raise NotDownloadedError(f"{self.folder}: {why}. {source}. {remedy}")
        if self.repository is not None and not place.exists():
            origins = self.origins(name)
            if any(origin.is_archive for origin in origins):
                self.plan([name])
            elif origins:
                self.repository.fetch(origins[0].name, place)
                self._note([name])
        return place

    def plan(self, names: Iterable[str]) -> bool:
        """Say how much is still to be fetched for `names`; fetch and unpack their archives.

        Returns:
            Whether something was unpacked.

        Raises:
            DataError: if it is more than `max_gb`, or more than the disk has room for.
        """
        if self.repository is None:
            return False
        has_unpacked = False
        wanted: dict[Origin, set[str]] = {}
        for name in names:
            for origin in self.origins(name) if not self.path(name).exists() else ():
                wanted.setdefault(origin, set()).add(name)
        there = {origin for origin in wanted if origin.is_archive and self._archive(origin).exists()}
        sizes = self.repository.sizes_bytes(sorted(origin.name for origin in wanted.keys() - there))
        if sizes:
            total_gb = sum(sizes.values()) / GB
            page = self.repository.page
            size = f"{len(sizes)} files, {total_gb:.3g} GB"
            what = f"{page}: {size}, are still to be fetched into {self.folder}"
            if total_gb > self.max_gb:
                why = f"{what}; max_gb = {self.max_gb:g} allows less"
                raise DataError(f"{why}. Take fewer cases with limit or ids, or raise max_gb.")
            self.folder.mkdir(parents=True, exist_ok=True)
            free_gb = shutil.disk_usage(self.folder).free / GB
            if total_gb > free_gb:
                why = f"{what}; the disk has {free_gb:.3g} GB left"
                remedy = "Free space, set path to another disk, or take fewer cases with limit or ids."
                raise DataError(f"{why}. {remedy}")
            log.warning("%s.", what)
        for origin in sorted(wanted, key=lambda item: item.name):
            left = {name for name in wanted[origin] if not self.path(name).exists()}
            if left and origin.is_archive and (origin in there or origin.name in sizes):
                self.repository.fetch(origin.name, self._archive(origin))
                unpack(self._archive(origin), left, self.inside, self.folder)
                self._note(name for name in left if self.path(name).exists())
                has_unpacked = True
        return has_unpacked

    def why_absent(self, names: Iterable[str]) -> str | None:
        """Fetch what is not there; return what is wrong with the first file that cannot be had."""
        for name in names:
            place = self.path(name)
            if place.exists():
                continue
            plain = [origin for origin in self.origins(name) if not origin.is_archive]
            if self.repository is None or not plain:
                origin = self.others.get(place.name, self.where_from)
                source = f"It comes from {origin}. " if origin else ""
                return str(unreadable(place, remedy=f"{source}Put it there."))
            try:
                self.repository.fetch(plain[0].name, place)
            except NotThere as error:
                return str(error)
            self._note([name])
        return None

    def fetched(self) -> Mapping[str, State | None]:
        """Return what came with the commit: by name, how it was then."""
        notes = self.folder / FETCHED
        if self.repository is None or not notes.is_file():
            return {}
        rows = map(json.loads, plain_file(notes).read_text(encoding="utf-8").splitlines())
        return {name: state for revision, name, state in rows if revision == self.repository.revision}

    def _note(self, names: Iterable[str]) -> None:
        """Write down which files came with the commit: all others in the folder are the user's."""
        revision = self.repository.revision if self.repository else ""
        lines = [json.dumps([revision, name, state_of(self.path(name))]) + "\n" for name in names]
        notes = self.folder / FETCHED
        if notes.is_symlink():  # of whoever made the folder, to a file of someone's
            notes.unlink()
        with notes.open("a", encoding="utf-8") as file:
            file.write("".join(lines))

    def _archive(self, origin: Origin) -> Path:
        return self.folder / ARCHIVES / Path(origin.name).name
