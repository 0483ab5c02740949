"""A table of cases: its rows checked as a whole, its cells read one by one."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import get_args

from evidcore.api import DataError, MaskRef
from evidcore.case import Split, State
from evidcore.errors import did_you_mean
from evidcore_plugin_tables.csv_rows import (
    Row,
    items_of_cell,
    meanings,
    optional_column,
    read_rows,
    shown,
    text_faults,
    usual_column,
)

LABEL_MAPS = (".nii", ".nii.gz", ".nrrd", ".nhdr", ".png")
STATES: Mapping[str, State | None] = {"": None, **meanings("states")}

_STATED = meanings("facts")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderColumns:
    """Which columns say what a case is.

    Args:
        id_column: column name.
        volume_column: column name; "image" is read where there is no "volume".
        patient_column: column name; "" where patients are not known.
        split_column: column name.
        report_column: column name.
        masks_column: column name.
    """

    id_column: str = "id"
    volume_column: str = "volume"
    patient_column: str = "patient"
    split_column: str = "split"
    report_column: str = "report"
    masks_column: str = "masks"

    def among(self, names: Collection[str]) -> FolderColumns:
        """Return the columns that are read of a table with these names."""
        return dataclasses.replace(
            self,
            volume_column=usual_column(self.volume_column, "volume", "image", names),
            report_column=optional_column(self.report_column, "report", names),
            masks_column=optional_column(self.masks_column, "masks", names),
        )

    def wanted(self) -> list[str]:
        """Return the columns that must be there."""
        return [name for name in dataclasses.astuple(self) if name]


COLUMNS = FolderColumns()


@dataclasses.dataclass(frozen=True)
class Table:
    """A table as far as it can be read, and what is wrong with the rest of it."""

    columns: FolderColumns  # that are read
    rows: tuple[tuple[int, Row], ...]  # with line numbers
    unusable: tuple[str, ...]  # rows and cells that say nothing: a message each
    clashes: tuple[str, ...]  # ids given twice and patients in two splits: a message each


def read_table(table: Path, columns: FolderColumns, findings: Iterable[str]) -> Table:
    """Read a table with everything that is wrong with its rows; `findings` are further columns of it.

    Raises:
        DataError: if there is no such table, it is no CSV file, or a column is missing or stands twice.
    """
    rows, unusable = read_rows(table, lambda names: [*columns.among(names).wanted(), *findings])
    columns = columns.among(rows[0][1]) if rows else columns
    named: list[tuple[int, Row]] = []
    for line, row in rows:
        where = f"{table}: line {line}"
        faults = text_faults(row, (columns.id_column, columns.patient_column), table.parent)
        unusable += (f"{where}: {fault}" for fault in faults.values())
        named.append((line, {**row, **dict.fromkeys(faults, f"line {line}")}))
        unusable += _empty_cells(where, named[-1][1], columns)
    return Table(columns, tuple(named), tuple(unusable), tuple(_clashes(named, table, columns)))


def _empty_cells(where: str, row: Row, columns: FolderColumns) -> Iterator[str]:
    """Yield what is wrong with the cells that say which case a row is."""
    case, split, patient = row[columns.id_column], row[columns.split_column], columns.patient_column
    if not case:
        yield f"{where}: column {columns.id_column!r} is empty. Give the case a name."
    splits = get_args(Split)
    if split not in splits:
        why = f"{where}: case {case!r} has split {shown(split)}"
        yield f"{why}, expected one of {', '.join(splits)}.{did_you_mean(split, splits)} Correct the cell."
    if patient and not row[patient]:
        yield f"{where}: case {case!r} {no_patient(patient)}"


def _clashes(rows: Iterable[tuple[int, Row]], table: Path, columns: FolderColumns) -> Iterator[str]:
    """Yield the ids that stand twice and the patients that are in two splits."""
    first: dict[str, int] = {}
    home: dict[str, tuple[str, str]] = {}
    for line, row in rows:
        case, split = row[columns.id_column], row[columns.split_column]
        if case and first.setdefault(case, line) != line:
            why = f"case {case!r} stands in line {first[case]} already"
            yield f"{table}: line {line}: {why}. Give each an id."
        patient = row[columns.patient_column] if columns.patient_column else ""
        other, other_split = home.setdefault(patient, (case, split)) if patient else (case, split)
        if other_split != split:
            why = f"{table}: line {line}: patient {patient!r} is in two splits"
            yield f"{why}: case {other!r} in {other_split!r}, case {case!r} in {split!r}. Move one of them."


def no_patient(column: str) -> str:
    """Return what is wrong with a row whose cell of the patient is empty, and what to do."""
    return f'names no patient. Fill column {column!r}, or set patient_column = "" if patients are not known.'


def stated_by(column: str) -> str | None:
    """Return what a column states of patient or scan, `sex`, `age` or `spacing`, by its usual names."""
    return _STATED.get(re.sub(r"[\W_]+", "", column.lower()))


def finding_state(cell: str, where: str) -> State | None:
    """Read a finding's cell; None where it is empty."""
    if cell.lower() not in STATES:
        why = f"expected 1, 0, -1, present, absent, uncertain, yes, no or nothing, got {shown(cell)}"
        raise DataError(f"{where}: {why}. Correct the cell.")
    return STATES[cell.lower()]


def masks_of_cell(cell: str, folder: Path, where: str) -> dict[str, MaskRef]:
    """Read `name=file; name=file#5` into masks by name."""
    masks: dict[str, MaskRef] = {}
    for name, equals, file in items_of_cell(cell):
        if not equals or not name or not file or name in masks:
            why = f"masks are written name=file, each name once, with ';' between, got {shown(cell)}"
            raise DataError(f"{where}: {why}. Correct the cell.")
        masks[name] = mask_ref(file, folder)
    return masks


def mask_ref(text: str, folder: Path) -> MaskRef:
    """Read `file`, `file#5` (a label), or `file.npz#key`, `RS.dcm#region`, `SEG.dcm#segment` (a name)."""
    path, pick = file_and_key(text, folder)
    if pick is None or path.endswith(".npz"):
        return MaskRef(path=path, key=pick)
    if pick.isdecimal() and len(pick) < 10:
        return MaskRef(path=path, label=int(pick))
    if path.lower().endswith(LABEL_MAPS) and not path.lower().endswith(".seg.nrrd"):
        raise DataError(f"{path}: a label is a whole number, got {shown(pick)}. Write file.nii.gz#5.")
    return MaskRef(path=path, key=pick)


def file_and_key(text: str, folder: Path) -> tuple[str, str | None]:
    """Read `file`, `file.npz#key` or `folder#SeriesInstanceUID`; a file's own name may have a "#" too."""
    starts = [text[: mark.start()] for mark in re.finditer("#", text)]
    if not starts or os.path.exists(folder / text):
        return str(folder / text), None
    file = next((start for start in starts if os.path.exists(folder / start)), starts[0])
    return str(folder / file), text[len(file) + 1 :]
