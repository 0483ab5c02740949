"""Tables and lists as publishers ship them: CSV rows with line numbers, JSON documents."""

import ast
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evidcore_plugin_tables.csv_rows import Row as Row
from evidcore_plugin_tables.csv_rows import each_row

from evidcore.api import DataError
from evidcore.cache import plain_file
from evidcore.data.stored import unreadable

AGAIN = "Fetch it again from its publisher."


def read_rows(path: Path, wanted: Sequence[str] = ()) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a CSV file with the number of the line where each ends; raise at one that is none."""
    for line, row in each_row(path, wanted, AGAIN):
        if isinstance(row, str):
            raise DataError(row)
        yield line, row


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    if not path.is_file():
        raise unreadable(path, remedy="Check path; docs/reference/layouts.md lists what belongs there.")
    try:
        return json.loads(plain_file(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as cause:
        raise DataError(f"{path}: is not readable JSON ({cause}). {AGAIN}") from cause


def read_list(path: Path, *keys: str) -> list[dict[str, Any]]:
    """Return the tables that a JSON file lists; each has all the keys, and the first of them filled."""
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"{path}: must be a list of tables, got a {type(rows).__name__}. {AGAIN}")
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or not row.keys() >= {*keys} or not all(row[key] for key in keys[:1]):
            must = f"name {' and '.join(keys)}" if keys else "be a table"
            raise DataError(f"{path}: entry {index} must {must}, got {row!r}. {AGAIN}")
    return rows


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
    except (ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError):
        pass
    why = f"must be a list of {count} numbers as text, such as [{', '.join(['0.75'] * count)}], got {cell!r}"
    raise DataError(f"{where}: {why}. Correct the cell, or fetch the table again.")


def flag(cell: str, where: str) -> bool:
    """Read a binary label: 0 or 1, also written 0.0 or 1.0."""
    known = {"0": False, "0.0": False, "1": True, "1.0": True}
    if cell.strip() not in known:
        why = f"a label is 0 or 1, got {cell!r}"
        raise DataError(f"{where}: {why}. Correct the cell, or fetch the table again.")
    return known[cell.strip()]
