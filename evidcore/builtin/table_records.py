"""The records of a table and where each stands: CSV, JSON or JSON Lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evidcore.errors import DataError, did_you_mean

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
    if not table.is_file():
        raise DataError(f"{table}: there is no such table. Check path and table of the dataset.")
    records = []
    try:
        for place, record in reader(table):
            _check_columns(record, columns, f"{table}: {place}" if table.suffix != ".csv" else str(table))
            records.append((place, record))
    except UnicodeDecodeError as cause:
        raise DataError(f"{table}: is not UTF-8 text ({cause}). Save it as UTF-8.") from cause
    if not records:
        raise DataError(f"{table}: holds no records. Check that it is the right file.")
    return records


def _csv(table: Path) -> Iterator[tuple[str, Record]]:
    with table.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = list(reader.fieldnames or [])
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(f"{table}: column {twice[0]!r} stands twice. Rename one.")
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"{table}: line {reader.line_num}: {len(names)} columns are named, the row has "
                        f"another number. Quote cells that hold commas."
                    )
                yield f"line {reader.line_num}", {name: cell.strip() for name, cell in row.items()}
        except csv.Error as cause:
            raise DataError(
                f"{table}: line {reader.line_num}: is not readable CSV ({cause}). Save it as CSV again."
            ) from cause


def _json(table: Path) -> Iterator[tuple[str, Record]]:
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
        yield f"entry {number}", _object(record, f"{table}: entry {number}")


def _json_lines(table: Path) -> Iterator[tuple[str, Record]]:
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
            yield f"line {number}", _object(record, f"{table}: line {number}")


def _object(record: Any, where: str) -> Record:
    if not isinstance(record, dict):
        raise DataError(f"{where}: must be an object with the columns as keys, got {record!r}. Correct it.")
    return {name: value.strip() if isinstance(value, str) else value for name, value in record.items()}


def _check_columns(record: Record, columns: Iterable[str], where: str) -> None:
    for name in columns:
        if name not in record:
            raise DataError(
                f"{where}: has no column {name!r}.{did_you_mean(name, record)} It has: "
                f"{', '.join(record) or 'none'}. Rename it or name it in the dataset's options."
            )
