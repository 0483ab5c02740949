"""A published set: where it comes from, which of its cases are taken, and what is left out."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt
from evidcore_plugin_tables import table_cases
from evidcore_plugin_tables.case_reading import OnMissing, skip_unreadable

from evidcore.api import Case, DataError, Dataset, InlineOptions, MaskRef
from evidcore.cache import downloads
from evidcore.case import Split
from evidcore.errors import did_you_mean
from evidcore_plugin_ct_data.files import Files, Origin, State, state_of
from evidcore_plugin_ct_data.hub import Repository, Revision

log = logging.getLogger(__name__)

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
UNKNOWN_SPACING_MM = (1.0, 1.0, 1.0)  # where a publisher kept no spacing: lengths in mm mean nothing then


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection(OnMissing):
    """Which part of a set is wanted, and what is done about cases that cannot be used.

    Args:
        limit: at most so many patients of each split (cases, where patients are not known), drawn by a hash:
            a greater limit keeps those of a smaller one.
        ids: only these patients or cases, or a text file with one a line.
    """

    limit: Annotated[int, Ge(1)] | None = None
    ids: tuple[str, ...] | str = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where a set lies.

    Args:
        path: the folder that holds the set.
    """

    path: str | None

    def files(self, published: PublishedSet) -> Files:
        """Return the files of a set in the user's folder."""
        return Files(
            folder=published.recipe_folder / (self.path or "."),
            origins=published.origins,
            inside=published.inside,
            where_from=published.page or f"https://huggingface.co/datasets/{published.repository}",
            others=published.others,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder(Source):
    """Where a set lies that is on no Hub."""

    path: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubSource(Source):
    """Where a set of the Hub lies, or is fetched from.

    Args:
        path: the folder that holds the set.
        revision: full commit hash of the Hub repository: what is not in `path` is fetched from there.
        max_gb: more than this is never fetched for a split.
    """

    path: str | None = None
    revision: Revision | None = None
    max_gb: Annotated[float, Gt(0)] = 50.0

    def files(self, published: PublishedSet) -> Files:
        """Return the files of a set in the user's folder, else in one of the cache for this commit alone."""
        files = super().files(published)
        if self.revision is None:
            return files
        repository, folder = Repository(id=published.repository, revision=self.revision), files.folder
        if self.path is None:
            folder = downloads(published.cache_folder, repository.id.replace("/", "--"), self.revision)
        return dataclasses.replace(files, folder=folder, repository=repository, max_gb=self.max_gb)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderAndHub(HubSource):
    """Where the part of a set lies that the Hub does not have; the other part is fetched into it."""

    path: str = dataclasses.field()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One case of a published set, and what it needs before it can be used."""

    case: Case
    names: tuple[str, ...]  # files and folders of the set
    fault: str | None = None  # why it cannot be used, where the tables say so already
    elsewhere: str | None = None  # why it belongs to another split, though this one's list names it
    prepare: Callable[[], None] | None = None  # makes a file of our own from those of the set


def drawn_split(name: str, *, validation_share: float, test_share: float = 0.0) -> Split:
    """Return the split of a patient of a set, or part of one, that its publisher left undivided."""
    # no seed: no recipe tests on another's training set
    return table_cases.drawn_split(f"split/{name}", validation_share, test_share)


@dataclasses.dataclass(eq=False, repr=False)
class PublishedSet(Dataset):
    """A data set in its publisher's layout, whole or in part; its fields are its options.

    Args:
        recipe_folder: where relative paths start.
        cache_folder: where files fetched from the Hub lie if no `path` is given, and what is made of files.
        source: where its files are.
        selection: which of its cases are wanted.
    """

    repository: ClassVar[str] = ""  # on the Hub
    page: ClassVar[str] = ""  # the publisher's, for messages, where it is not that of the repository
    others: ClassVar[Mapping[str, str]] = {}  # file name -> where else it is from

    recipe_folder: Path
    cache_folder: Path
    _: dataclasses.KW_ONLY
    source: Annotated[Source, InlineOptions]
    selection: Annotated[Selection, InlineOptions]

    def __post_init__(self) -> None:
        """Begin with nothing left out."""
        self.left_out: dict[Split, dict[str, str]] = {}
        self._ids_are_known = False

    @functools.cached_property
    def _files(self) -> Files:
        return self.source.files(self)

    @abstractmethod
    def _entries(self, split: Split) -> Iterable[Entry]:
        """Yield everything that the set's tables name in a split, in their order."""

    def _tables(self) -> Iterable[str]:
        """Return the names of the tables that list its cases."""
        return ()

    def _settings(self) -> dict[str, Any]:
        """Return its own options, for the fingerprint."""
        shared = {field.name for field in dataclasses.fields(PublishedSet)}
        added = [field.name for field in dataclasses.fields(self) if field.name not in shared]
        return {name: getattr(self, name) for name in added}

    def _label_map(self, name: str, labels: Mapping[str, int]) -> dict[str, MaskRef]:
        """Return the masks of a file of labels."""
        return {mask: MaskRef(path=str(self._files.path(name)), label=at) for mask, at in labels.items()}

    def origins(self, name: str) -> Sequence[Origin]:
        """Return where a file of the set is in the repository; of several archives, any may hold it."""
        return (Origin(name=name),)

    def inside(self, member: str) -> str | None:
        """Return what an archive's member is called in the set, None where it is no part of it."""
        return member

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the usable cases of a split; fetch and prepare what they need.

        Raises:
            DataError: if a table or a case cannot be used, or a file cannot be had.
        """
        entries = self._chosen(split)
        left_out: dict[str, str] = {}
        self.left_out[split] = left_out
        if self._files.repository is not None:
            entries = list(entries)
            usable_ones = (entry for entry in entries if not (entry.fault or entry.elsewhere))
            if self._files.plan(name for entry in usable_ones for name in entry.names):
                entries = self._chosen(split)  # what was unpacked tells more of its cases
        needs: dict[str, Entry] = {}
        shared: set[str] = set()

        def each() -> Iterator[Case]:
            for entry in entries:
                if entry.elsewhere is None:
                    needs[entry.case.id] = entry
                    yield entry.case
                else:
                    left_out[entry.case.id] = entry.elsewhere
                    shared.add(entry.case.patient or entry.case.id)

        def read_error(case: Case) -> str | None:
            entry = needs.pop(case.id)
            return entry.fault or self._files.why_absent(entry.names) or self._why_unprepared(entry)

        where = str(self._files.folder)
        yield from skip_unreadable(
            each(), read_error, where=where, split=split, rule=self.selection, left_out=left_out
        )
        if shared:
            text = "%s: %d patients of split %r are in another split's list too and stay there alone."
            log.warning(text, where, len(shared), split)

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case of a split that was chosen, also the unusable; fetch no volume for it.

        Those of another split are not its cases. One whose volume cannot be made is left out by name, and
        `unlisted` says why.
        """
        for entry in self._chosen(split):
            if entry.elsewhere is not None:
                continue
            if why := self._why_unprepared(entry):
                self.left_out.setdefault(split, {})[entry.case.id] = why
            else:
                yield entry.case

    def unlisted(self) -> Iterator[str]:
        """Say of every case that was chosen what its tables, or what it is made of, have against it."""
        for split in SPLITS:
            for entry in self._chosen(split):
                fault = None if entry.elsewhere else entry.fault or self._why_unprepared(entry)
                if fault:
                    yield fault

    def _why_unprepared(self, entry: Entry) -> str | None:
        """Make what an entry makes of its files, where they are there; return why it cannot be made."""
        if entry.prepare is None or not all(self._files.path(name).exists() for name in entry.names):
            return None
        try:
            entry.prepare()
        except DataError as error:
            return str(error)
        return None

    def fingerprint(self) -> str:
        """Hash the options and what the set holds: the commit, and what of the user's lies in `path`.

        Of the user's are the tables and files that were not fetched from this commit, or are no longer as
        they were then. What is still to be fetched is the commit's: fetching it changes nothing here. A table
        counts with its content, volumes with size and time.
        """
        chosen = self.selection
        ids = chosen.ids if isinstance(chosen.ids, tuple) else tuple(sorted(self._wanted()))
        known = {**self._settings(), "limit": chosen.limit, "ids": ids, "missing": chosen.missing}
        repository = self._files.repository
        if repository is not None:
            known["commit"] = [repository.id, repository.revision]
        if self.source.path is not None or repository is None:
            known["tables"] = [state for _, state in self._users(self._tables())]
        digest = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=16)
        for split in SPLITS if self.source.path is not None or repository is None else ():
            names = (name for entry in self._chosen(split) for name in entry.names)
            for named in self._users(names):
                digest.update(json.dumps(named).encode())
        return digest.hexdigest()

    def _users(self, names: Iterable[str]) -> Iterator[tuple[str, State | None]]:
        """Yield the names and states of what is not the commit's: without one, of everything."""
        fetched = self._files.fetched()
        for name in names:
            state = state_of(self._files.path(name))
            if self._files.repository is None or state not in (None, fetched.get(name)):
                yield name, state

    def _chosen(self, split: Split) -> Iterable[Entry]:
        """Return the entries of a split that the options leave."""
        if self.source.path is None and self._files.repository is None:
            why = "the set needs a place: give `path`, a folder that holds it, or `revision`"
            raise DataError(f"{why}, a commit of {self._files.where_from} to fetch it from.")
        entries: Iterable[Entry] = (entry for entry in self._entries(split) if self.keeps(entry.case.id))
        if wanted := self._wanted():
            entries = [entry for entry in entries if wanted & _names_of(entry)]
            self._refuse_unknown(wanted)
        limit = self.selection.limit
        if limit is not None:
            entries = list(entries)
            names = {entry.case.patient or entry.case.id for entry in entries}
            drawn = set(sorted(names, key=_limit_order)[:limit])
            entries = [entry for entry in entries if (entry.case.patient or entry.case.id) in drawn]
        return entries

    def _wanted(self) -> set[str]:
        ids = {*self.ids_of(self.selection.ids, self.recipe_folder, "ids")}
        return ids if isinstance(self.selection.ids, tuple) else ids or {""}

    def _refuse_unknown(self, wanted: set[str]) -> None:
        if self._ids_are_known:
            return
        known = {name for split in SPLITS for entry in self._entries(split) for name in _names_of(entry)}
        if unknown := sorted(wanted - known):
            why = f"ids names {unknown[0]!r}, which is no patient and no case of the set"
            more = f"{did_you_mean(unknown[0], known)} {len(unknown)} of {len(wanted)} names are unknown."
            raise DataError(f"{self._files.folder}: {why}.{more}")
        self._ids_are_known = True


def _names_of(entry: Entry) -> set[str]:
    return {entry.case.id, entry.case.patient or entry.case.id}


def _limit_order(name: str) -> bytes:
    return hashlib.blake2b(f"limit/{name}".encode(), digest_size=8).digest()
