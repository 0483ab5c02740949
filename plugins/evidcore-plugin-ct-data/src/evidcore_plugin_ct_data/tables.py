"""Tables and lists as publishers ship them: CSV rows with line numbers, JSON documents."""

from __future__ import annotations

import ast
import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.api import DataError
from evidcore.errors import did_you_mean

Row = Mapping[str, str]

AGAIN = "Fetch it again from its publisher."
LONGEST_CELL = 1 << 24  # characters; csv stops at 131072, reports and JSON in cells may be longer
FEW = 12  # columns that a message lists before it counts the others


def read_rows(path: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a CSV file with the number of the line where each ends.

    Raises:
        DataError: if the file is missing, no CSV, or lacks a column; names the nearest one.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: there is no such table. Check path; docs/reference/layouts.md lists what belongs there."
        )
    csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = list(reader.fieldnames or ())
            for name in wanted:
                if name not in columns:
                    raise DataError(
                        f"{path}: has no column {name!r}.{did_you_mean(name, columns)} It has: "
                        f"{_few(columns)}. {AGAIN}"
                    )
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"{path}: line {reader.line_num}: {len(columns)} columns are named, the row has "
                        f"another number. {AGAIN}"
                    )
                yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error) as cause:
        raise DataError(f"{path}: is not a readable CSV file ({cause}). {AGAIN}") from cause


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    if not path.is_file():
        raise DataError(
            f"{path}: there is no such file. Check path; docs/reference/layouts.md lists what belongs there."
        )
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as cause:
        raise DataError(f"{path}: is not readable JSON ({cause}). {AGAIN}") from cause


def number(cell: str, where: str) -> float:
    """Read a finite number from a cell."""
    try:
        value = float(cell)
        if math.isfinite(value):
            return value
    except ValueError:
        pass
    raise DataError(f"{where}: must be a number, got {cell!r}. Correct the cell, or fetch the table again.")


def numbers(cell: str, count: int, where: str) -> tuple[float, ...]:
    """Read `count` numbers from a cell that holds a list as text, such as `"[0.75, 0.75]"`."""
    try:
        values = ast.literal_eval(cell.strip())
        result = tuple(float(value) for value in values)
        if len(result) == count and all(map(math.isfinite, result)):
            return result
    except (ValueError, SyntaxError, TypeError):
        pass
    raise DataError(
        f"{where}: must be a list of {count} numbers as text, such as [{', '.join(['0.75'] * count)}], "
        f"got {cell!r}. Correct the cell, or fetch the table again."
    )


def flag(cell: str, where: str) -> bool:
    """Read a binary label: 0 or 1, also written 0.0 or 1.0."""
    known = {"0": False, "0.0": False, "1": True, "1.0": True}
    if cell.strip() not in known:
        raise DataError(
            f"{where}: a label is 0 or 1, got {cell!r}. Correct the cell, or fetch the table again."
        )
    return known[cell.strip()]


def _few(columns: Sequence[str]) -> str:
    """List columns for a message; some tables have thousands."""
    if not columns:
        return "none"
    more = f" and {len(columns) - FEW} others" if len(columns) > FEW else ""
    return ", ".join(columns[:FEW]) + more
