"""Reading the cases of a table or folder: which files they name, and what to do about unreadable ones."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from evidcore.api import Case, DataError
from evidcore.case import Split
from evidcore.data.files import file_state
from evidcore.data.reading import read_error

log = logging.getLogger(__name__)


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

    Args:
        cases: every case of the split.
        why_not: says what is wrong with a case, None if nothing.
        where: the table or folder that messages name.
        split: named in messages.
        rule: what is done about unusable cases.
        left_out: takes case id -> why.

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
            raise DataError(
                f"{where}: {len(names)} cases of split {split!r} cannot be used, at most "
                f"max_missing = {rule.max_missing} may be left out: {', '.join(names)}. "
                f"The last: {reason}"
            )


def why_files_unusable(case: Case, *, table: Path, cache_folder: Path, rule: OnMissing) -> str | None:
    """Say why the files of a case of a table cannot be used, None where nothing speaks against them.

    Volumes are read whole only where broken ones are left out: elsewhere the run stops at them anyway.

    Args:
        case: its volumes and masks must exist.
        table: named in messages.
        cache_folder: keeps which files were found usable.
        rule: what is done about unusable cases.
    """
    for file in files_of(case):
        if not Path(file).exists():
            return f"{file}: there is no such file. Put it there or correct {table}."
    if rule.missing == "skip":
        reasons = (read_error(ref, cache_folder) for ref in case.volumes)
        return next((reason for reason in reasons if reason), None)
    return None


def named_states(files: Iterable[str], folder: Path) -> Iterator[str]:
    """Yield for each file its name and the name, time and size of every file behind it, as JSON.

    Args:
        files: volumes and masks; a DICOM folder or a header with its data beside it are many files.
        folder: names are told from here, so that a folder may move.
    """
    for file in files:
        state = file_state(file)
        behind = state and [[os.path.relpath(name, folder), *facts] for name, *facts in state]
        yield json.dumps([os.path.relpath(file, folder), behind])


def files_of(case: Case) -> list[str]:
    """Return the paths of a case's volumes in their order, then those of its masks."""
    return [ref.path for ref in case.volumes] + sorted({ref.path for ref in case.masks.values()})
