"""The records of a table and where each stands: CSV, JSON or JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evidcore.builtin.csv_rows import check_columns, check_there, read_rows
from evidcore.errors import DataError

Record = Mapping[str, Any]  # texts from CSV; whatever JSON holds from JSON


def read_records(table: Path, columns: Iterable[str]) -> list[tuple[str, Record]]:
    """Return the records of a `.csv`, `.json` or `.jsonl` file, each with its place ("line 3").

    A `.json` file holds a list of objects; their places count from 1 ("entry 3").

    Args:
        table: the file.
        columns: names that every record must have.

    Raises:
        DataError: if the file cannot be read, or lacks a column.
    """
    readers = {".csv": _csv, ".json": _json, ".jsonl": _json_lines}
    reader = readers.get(table.suffix.lower())
    if reader is None:
        raise DataError(
            f"{table}: a table ends in {', '.join(readers)}, got {table.suffix or 'no ending'!r}. "
            f"Save it as one of these."
        )
    check_there(table)
    try:
        records = list(reader(table, tuple(columns)))
    except UnicodeDecodeError as cause:
        raise DataError(f"{table}: is not UTF-8 text ({cause}). Save it as UTF-8.") from cause
    if not records:
        raise DataError(f"{table}: holds no records. Check that it is the right file.")
    return records


def _csv(table: Path, columns: Collection[str]) -> Iterator[tuple[str, Record]]:
    rows, ragged = read_rows(table, columns)
    if ragged:
        raise DataError(ragged[0])
    for line, row in rows:
        yield f"line {line}", row


def _json(table: Path, columns: Collection[str]) -> Iterator[tuple[str, Record]]:
    try:
        held = json.loads(table.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as cause:
        raise DataError(f"{table}: line {cause.lineno}: is not JSON ({cause.msg}). Correct it.") from cause
    if not isinstance(held, list):
        raise DataError(
            f"{table}: must be a list of objects, got a {type(held).__name__}. "
            f"Put the list alone into the file, or write one object a line and name it .jsonl."
        )
    for number, record in enumerate(held, 1):
        yield f"entry {number}", _object(record, columns, f"{table}: entry {number}")


def _json_lines(table: Path, columns: Collection[str]) -> Iterator[tuple[str, Record]]:
    with table.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as cause:
                raise DataError(
                    f"{table}: line {number}: is not JSON ({cause.msg}). Write one object a line."
                ) from cause
            yield f"line {number}", _object(record, columns, f"{table}: line {number}")


def _object(record: Any, columns: Collection[str], where: str) -> Record:
    if not isinstance(record, dict):
        raise DataError(f"{where}: must be an object with the columns as keys, got {record!r}. Correct it.")
    check_columns(record, columns, where)
    return {name: value.strip() if isinstance(value, str) else value for name, value in record.items()}
