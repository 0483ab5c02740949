"""A table of cases: its rows checked as a whole, its cells read one by one."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from evidcore.case import MaskRef, Split, State
from evidcore.errors import DataError, did_you_mean

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
LABEL_MAPS = (".nii", ".nii.gz", ".nrrd", ".nhdr", ".png")
Row = Mapping[str, str]
STATES: dict[str, State | None] = {
    "": None,
    "1": "present",
    "1.0": "present",
    "present": "present",
    "0": "absent",
    "0.0": "absent",
    "absent": "absent",
    "-1": "uncertain",
    "-1.0": "uncertain",
    "uncertain": "uncertain",
}


def read_rows(table: Path, columns: Mapping[str, str], findings: Iterable[str]) -> list[tuple[int, Row]]:
    """Return the rows with their line numbers.

    Args:
        table: the CSV file.
        columns: the file's column names for id, volume, patient ("" for unknown), split.
        findings: further columns that must be there.

    Raises:
        DataError: on a missing column, an id given twice, an unknown split, a patient in two splits.
    """
    wanted = [name for key in ("id", "volume", "patient", "split") if (name := columns[key])]
    rows = list(_lines(table, [*wanted, *findings]))
    _refuse_repeats(rows, table, columns)
    if columns["patient"]:
        _refuse_shared_patients(rows, table, columns)
    return rows


def _refuse_repeats(rows: list[tuple[int, Row]], table: Path, columns: Mapping[str, str]) -> None:
    first: dict[str, int] = {}
    for line, row in rows:
        case, split = row[columns["id"]], row[columns["split"]]
        if not case:
            raise DataError(f"{table}: line {line}: column {columns['id']!r} is empty. Give the case a name.")
        if case in first:
            raise DataError(
                f"{table}: line {line}: case {case!r} stands in line {first[case]} already. Give each an id."
            )
        first[case] = line
        if split not in SPLITS:
            raise DataError(
                f"{table}: line {line}: case {case!r} has split {split!r}, expected one of "
                f"{', '.join(SPLITS)}.{did_you_mean(split, SPLITS)} Correct the cell."
            )


def _refuse_shared_patients(rows: list[tuple[int, Row]], table: Path, columns: Mapping[str, str]) -> None:
    home: dict[str, tuple[str, str]] = {}
    for line, row in rows:
        case, split, patient = (row[columns[key]] for key in ("id", "split", "patient"))
        if not patient:
            raise DataError(
                f"{table}: line {line}: case {case!r} names no patient. Fill column {columns['patient']!r}, "
                f'or set patient_column = "" if patients are not known.'
            )
        other, other_split = home.setdefault(patient, (case, split))
        if other_split != split:
            raise DataError(
                f"{table}: line {line}: patient {patient!r} is in two splits: case {other!r} in "
                f"{other_split!r}, case {case!r} in {split!r}. Move one of them."
            )


def _lines(table: Path, wanted: Iterable[str]) -> Iterator[tuple[int, Row]]:
    if not table.is_file():
        raise DataError(f"{table}: there is no such table. Check path and table of the dataset.")
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = list(reader.fieldnames or [])
            _check_columns(names, wanted, table)
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"{table}: line {reader.line_num}: {len(names)} columns are named, the row has "
                        f"another number. Quote cells that hold commas."
                    )
                yield reader.line_num, {name: cell.strip() for name, cell in row.items()}
    except (UnicodeDecodeError, csv.Error) as cause:
        raise DataError(f"{table}: is not a readable CSV file ({cause}). Save it as UTF-8.") from cause


def _check_columns(names: list[str], wanted: Iterable[str], table: Path) -> None:
    for name in wanted:
        if name not in names:
            raise DataError(
                f"{table}: has no column {name!r}.{did_you_mean(name, names)} "
                f"It has: {', '.join(names) or 'none'}. Rename it or name it in the dataset's options."
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{table}: column {twice[0]!r} stands twice. Rename one.")


def finding_state(cell: str, where: str) -> State | None:
    """Read a finding's cell; None where it is empty."""
    if cell.lower() not in STATES:
        raise DataError(
            f"{where}: expected 1, 0, -1, present, absent, uncertain or nothing, got {cell!r}. "
            f"Correct the cell."
        )
    return STATES[cell.lower()]


def masks_of_cell(cell: str, folder: Path, where: str) -> dict[str, MaskRef]:
    """Read `name=file; name=file#5` into masks by name."""
    masks: dict[str, MaskRef] = {}
    for item in filter(None, (item.strip() for item in cell.split(";"))):
        name, equals, file = (part.strip() for part in item.partition("="))
        if not equals or not name or not file or name in masks:
            raise DataError(
                f"{where}: masks are written name=file, each name once, with ';' between, got {cell!r}. "
                f"Correct the cell."
            )
        masks[name] = mask_ref(file, folder)
    return masks


def mask_ref(text: str, folder: Path) -> MaskRef:
    """Read `file`, `file#5` (a label), or `file.npz#key`, `RS.dcm#region`, `SEG.dcm#segment` (a name)."""
    file, hash_sign, pick = text.partition("#")
    path = str(folder / file)
    if not hash_sign:
        return MaskRef(path=path)
    if file.endswith(".npz"):
        return MaskRef(path=path, key=pick)
    if pick.isdecimal():
        return MaskRef(path=path, label=int(pick))
    if file.lower().endswith(LABEL_MAPS) and not file.lower().endswith(".seg.nrrd"):
        raise DataError(f"{path}: a label is a whole number, got {pick!r}. Write file.nii.gz#5.")
    return MaskRef(path=path, key=pick)


def file_and_key(text: str, folder: Path) -> tuple[str, str | None]:
    """Read a volume's `file`, or `file.npz#key`, or `folder#SeriesInstanceUID`."""
    file, hash_sign, key = text.partition("#")
    return str(folder / file), key if hash_sign else None
