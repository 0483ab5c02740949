"""The rows of a CSV file, each with its line."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from evidcore.api import DataError
from evidcore.errors import did_you_mean

Row = Mapping[str, str]
Wanted = Iterable[str] | Callable[[Collection[str]], Iterable[str]]  # of the names that are there
_MOST_SHOWN = 40  # characters
_MARKS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_QUOTED = re.compile(r'"[^"]*"')


def read_rows(table: Path, wanted: Wanted) -> tuple[list[tuple[int, Row]], list[str]]:
    """Return the rows that have a cell for each column, with their lines, and a message for each other one.

    Args:
        table: the CSV file, UTF-8; its cells are parted by what stands most often in its first line:
            commas, semicolons (spreadsheets of half of Europe write them) or tabs.
        wanted: columns that must be there; or what gives them, from the names that are there.

    Raises:
        DataError: if there is no such table, it is no CSV file, or a column is missing or stands twice.
    """
    check_there(table)
    rows: list[tuple[int, Row]] = []
    ragged: list[str] = []
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            unquoted = _QUOTED.sub("", first)
            reader = csv.DictReader(file, strict=True, delimiter=max(_MARKS, key=unquoted.count))
            names = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = names
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(f"{table}: column {twice[0]!r} stands twice. Rename one.")
            check_columns(names, wanted, str(table))
            for row in reader:
                if None in row or None in row.values():
                    ragged.append(
                        f"{table}: line {reader.line_num}: {len(names)} columns are named, the row has "
                        f"another number. Quote cells that hold {_MARKS[reader.reader.dialect.delimiter]}."
                    )
                else:
                    rows.append((reader.line_num, {name: cell.strip() for name, cell in row.items()}))
    except (UnicodeDecodeError, csv.Error) as cause:
        raise DataError(f"{table}: is not a readable CSV file ({cause}). Save it as UTF-8.") from cause
    return rows, ragged


def shown(cell: object) -> str:
    """Return a cell as messages print it; a long one may be a report, and is told by its length alone."""
    length = len(str(cell))
    return repr(cell) if length <= _MOST_SHOWN else f"a text of {length} characters"


def check_there(table: Path) -> None:
    """Raise DataError if there is no such table."""
    if not table.is_file():
        raise DataError(f"{table}: there is no such table. Check path and table of the dataset.")


def check_columns(names: Collection[str], wanted: Wanted, where: str) -> None:
    """Raise DataError at the first wanted column that is not among the names."""
    for name in wanted(names) if callable(wanted) else wanted:
        if name not in names:
            raise DataError(
                f"{where}: has no column {name!r}.{did_you_mean(name, names)} "
                f"It has: {', '.join(names) or 'none'}. Rename it or name it in the dataset's options."
            )


def usual_column(column: str, usual: str, other: str, names: Collection[str]) -> str:
    """Return the column that is read: `other` where the usual one is asked for and only `other` is there."""
    return other if column == usual and usual not in names and other in names else column


def optional_column(column: str, usual: str, names: Collection[str]) -> str:
    """Return a column that may be absent under its usual name alone; "" where it is."""
    return "" if column == usual and usual not in names else column


def items_of_cell(cell: str) -> Iterator[tuple[str, str, str]]:
    """Yield of each item of `name=value; name=value` its name, "=" and its value; no "=": all is the name."""
    for item in filter(None, (item.strip() for item in cell.split(";"))):
        name, equals, value = item.partition("=")
        yield name.strip(), equals, value.strip()
