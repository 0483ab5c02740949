"""A bare CSV of labels or questions, read as cases: enough to profile it, nothing to train on."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidcore_plugin_tables.csv_rows import Row, check_columns, read_rows
from evidcore_plugin_tables.table_cases import CaseColumns, Gathered, Splitting
from evidcore_plugin_tables.table_questions import QuestionColumns, question_of
from evidcore_plugin_tables.target import states

from evidcore.api import Case, DataError, Question
from evidcore.case import Split

Cases = Mapping[Split, Sequence[Case]]
_CASE = "name of the case"  # the column that it is gathered from
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
    check_columns(names, columns.named(), str(path))
    if columns.question and not (columns.options and columns.answer):
        raise DataError(f"{path}: questions need their options and answer. Add --options and --answer.")
    labels = columns.labels
    if not columns.question and not labels:
        labels = tuple(name for name in names if name not in columns.named() and states(rows, name))
        if not labels:
            why = "no column reads as a finding (1, 0, -1, present, absent, uncertain)"
            remedy = "Name them with --labels, or --question, --options and --answer of a question file."
            raise DataError(f"{path}: {why}. {remedy}")
    case_columns = CaseColumns(
        id_column="", image_column=_CASE, patient_column=columns.patient, split_column=columns.split,
        report_column=columns.report, masks_column="", boxes_column="",
    )  # fmt: skip
    all_in_training = Splitting(validation_share=0, test_share=0)
    gathered = Gathered(path, path.parent, "arbitrary", case_columns, all_in_training, labels)
    for line, row in lines:
        record = {**row, _CASE: row.get(columns.id) or f"line {line}"}
        try:
            _, case, where = gathered.take(record, f"line {line}")
            gathered.questions[case] += [_question(row, columns, line, where)] if columns.question else []
        except DataError as error:
            wrong.append(str(error))
    wrong += gathered.clashes
    if wrong:
        more = f"\n  and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        listed = "\n  ".join(wrong[:_MOST_SHOWN])
        raise DataError(f"{path}: {len(wrong)} rows cannot be used\n  {listed}{more}")
    by_split: dict[Split, list[Case]] = {}
    for gathered_case, split in gathered.with_questions():
        by_split.setdefault(split, []).append(dataclasses.replace(gathered_case, volumes=()))
    return by_split


def _question(row: Row, columns: Columns, line: int, where: str) -> Question:
    is_single = len(columns.options) == 1
    asked = QuestionColumns(
        answer_is=None if re.fullmatch("[A-Za-z]", row[columns.answer]) else "text",
        option_columns=() if is_single else columns.options,
        options_column=columns.options[0] if is_single else "",
        question_column=columns.question,
        answer_column=columns.answer,
    )
    question = question_of(row, asked, str(line), where)
    if question is None:
        raise DataError(f"{where}: has no options. Fill column {columns.options[0]!r}, or drop the row.")
    return question
