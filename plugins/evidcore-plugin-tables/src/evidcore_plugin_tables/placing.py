"""Which column of an unknown table of questions holds what: told by its name, else by what its cells hold."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from evidcore.api import DataError
from evidcore.case import Split
from evidcore.errors import did_you_mean
from evidcore.text.tags import LETTERS
from evidcore_plugin_tables.csv_rows import WORDS, all_columns, meanings, shown
from evidcore_plugin_tables.table_questions import (
    USUAL_OPTIONS,
    AnswerForm,
    QuestionColumns,
    is_yes_or_no,
    question_of,
    written,
)
from evidcore_plugin_tables.table_records import Record, read_records

USUAL: Mapping[str, Sequence[str]] = WORDS["columns"]  # the first is what a column is best called
WHAT: Mapping[str, str] = WORDS["called"]
SPLITS: Mapping[str, Split] = meanings("splits")
SEPARATORS = ("|", ";", "\n", "/", ",")
_LETTERED = re.compile(rf"(?:(?:option|choice|answer)[ _-]?)?([{LETTERS}]|[1-9])", re.IGNORECASE)
_LOOKED_AT = 200  # records
_FORMS: Mapping[tuple[AnswerForm, int], str] = {
    ("letter", 0): "a letter", ("text", 0): "an option's text", ("index", 0): "a number from 0",
    ("index", 1): "a number from 1",
}  # fmt: skip
_MOST = 0.5  # of the cells that must read as what a column is taken for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """What data set `table` must be told of a table, and what it leaves unread."""

    options: Mapping[str, Any]  # those that differ from the data set's defaults
    columns: Mapping[str, str]  # by what they hold
    unused: tuple[str, ...]  # columns that are not read
    scans: tuple[str, ...]  # files of the first records, as the table names them


def place(table: Path, scans: Path, named: Mapping[str, str]) -> Placed:
    """Find out which column holds what.

    Args:
        table: a `.csv`, `.json` or `.jsonl` file, one question a record.
        scans: the folder that the files of its scans are named from.
        named: columns by what they hold ("image"), in place of what would be found; several with `,` between
            for `options`.

    Raises:
        DataError: naming at once everything that could not be placed, and what to call it.
    """
    numbered, wrong = read_records(table, ())
    records = [record for _, record in numbered]
    if not records:
        raise DataError(f"{table}: no record of it can be read. {wrong[0] if wrong else 'It has none.'}")
    names = list(dict.fromkeys(name for record in records for name in record))
    for what, columns in named.items():
        if what not in USUAL:
            why = f"a column holds one of {', '.join(USUAL)}"
            raise DataError(f"--column {what}={columns}: {why}, got {what!r}.{did_you_mean(what, USUAL)}")
        for one in columns.split(",") if what == "options" else [columns]:
            if one not in names:
                why = f"{table} has no column {one!r}.{did_you_mean(one, names)}"
                raise DataError(f"--column {what}={columns}: {why} {all_columns(names, '')}")
    first = records[:_LOOKED_AT]
    plain = {re.sub(r"[\s-]+", "_", name.strip().casefold()): name for name in reversed(names)}
    usual = {what: next((plain[it] for it in known if it in plain), "") for what, known in USUAL.items()}
    found = {what: named.get(what) or usual[what] for what in USUAL if named.get(what) or usual[what]}
    if "image" not in found and (column := _of_files(first, names, scans)):
        found["image"] = column
    missing = [what for what in ("image", "question", "answer") if what not in found]
    options: dict[str, Any] = {
        f"{what}_column": found.get(what, "")
        for what in USUAL
        if what != "options" and found.get(what, _ABSENT.get(what, "")) != _DEFAULTS.get(what, "")
    }
    given = _options(first, names, found, named)
    if given is None and "answer" in found and all(is_yes_or_no(one.get(found["answer"])) for one in first):
        given = {}
    if given is None:
        missing.append("options")
    if missing:
        raise DataError(_unplaced(table, scans, missing, names))
    assert given is not None
    options |= given
    asked = {**given, "question_column": found["question"]}
    options |= _answers(table, numbered[:_LOOKED_AT], asked, found["answer"])
    if "split" in found:
        options |= _splits(table, records, found["split"])
    used = {*found.values(), *given.get("option_columns", USUAL_OPTIONS), "masks", "boxes"}
    return Placed(
        options=options,
        columns=found,
        unused=tuple(name for name in names if name not in used),
        scans=tuple(dict.fromkeys(written(record[found["image"]]) for record in first)),
    )


_DEFAULTS = {what: what for what in ("id", "image", "patient", "split", "question", "answer", "report")}
_ABSENT = {"report": "report"}  # need not be there under its usual name


def _of_files(records: Sequence[Record], names: Sequence[str], scans: Path) -> str | None:
    """Return the first column most of whose cells name files."""
    for name in names:
        cells = [written(record.get(name)) for record in records]
        filled = [cell.partition(";")[0].strip() for cell in cells if cell and len(cell) < 500]
        if filled and sum((scans / cell).exists() for cell in filled) > _MOST * len(filled):
            return name
    return None


def _options(
    records: Sequence[Record], names: Sequence[str], found: Mapping[str, str], named: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return what the data set is told of the options; None where no column holds any."""
    if "," in named.get("options", ""):
        return {"option_columns": named["options"].split(",")}
    if "options" in found:
        cells = [cell for record in records if (cell := written(record.get(found["options"])))]
        lists = all(cell.startswith("[") for cell in cells)
        separator = next((mark for mark in SEPARATORS if cells and all(mark in cell for cell in cells)), None)
        if lists or separator in (None, "|"):
            return {"options_column": found["options"]}
        return {"options_column": found["options"], "separator": separator}
    lettered = {match[1].upper(): name for name in names if (match := _LETTERED.fullmatch(name.strip()))}
    columns = [lettered[mark] for mark in sorted(lettered)]
    if len(columns) < 2:
        return None
    return {} if tuple(columns) == USUAL_OPTIONS else {"option_columns": columns}


def _answers(
    table: Path, numbered: Sequence[tuple[str, Record]], given: Mapping[str, Any], column: str
) -> dict[str, Any]:
    """Return how the answers are written."""
    read: dict[tuple[AnswerForm, int], list[int | None]] = {}  # which option each names, by form
    mistakes: list[str] = []
    for form, first in _FORMS:
        columns = QuestionColumns(**given, answer_column=column, answer_is=form, first_index=first)
        columns = columns.among(numbered[0][1])
        read[form, first] = [_named(record, columns, str(table), mistakes) for _, record in numbered]
    counts = {key: len(places) - places.count(None) for key, places in read.items()}
    best = max(counts, key=lambda key: counts[key])  # of equals the first
    if counts[best] <= _MOST * len(numbered):
        why = f"column {column!r} was taken for {WHAT['answer']}, and most of its cells name no option"
        raise DataError(f"{table}: {why}: {mistakes[0]} Say another column with --column answer=NAME.")
    form, first = best
    reading: dict[str, Any] = {"first_index": first} if first else {}
    reading |= {"answer_is": form} if form != "letter" else {}
    for other, places in read.items():
        pairs = zip(numbered, read[best], places, strict=True)
        clash = next((at for at, *both in pairs if None not in both and both[0] != both[1]), None)
        if clash is not None and counts[other] == counts[best]:
            why = f"{shown(clash[1][column])} is one option as {_FORMS[best]}, another as {_FORMS[other]}"
            remedy = (
                "As many rows read so as so. Write longer options, as 'grade A', and their texts as answers."
            )
            raise DataError(f"{table}: {clash[0]}: column {column!r}: {why}. {remedy}")
        reading |= {"answer_is": form} if clash else {}
    return reading


def _named(record: Record, columns: QuestionColumns, where: str, mistakes: list[str]) -> int | None:
    """Return which option a record's answer names; None where it is no question with its answer."""
    try:
        question = question_of(record, columns, "", where, yes_or_no=True)
    except DataError as mistake:
        mistakes.append(str(mistake))
        return None
    return None if question is None else question.answer


def _splits(table: Path, records: Sequence[Record], column: str) -> dict[str, Any]:
    """Return what the table's words for splits mean."""
    words = dict.fromkeys(written(record.get(column)) for record in records)
    unknown = [word for word in words if word.casefold() not in SPLITS]
    if unknown:
        why = f"column {column!r} was taken for the split, and {shown(unknown[0])} is none"
        remedy = "Call them train, validation and test, or rename the column: patients are then shared out."
        raise DataError(f"{table}: {why}. {remedy}")
    names = {word: SPLITS[word.casefold()] for word in words if word not in get_args(Split)}
    return {"split_names": names} if names else {}


def _unplaced(table: Path, scans: Path, missing: Sequence[str], names: Sequence[str]) -> str:
    """Return the message about everything that no column was found for."""
    count = "1 thing" if len(missing) == 1 else f"{len(missing)} things"
    lines = [f"{table}: no column was found for {count}. {all_columns(names, '')}"]
    for what in missing:
        usual = ", ".join(USUAL[what])
        why = f"none is called {usual}."
        if what == "image":
            why = f"none is called {usual}, and no column's cells name files in {scans}."
        elif what == "options":
            why = (
                f"no columns are called A, B, …, and none is called {usual}. Give each option a column "
                "(A, B, C, D), or all of them one, with | between."
            )
        call = f"Call the column {USUAL[what][0]!r}, or name it with --column {what}=NAME."
        lines.append(f"  {WHAT[what]}: {why} {call}")
    return "\n".join(lines)
