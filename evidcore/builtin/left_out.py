"""Cases that cannot be used: a run stops at them or leaves them out by name; no other takes their place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from evidcore.case import Case, Split
from evidcore.errors import DataError

log = logging.getLogger(__name__)
Missing = Literal["stop", "skip"]


def usable(
    cases: Iterable[Case],
    why_not: Callable[[Case], str | None],
    left_out: dict[str, str],
    *,
    split: Split,
    table: Path,
    missing: Missing,
    max_missing: int,
) -> Iterator[Case]:
    """Yield the cases that can be used.

    Args:
        cases: the cases of a split.
        why_not: what speaks against a case; None where nothing does.
        left_out: takes the others, case id -> why.
        split: named in errors.
        table: named in errors.
        missing: "stop" raises at the first; "skip" leaves it out and logs it.
        max_missing: with "skip", more than this raise.

    Raises:
        DataError: at the first unusable case, or when too many are left out.
    """
    for case in cases:
        reason = why_not(case)
        if reason is None:
            yield case
            continue
        if missing == "stop":
            raise DataError(f'{reason} Or set missing = "skip" on the dataset. (case {case.id!r})')
        left_out[case.id] = reason
        log.warning("%s: case %r is left out: %s", table, case.id, reason)
        if len(left_out) > max_missing:
            raise DataError(
                f"{table}: {len(left_out)} cases of split {split!r} cannot be used, at most "
                f"max_missing = {max_missing} may be left out: {', '.join(left_out)}. The last: {reason}"
            )
