"""A bare CSV of labels or questions, read as cases: enough to profile it, nothing to train on."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidcore.builtin.choice import LETTERS
from evidcore.builtin.folder_table import SPLITS, finding_state
from evidcore.case import Case, Finding, Question, Report, Split
from evidcore.data.target import read_columns, states
from evidcore.errors import DataError, did_you_mean

Cases = Mapping[Split, Sequence[Case]]
_SEPARATOR = "|"
_MOST_SHOWN = 10  # mistakes in one message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column of a file holds what; "" where none does."""

    id: str = ""  # of a case: rows of one id are one case; "": every row is its own
    patient: str = ""
    split: str = ""  # "": every case is in train
    report: str = ""
    labels: tuple[str, ...] = ()  # (): every column that reads as a finding's state
    question: str = ""
    options: tuple[
        str, ...
    ] = ()  # one column an option, or one for all: a JSON list, or texts with | between
    answer: str = ""  # a letter, or the option's text

    def named(self) -> list[str]:
        """Return the columns that must be there."""
        single = [self.id, self.patient, self.split, self.report, self.question, self.answer]
        return [name for name in (*single, *self.labels, *self.options) if name]


def read_listing(path: Path, columns: Columns) -> Cases:
    """Read the cases of a CSV file by split.

    Raises:
        DataError: if a column or cell cannot be read; names the first mistakes, all with their lines.
    """
    names, rows = read_columns(path)
    for name in columns.named():
        if name not in names:
            raise DataError(
                f"{path}: has no column {name!r}.{did_you_mean(name, names)} It has: {', '.join(names)}."
            )
    if not rows:
        raise DataError(f"{path}: holds no row under its header.")
    if columns.question and not (columns.options and columns.answer):
        raise DataError(f"{path}: questions need their options and answer. Add --options and --answer.")
    if not columns.question:
        columns = dataclasses.replace(columns, labels=columns.labels or _labels(path, names, rows, columns))
    wrong: list[str] = []
    cases: dict[Split, dict[str, Case]] = collections.defaultdict(dict)
    for number, row in enumerate(rows, 1):
        try:
            split, case = _case(row, columns, f"{path}: row {number}", number)
        except DataError as error:
            wrong.append(str(error))
            continue
        before = cases[split].get(case.id)
        cases[split][case.id] = case if before is None else _joined(before, case)
    if wrong:
        more = f"\n  and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        raise DataError(
            f"{path}: {len(wrong)} rows cannot be read\n  " + "\n  ".join(wrong[:_MOST_SHOWN]) + more
        )
    return {split: list(cases[split].values()) for split in SPLITS if split in cases}


def _labels(
    path: Path, names: Sequence[str], rows: Sequence[Mapping[str, str]], columns: Columns
) -> tuple[str, ...]:
    """Return the columns that read as findings."""
    found = tuple(name for name in names if name not in columns.named() and states(rows, name))
    if not found:
        raise DataError(
            f"{path}: no column reads as a finding (1, 0, -1, present, absent, uncertain). Name them with "
            f"--labels, or --question, --options and --answer of a question file."
        )
    return found


def _case(row: Mapping[str, str], columns: Columns, where: str, number: int) -> tuple[Split, Case]:
    split = row[columns.split] if columns.split else "train"
    if split not in SPLITS:
        raise DataError(
            f"{where}: split is {split!r}, expected one of {', '.join(SPLITS)}.{did_you_mean(split, SPLITS)}"
        )
    report = row[columns.report] if columns.report else ""
    found = {name: finding_state(row[name], f"{where}, column {name!r}") for name in columns.labels}
    return split, Case(
        id=(row[columns.id] if columns.id else "") or f"row {number}",
        patient=(row[columns.patient] or None) if columns.patient else None,
        volumes=(),
        report=Report(text=report) if report else None,
        findings=tuple(Finding(name=name, state=state) for name, state in found.items() if state),
        questions=(_question(row, columns, where, number),) if columns.question else (),
    )


def _question(row: Mapping[str, str], columns: Columns, where: str, number: int) -> Question:
    options = _options(row, columns, where)
    said = row[columns.answer]
    if said in options:
        answer = options.index(said)
    elif len(said) == 1 and said.upper() in LETTERS[: len(options)]:
        answer = LETTERS.index(said.upper())
    else:
        raise DataError(
            f"{where}: the answer is {_shown(said)}, expected a letter of {LETTERS[: len(options)]} or the "
            f"text of an option."
        )
    return Question(id=str(number), text=row[columns.question], options=options, answer=answer)


def _options(row: Mapping[str, str], columns: Columns, where: str) -> tuple[str, ...]:
    if len(columns.options) > 1:
        given = [row[name] for name in columns.options]
    else:
        cell = row[columns.options[0]]
        try:
            given = json.loads(cell) if cell.startswith("[") else cell.split(_SEPARATOR)
        except json.JSONDecodeError as cause:
            raise DataError(f"{where}: the options are no JSON list ({cause}): {_shown(cell)}.") from cause
    options = tuple(text for item in given if (text := str(item).strip()))
    if not 2 <= len(options) <= len(LETTERS) or len(set(options)) < len(options):
        shown = ", ".join(_shown(option) for option in options[: len(LETTERS) + 1]) or "none"
        raise DataError(f"{where}: expected 2 to {len(LETTERS)} different options, got {shown}.")
    return options


def _shown(cell: str, most: int = 40) -> str:
    """Return a cell as messages print it; a long one may be a report, and is told by its length alone."""
    return repr(cell) if len(cell) <= most else f"a text of {len(cell)} characters"


def _joined(first: Case, second: Case) -> Case:
    """Return one case for two rows of it."""
    return dataclasses.replace(first, questions=(*first.questions, *second.questions))
