"""A bare CSV of labels or questions, read as cases: enough to profile it, nothing to train on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from evidcore_plugin_tables.csv_rows import Row, read_rows, shown
from evidcore_plugin_tables.folder_table import finding_state
from evidcore_plugin_tables.target import states

from evidcore.case import Case, Finding, Question, Report, Split
from evidcore.errors import DataError, did_you_mean
from evidcore.text.tags import LETTERS

Cases = Mapping[Split, Sequence[Case]]
_SEPARATOR = "|"
_MOST_SHOWN = 10  # mistakes in one message


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column of a file holds what; "" where none does."""

    id: str = ""  # of a case: rows of one id are one case, and must agree; "": every row is its own
    patient: str = ""
    split: str = ""  # "": every case is in train
    report: str = ""
    labels: tuple[str, ...] = ()  # (): every column that reads as a finding's state
    question: str = ""
    options: tuple[str, ...] = ()  # a column an option, or one for all: a JSON list, or texts with | between
    answer: str = ""  # a letter, or the option's text

    def named(self) -> list[str]:
        """Return the columns that must be there."""
        single = [self.id, self.patient, self.split, self.report, self.question, self.answer]
        return [name for name in (*single, *self.labels, *self.options) if name]


def read_listing(path: Path, columns: Columns) -> Cases:
    """Read the cases of a CSV file by split.

    Raises:
        DataError: if a column, row or cell cannot be read, rows of one case differ, or a patient is in two
            splits; names the first mistakes, all with their lines.
    """
    lines, wrong = read_rows(path, ())
    if not lines and not wrong:
        raise DataError(f"{path}: holds no row under its header.")
    rows = [row for _, row in lines]
    names = list(rows[0]) if rows else columns.named()
    for name in columns.named():
        if name not in names:
            raise DataError(
                f"{path}: has no column {name!r}.{did_you_mean(name, names)} It has: {', '.join(names)}."
            )
    if columns.question and not (columns.options and columns.answer):
        raise DataError(f"{path}: questions need their options and answer. Add --options and --answer.")
    if not columns.question and not columns.labels:
        labels = tuple(name for name in names if name not in columns.named() and states(rows, name))
        if not labels:
            raise DataError(
                f"{path}: no column reads as a finding (1, 0, -1, present, absent, uncertain). Name them "
                f"with --labels, or --question, --options and --answer of a question file."
            )
        columns = dataclasses.replace(columns, labels=labels)
    cases: dict[str, tuple[Split, Case]] = {}
    first: dict[str, tuple[Split, Case]] = {}  # of each patient
    for line, row in lines:
        where = f"{path}: line {line}"
        try:
            split, case = _case(row, columns, where, line)
            home, known = cases.setdefault(case.id, (split, case))
            _refuse_contradiction(where, (split, case), (home, known))
            if case.patient is not None:
                _refuse_two_splits(where, (split, case), first.setdefault(case.patient, (split, case)))
            if known is not case:
                questions = (*known.questions, *case.questions)
                cases[case.id] = (split, dataclasses.replace(known, questions=questions))
        except DataError as error:
            wrong.append(str(error))
    if wrong:
        more = f"\n  and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        raise DataError(
            f"{path}: {len(wrong)} rows cannot be used\n  " + "\n  ".join(wrong[:_MOST_SHOWN]) + more
        )
    by_split = {name: [case for split, case in cases.values() if split == name] for name in get_args(Split)}
    return {split: some for split, some in by_split.items() if some}


def _refuse_contradiction(where: str, row: tuple[Split, Case], earlier: tuple[Split, Case]) -> None:
    """Stop at a row that contradicts an earlier one of its case."""
    (split, case), (home, known) = row, earlier
    said = {
        "split": (home, split),
        "patient": (known.patient, case.patient),
        "report": (known.report, case.report),
        "labels": (known.findings, case.findings),
    }
    for what, (before, now) in said.items():
        if before != now:
            raise DataError(
                f"{where}: case {case.id!r} has another {what} than in an earlier row. Make the rows of "
                f"one case agree, or name a column with another --id."
            )


def _refuse_two_splits(where: str, row: tuple[Split, Case], earlier: tuple[Split, Case]) -> None:
    """Stop at a row whose patient is in another split already."""
    (split, case), (home, other) = row, earlier
    if home != split:
        raise DataError(
            f"{where}: patient {case.patient!r} is in two splits: case {other.id!r} in {home!r}, case "
            f"{case.id!r} in {split!r}. Move one of them."
        )


def _case(row: Row, columns: Columns, where: str, line: int) -> tuple[Split, Case]:
    split = row[columns.split] if columns.split else "train"
    if split not in (known := get_args(Split)):
        raise DataError(
            f"{where}: split is {shown(split)}, expected one of {', '.join(known)}."
            f"{did_you_mean(split, known)} Correct the cell."
        )
    report = row[columns.report] if columns.report else ""
    result = {name: finding_state(row[name], f"{where}, column {name!r}") for name in columns.labels}
    return cast(Split, split), Case(
        id=(row[columns.id] if columns.id else "") or f"line {line}",
        patient=(row[columns.patient] or None) if columns.patient else None,
        volumes=(),
        report=Report(text=report) if report else None,
        findings=tuple(Finding(name=name, state=state) for name, state in result.items() if state),
        questions=(_question(row, columns, where, line),) if columns.question else (),
    )


def _question(row: Row, columns: Columns, where: str, line: int) -> Question:
    options = _options(row, columns, where)
    said = row[columns.answer]
    if said in options:
        answer = options.index(said)
    elif len(said) == 1 and said.upper() in LETTERS[: len(options)]:
        answer = LETTERS.index(said.upper())
    else:
        raise DataError(
            f"{where}: the answer is {shown(said)}, expected a letter of {LETTERS[: len(options)]} or the "
            f"text of an option."
        )
    return Question(id=str(line), text=row[columns.question], options=options, answer=answer)


def _options(row: Row, columns: Columns, where: str) -> tuple[str, ...]:
    if len(columns.options) > 1:
        given = [row[name] for name in columns.options]
    else:
        cell = row[columns.options[0]]
        try:
            given = json.loads(cell) if cell.startswith("[") else cell.split(_SEPARATOR)
        except json.JSONDecodeError as cause:
            raise DataError(f"{where}: the options are no JSON list ({cause}): {shown(cell)}.") from cause
    options = tuple(text for item in given if (text := str(item).strip()))
    if not 2 <= len(options) <= len(LETTERS) or len(set(options)) < len(options):
        listed = ", ".join(shown(option) for option in options[: len(LETTERS) + 1]) or "none"
        raise DataError(f"{where}: expected 2 to {len(LETTERS)} different options, got {listed}.")
    return options
