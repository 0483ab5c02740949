"""Dataset `folder`: volumes of any format and a CSV table that lists them."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

from annotated_types import Gt

from evidcore.api import Case, DataError, Finding, InlineOptions, MaskRef, Report, VolumeRef
from evidcore.case import Intensity, Oblique, Split, State
from evidcore_plugin_tables.case_reading import CaseTable
from evidcore_plugin_tables.csv_rows import Row, files_of_cell, text_faults
from evidcore_plugin_tables.folder_table import (
    COLUMNS,
    FolderColumns,
    Table,
    file_and_key,
    finding_state,
    mask_ref,
    masks_of_cell,
    read_table,
    stated_by,
)

T = TypeVar("T")
Spacing = Annotated[float, Gt(0)]


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Folder(CaseTable):
    """Cases from a folder of volumes (NIfTI, DICOM, NRRD, arrays, pictures) and a table, one row a case.

    | column | holds |
    |---|---|
    | `id` | the case's name, unique |
    | `volume` or `image` | its file or DICOM folder; `file.npz#a` array a; several with `;` between |
    | `patient` | whose it is; a patient lies in one split only |
    | `split` | `train`, `validation` or `test` |
    | `report` | the report text, may be empty; the column may be absent |
    | `masks` | `name=file`, `;` between; `file#5` is label 5, `file.npz#a`, `RS.dcm#a` what is called a |
    | each of `findings` | `1`, `0`, `-1`, `present`, `absent`, `uncertain`, `yes`, `no`; may be empty |

    Args:
        path: the folder.
        table: the CSV file in it.
        findings: columns that hold findings, in the order of the vocabulary.
        masks: file pattern by mask name, `{id}` stands for the case: `{ liver = "masks/{id}.nii.gz#5" }`.
        intensity: "hu" for CT in Hounsfield units, "arbitrary" for anything else.
        rescale: slope and intercept that the values as read still need; for files that leave theirs out.
        spacing_mm_zyx: in place of what the files state; bare arrays (.npy, .npz) need it.
        axes: where the stored axes run to, for instance "SPL"; bare arrays need it, and with
            spacing_mm_zyx it takes the place of the grid that a NIfTI or NRRD header states.
        tilted: axes that lean from the body's, as under a tilted gantry: "refuse" stops, "resample" reads
            onto a straight grid, masks too.
        missing: what to do about a case with a missing file or a broken volume. "stop" raises; "skip"
            reads every volume once beforehand, leaves such cases out, logs and counts them.
    """

    table: str = "cases.csv"
    masks: dict[str, str] | None = None
    intensity: Intensity = "hu"
    rescale: tuple[float, float] | None = None
    spacing_mm_zyx: tuple[Spacing, Spacing, Spacing] | None = None
    axes: str | None = None
    tilted: Oblique = "refuse"
    columns: Annotated[FolderColumns, InlineOptions] = COLUMNS

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split` in the table's order."""
        self.left_out[split] = {}
        for problem in (*self._table.unusable, *self._table.clashes):
            raise DataError(problem)
        yield from self._usable(self._readable(split), split)

    def _readable(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split`; stop at the first cell that cannot be read."""
        for line, row in self._rows(split):
            case, wrong = self._case(line, row)
            if wrong:
                raise DataError(wrong[0])
            yield case

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield the case of every row of `split`, whatever is wrong with it; what cannot be read is left out.

        A row without an id goes by its line.
        """
        for line, row in self._rows(split):
            yield self._case(line, row)[0]

    def unlisted(self) -> Iterator[str]:
        """Say of every row and cell that cannot be read what is wrong with it."""
        yield from self._table.unusable
        for line, row in self._table.rows:
            yield from self._case(line, row)[1]

    def _every(self) -> Iterator[Case]:
        return (self._case(line, row)[0] for line, row in self._table.rows)

    @functools.cached_property
    def _table(self) -> Table:
        return read_table(self.file, self.columns, self.findings)

    def _rows(self, split: Split) -> Iterator[tuple[int, Row]]:
        for line, row in self._table.rows:
            if row[self._table.columns.split_column] == split:
                yield line, row

    def _case(self, line: int, row: Row) -> tuple[Case, list[str]]:
        """Return what a row says, and what is wrong with its cells."""
        columns = self._table.columns
        where = f"{self.file}: line {line}, case {row[columns.id_column]!r}"
        wrong: list[str] = []
        volumes = files_of_cell(row[columns.volume_column], self.folder)
        if not volumes:
            wrong.append(f"{where}: column {columns.volume_column!r} is empty. Name the case's file.")
        elif faults := text_faults(row, [columns.volume_column], self.folder):
            wrong.append(f"{where}: {faults[columns.volume_column]}")
            volumes = []
        states: dict[str, State | None] = {
            name: _tried(wrong, finding_state, row[name], f"{where}, column {name!r}")
            for name in self.findings
        }
        report = row.get(columns.report_column, "")
        stated = VolumeRef(
            path="", intensity=self.intensity, rescale=self.rescale, axes=self.axes,
            spacing_mm_zyx=self.spacing_mm_zyx, tilted=self.tilted,
        )  # fmt: skip
        case = Case(
            id=row[columns.id_column] or f"line {line}",
            patient=(row[columns.patient_column] or None) if columns.patient_column else None,
            volumes=tuple(
                dataclasses.replace(stated, path=path, key=key)
                for path, key in (file_and_key(name, self.folder) for name in volumes)
            ),
            report=Report(text=report) if report else None,
            findings=tuple(Finding(name=name, state=state) for name, state in states.items() if state),
            masks=self._masks(row, where, wrong),
            notes={what: cell for column, cell in row.items() if (what := stated_by(column)) and cell},
        )
        return case, wrong

    def _masks(self, row: Row, where: str, wrong: list[str]) -> dict[str, MaskRef]:
        columns = self._table.columns
        cell = row.get(columns.masks_column, "")
        masks = _tried(wrong, masks_of_cell, cell, self.folder, where) or {}
        for name, pattern in (self.masks or {}).items():
            if name in masks:
                wrong.append(f"{where}: mask {name!r} is named in the table and by a pattern. Drop one.")
                continue
            ref = _tried(wrong, mask_ref, pattern.replace("{id}", row[columns.id_column]), self.folder)
            if ref is not None:
                masks[name] = ref
        return masks


def _tried(wrong: list[str], read: Callable[..., T | None], *cell: object) -> T | None:
    """Return what `read` makes of a cell; None, and its complaint in `wrong`, where it cannot."""
    try:
        return read(*cell)
    except DataError as error:
        wrong.append(str(error))
        return None
