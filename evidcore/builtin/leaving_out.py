"""What to do about cases that cannot be used: stop, or leave them out by name and count them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from evidcore.builtin.file_states import files_of
from evidcore.case import Case, Split
from evidcore.errors import DataError
from evidcore.volume import why_unusable

Missing = Literal["stop", "skip"]

log = logging.getLogger(__name__)


def usable(
    cases: Iterable[Case],
    why_not: Callable[[Case], str | None],
    *,
    where: str,
    split: Split,
    missing: Missing,
    max_missing: int,
    left_out: dict[str, str],
) -> Iterator[Case]:
    """Yield the cases that can be used, in order; no other case ever takes the place of one.

    Args:
        cases: every case of the split.
        why_not: says what is wrong with a case, None if nothing.
        where: the table or folder that messages name.
        split: named in messages.
        missing: "stop" raises at the first unusable case; "skip" leaves it out, logs and counts it.
        max_missing: with "skip", more left-out cases than this stop the run.
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
        if missing == "stop":
            raise DataError(f'{reason} Or set missing = "skip" on the dataset. (case {case.id!r})')
        left_out[case.id] = reason
        names.append(case.id)
        log.warning("%s: case %r is left out: %s", where, case.id, reason)
        if len(names) > max_missing:
            raise DataError(
                f"{where}: {len(names)} cases of split {split!r} cannot be used, at most "
                f"max_missing = {max_missing} may be left out: {', '.join(names)}. "
                f"The last: {reason}"
            )


def why_files_unusable(case: Case, *, table: Path, cache_folder: Path, missing: Missing) -> str | None:
    """Say why the files of a case of a table cannot be used, None where nothing speaks against them.

    Volumes are read whole only where broken ones are left out: elsewhere the run stops at them anyway.

    Args:
        case: its volumes and masks must exist.
        table: named in messages.
        cache_folder: keeps which files were found usable.
        missing: what is done about unusable cases.
    """
    for file in files_of(case):
        if not Path(file).exists():
            return f"{file}: there is no such file. Put it there or correct {table}."
    if missing == "skip":
        reasons = (why_unusable(ref, cache_folder) for ref in case.volumes)
        return next((reason for reason in reasons if reason), None)
    return None
