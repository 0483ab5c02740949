"""The records of a table and where each stands: CSV, JSON or JSON Lines."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from evidcore.api import DataError
from evidcore_plugin_tables.csv_rows import Wanted, check_columns, check_there, read_rows, shown

Record = Mapping[str, Any]  # texts from CSV; whatever JSON holds from JSON
Found = tuple[list[tuple[str, Record]], list[str]]


def read_records(table: Path, columns: Wanted) -> Found:
    """Return the records of a `.csv`, `.json` or `.jsonl` file, and a message for each that is unusable.

    Each record comes with its place: "line 3", or in a `.json` file, a list of objects, "entry 3", from 1.
    `columns` must be in every record; they may depend on the names that are there.

    Raises:
        DataError: if the file cannot be read, or no record has one of the columns.
    """
    readers = {".csv": _csv, ".json": _json, ".jsonl": _json_lines}
    reader = readers.get(table.suffix.lower())
    if reader is None:
        why = f"a table ends in {', '.join(readers)}, got {table.suffix or 'no ending'!r}"
        raise DataError(f"{table}: {why}. Save it as one of these.")
    check_there(table)
    try:
        records, unusable = reader(table, columns)
    except UnicodeDecodeError as cause:
        raise DataError(f"{table}: is not UTF-8 text ({cause}). Save it as UTF-8.") from cause
    if not records and not unusable:
        raise DataError(f"{table}: holds no records. Check that it is the right file.")
    return records, unusable


def _csv(table: Path, columns: Wanted) -> Found:
    rows, ragged = read_rows(table, columns)
    return [(f"line {line}", row) for line, row in rows], ragged


def _json(table: Path, columns: Wanted) -> Found:
    text = table.read_text(encoding="utf-8-sig")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as cause:  # too long a number and too deep a list have no line
        line = f" line {cause.lineno}:" if isinstance(cause, json.JSONDecodeError) else ""
        raise DataError(f"{table}:{line} is not JSON ({getattr(cause, 'msg', cause)}). Mend it.") from cause
    if not isinstance(entries, list):
        remedy = "Put the list alone into the file, or write one object a line and name it .jsonl."
        raise DataError(f"{table}: must be a list of objects, got a {type(entries).__name__}. {remedy}")
    return _objects(table, columns, [(f"entry {number}", each) for number, each in enumerate(entries, 1)])


def _json_lines(table: Path, columns: Wanted) -> Found:
    entries: list[tuple[str, Any]] = []
    wrong: list[str] = []
    with table.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                entries.append((f"line {number}", json.loads(line)))
            except (ValueError, RecursionError) as cause:
                why = getattr(cause, "msg", cause)
                wrong.append(f"{table}: line {number}: is not JSON ({why}). Write one object a line.")
    records, unusable = _objects(table, columns, entries)
    return records, wrong + unusable


def _objects(table: Path, columns: Wanted, entries: Collection[tuple[str, Any]]) -> Found:
    """Take the objects that have every column; a column that none of them has is the table's mistake."""
    records: list[tuple[str, Record]] = []
    wrong: list[str] = []
    names = dict.fromkeys(name for _, each in entries if isinstance(each, dict) for name in each)
    columns = list(columns(names) if callable(columns) else columns)
    if names:
        check_columns(names, columns, str(table))
    for place, each in entries:
        where = f"{table}: {place}"
        try:
            if not isinstance(each, dict):
                why = f"must be an object with the columns as keys, got {shown(each)}"
                raise DataError(f"{where}: {why}. Correct it.")
            check_columns(each, columns, where)
        except DataError as mistake:
            wrong.append(str(mistake))
        else:
            cells = {name: value.strip() if isinstance(value, str) else value for name, value in each.items()}
            records.append((place, cells))
    return records, wrong
