"""The rows of a CSV file, each with its line."""

import csv
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evidcore.api import DataError
from evidcore.cache import plain_file
from evidcore.data.stored import unreadable
from evidcore.errors import did_you_mean

Row = Mapping[str, str]
Wanted = Iterable[str] | Callable[[Collection[str]], Iterable[str]]  # of the names that are there
_MOST_SHOWN = 40  # characters
_LONGEST_CELL = 1 << 24  # characters; csv stops at 131072, reports and JSON in cells may be longer
_RENAME = "Rename it or name it in the dataset's options."
_FEW = 40  # columns that a message lists before it counts the others; some tables have thousands
_MARKS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_QUOTED = re.compile(r'"[^"]*"')
_NAME = re.compile(r"[!-~]+|.*\.[A-Za-z]\w{1,3}", re.DOTALL)  # in ASCII without blanks, or as files end
_DATA = re.compile(r".*\.(nii|gz|nrrd|nhdr|mha|dcm|np[yz]|png|jpe?g)|train|test", re.IGNORECASE)
WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def meanings(of: str) -> dict[str, Any]:
    """Return what each of the words that tables use for something means: "val" a validation split."""
    return {word: meaning for meaning, words in WORDS[of].items() for word in words}


def read_rows(table: Path, wanted: Wanted) -> tuple[list[tuple[int, Row]], list[str]]:
    """Return the rows of `each_row`, and its messages."""
    rows: list[tuple[int, Row]] = []
    ragged: list[str] = []
    for line, row in each_row(table, wanted):
        if isinstance(row, str):
            ragged.append(row)
        else:
            rows.append((line, row))
    return rows, ragged


def each_row(table: Path, wanted: Wanted, remedy: str = _RENAME) -> Iterator[tuple[int, Row | str]]:
    """Yield the rows with their lines; of one that has not a cell for each column, a message that says so.

    Args:
        table: the CSV file, UTF-8; its cells are parted by what stands most often in its first line:
            commas, semicolons (spreadsheets of half of Europe write them) or tabs.
        wanted: columns that must be there; or what gives them, from the names that are there.
        remedy: what to do about a column that is missing.

    Raises:
        DataError: if there is no such table, it is no CSV file, or a column is missing or stands twice.
    """
    check_there(table)
    csv.field_size_limit(max(_LONGEST_CELL, csv.field_size_limit()))
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            if not first.startswith("sep="):  # Excel's own line before the names
                file.seek(0)
            unquoted = _QUOTED.sub("", first)
            reader = csv.DictReader(file, strict=True, delimiter=max(_MARKS, key=unquoted.count))
            names = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = names
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(f"{table}: column {shown(twice[0])} stands twice. {all_columns(names)}")
            check_columns(names, wanted, str(table), remedy)
            for row in reader:
                if not any("".join(cell or "").strip() for cell in row.values()):
                    continue  # spreadsheets end in rows of empty cells
                line, mark = reader.line_num, reader.reader.dialect.delimiter
                if None in row or None in row.values():
                    why = f"{len(names)} columns are named, the row has another number"
                    yield line, f"{table}: line {line}: {why}. Quote cells that hold {_MARKS[mark]}."
                elif column := _with_rows(row, mark):
                    why = "a quote that begins a cell ends in a later one. Double the quotes of a text."
                    yield line, f"{table}: line {line}: the cell of {shown(column)} holds whole rows: {why}"
                else:
                    yield line, {name: cell.strip() for name, cell in row.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        remedy = "Save it as UTF-8, with rights to read it."
        raise DataError(f"{table}: is not a readable CSV file ({cause}). {remedy}") from cause


def _with_rows(row: Row, delimiter: str) -> str:
    """Return the column whose cell holds lines that are rows too, with a file of the same kind; else ""."""
    for column, cell in row.items():
        inner = [line.split(delimiter) for line in cell.splitlines()[1:]]
        for cells in inner:
            pairs = zip(row.values(), cells, strict=True) if len(cells) == len(row) else ()
            if any(Path(own).suffix and Path(own).suffix == Path(item).suffix for own, item in pairs):
                return column
    return ""


def shown(cell: object) -> str:
    """Return a cell as messages print it; a long one may be a report, and is told by its length alone."""
    length = len(str(cell))
    return repr(cell) if length <= _MOST_SHOWN else f"a text of {length} characters"


def text_faults(cells: Mapping[str, Any], columns: Iterable[str], folder: Path) -> dict[str, str]:
    """Return by column what is wrong with cells that hold a text in place of a name, as shifted columns do.

    Names above 40 characters are ASCII without blanks, end as files do, or are those of files in `folder`.
    """
    found = {}
    for column in filter(None, columns):
        cell = str(cells[column]).strip()
        files = (folder / name.partition("#")[0] for name in files_of_cell(cell, folder))
        if len(cell) > _MOST_SHOWN and not _NAME.fullmatch(cell) and not all(map(os.path.exists, files)):
            why = f"column {column!r} must hold a name, got {shown(cell)}"
            found[column] = f"{why}. Correct the cell, or shifted columns."
    return found


def all_columns(names: Collection[str], remedy: str = "Rename one.") -> str:
    """Return the columns of a table, and what to do: another thing where its first line looks like data."""
    if any(map(_DATA.fullmatch, names)):
        return "Its first line looks like data, not names of columns. Write a line of names above it."
    more = f" and {len(names) - _FEW} others" if len(names) > _FEW else ""
    listed = (name if len(name) <= _MOST_SHOWN else shown(name) for name in [*names][:_FEW])
    return f"It has: {', '.join(listed) or 'none'}{more}. {remedy}".strip()


def check_there(table: Path) -> None:
    """Raise DataError if there is no such table."""
    remedy = "Check path and table of the dataset."
    if plain_file(table).is_dir():
        raise DataError(f"{table}: is a folder. {remedy}")
    if not table.is_file():
        raise unreadable(table, remedy=remedy)


def check_columns(names: Collection[str], wanted: Wanted, where: str, remedy: str = _RENAME) -> None:
    """Raise DataError at the first wanted column that is not among the names."""
    for name in wanted(names) if callable(wanted) else wanted:
        if name not in names:
            why = f"has no column {name!r}.{did_you_mean(name, names)}"
            raise DataError(f"{where}: {why} {all_columns(names, remedy)}")


def usual_column(column: str, usual: str, other: str, names: Collection[str]) -> str:
    """Return the column that is read: `other` where the usual one is asked for and only `other` is there."""
    return other if column == usual and usual not in names and other in names else column


def optional_column(column: str, usual: str, names: Collection[str]) -> str:
    """Return a column that may be absent under its usual name alone; "" where it is."""
    return "" if column == usual and usual not in names else column


def files_of_cell(cell: str, folder: Path) -> list[str]:
    """Return the files that a cell names, ";" between them; one whose own name has a ";" stands alone."""
    items = [cell] if ";" not in cell or os.path.exists(folder / cell) else cell.split(";")
    return [item.strip() for item in items if item.strip()]


def items_of_cell(cell: str) -> Iterator[tuple[str, str, str]]:
    """Yield of each item of `name=value; name=value` its name, "=" and its value; no "=": all is the name."""
    for item in filter(None, (item.strip() for item in cell.split(";"))):
        name, equals, value = item.partition("=")
        yield name.strip(), equals, value.strip()
