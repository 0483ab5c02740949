"""Reading the cases of a table or folder: which files they name, and what to do about unreadable ones."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from evidcore.api import Case, DataError, Dataset, InlineOptions
from evidcore.cache import key_of, plain_file
from evidcore.case import Split
from evidcore.data import file_hash
from evidcore.data.files import files_of as parts_of
from evidcore.data.reading import read_error
from evidcore.data.stored import unreadable
from evidcore.errors import EvidError

log = logging.getLogger(__name__)

WHOLE_BYTES = 1 << 20  # smaller files are looked at whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnMissing:
    """What is done about cases that cannot be used.

    Args:
        missing: what is done about a case with a missing file or a broken volume: "stop" raises; "skip"
            leaves it out, logs and counts it. No other case ever takes the place of one.
        max_missing: with "skip", more left-out cases than this stop the run.
    """

    missing: Literal["stop", "skip"] = "stop"
    max_missing: Annotated[int, Ge(0)] = 10


STOP = OnMissing()


def skip_unreadable(
    cases: Iterable[Case],
    why_not: Callable[[Case], str | None],
    *,
    where: str,
    split: Split,
    rule: OnMissing,
    left_out: dict[str, str],
) -> Iterator[Case]:
    """Yield the cases that can be used, in order; no other case ever takes the place of one.

    `why_not` says what is wrong with a case, None if nothing; `left_out` takes case id -> why.

    Raises:
        DataError: at the first unusable case, or when more than `max_missing` are left out.
    """
    names: list[str] = []
    for case in cases:
        reason = why_not(case)
        if reason is None:
            yield case
            continue
        if rule.missing == "stop":
            raise DataError(f'{reason} Or set missing = "skip" on the dataset. (case {case.id!r})')
        left_out[case.id] = reason
        names.append(case.id)
        log.warning("%s: case %r is left out: %s", where, case.id, reason)
        if len(names) > rule.max_missing:
            why = f"{len(names)} cases of split {split!r} cannot be used"
            most = f"at most max_missing = {rule.max_missing} may be left out"
            raise DataError(f"{where}: {why}, {most}: {', '.join(names)}. The last: {reason}")


def files_of(case: Case) -> list[str]:
    """Return the paths of a case's volumes in their order, then those of its masks."""
    return [ref.path for ref in case.volumes] + sorted({ref.path for ref in case.masks.values()})


def content_mark(path: str | Path) -> list[int | str]:
    """Return a file's size and a hash of its content, of a large one of its middle and end.

    A packed file ends in a checksum of all of it. A copy is the same, whatever its time.
    """
    size = os.stat(path).st_size
    if size < WHOLE_BYTES:
        return [size, file_hash(path)]
    with plain_file(path, is_text=False).open("rb") as file:
        file.seek(size // 2)
        middle = file.read(1 << 12)
        file.seek(-16, os.SEEK_END)
        return [size, key_of([middle.hex(), file.read().hex()])]


@dataclasses.dataclass(eq=False, repr=False)
class CaseTable(Dataset):
    """A data set in a user's folder that one table lists; its fields are its options.

    Args:
        recipe_folder: where a relative `path` starts.
        cache_folder: keeps which files were found usable.
        path: the folder; names in the table are relative to it.
        table: the table in it.
        findings: columns that hold findings, in the order of the vocabulary.
        on_missing: what is done about unusable cases.
    """

    recipe_folder: Path
    cache_folder: Path
    _: dataclasses.KW_ONLY
    path: str
    table: str
    findings: tuple[str, ...] = ()
    on_missing: Annotated[OnMissing, InlineOptions] = STOP

    def __post_init__(self) -> None:
        """Find the table's place; nothing is read."""
        self.left_out: dict[Split, dict[str, str]] = {}
        self.folder = self.recipe_folder / self.path
        self.file = self.folder / self.table

    @abstractmethod
    def _every(self) -> Iterable[Case]:
        """Yield the cases of all splits, as far as they can be read."""

    def _usable(self, cases: Iterable[Case], split: Split) -> Iterator[Case]:
        """Yield the cases whose files can be used; see `skip_unreadable`."""
        wanted = (case for case in cases if self.keeps(case.id))
        where, rule, left_out = str(self.file), self.on_missing, self.left_out[split]
        yield from skip_unreadable(
            wanted, self._why_unusable, where=where, split=split, rule=rule, left_out=left_out
        )

    def _why_unusable(self, case: Case) -> str | None:
        """Say why the files of a case cannot be used; None where nothing speaks against them.

        Volumes are read whole only where broken ones are left out: elsewhere the run stops at them anyway.
        """
        for file in files_of(case):
            if not Path(file).exists():
                return str(unreadable(file, remedy=f"Put it there or correct {self.file}."))
        if self.on_missing.missing == "skip":
            reasons = (read_error(ref, self.cache_folder) for ref in case.volumes)
            return next((reason for reason in reasons if reason), None)
        return None

    def fingerprint(self) -> str:
        """Hash options, the table, and name and content mark of every file that is named.

        A DICOM folder or a header with its data beside it are many files. Names are relative to the folder,
        so that it may move.
        """
        places = {"recipe_folder", "cache_folder", "path", "table"}
        names = {field.name for field in dataclasses.fields(self)} - places
        settings = {name: getattr(self, name) for name in names} | {"on_missing": self.on_missing.missing}
        text = json.dumps(settings, sort_keys=True, default=dataclasses.asdict)
        digest = hashlib.blake2b(text.encode(), digest_size=16)
        digest.update(plain_file(self.file).read_bytes() if self.file.exists() else b"")
        for case in self._every():
            for file in files_of(case):
                behind = None
                with contextlib.suppress(EvidError, OSError):
                    behind = [
                        [os.path.relpath(part, self.folder), *content_mark(part)]
                        for part in map(os.path.realpath, parts_of(file))
                    ]
                digest.update(json.dumps([os.path.relpath(file, self.folder), behind]).encode())
        return digest.hexdigest()
