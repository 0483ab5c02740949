"""Cases from the records of a table of questions: what the records of one image say must agree."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from annotated_types import Ge, Le

from evidcore.api import Case, DataError, Finding, Question, Report, VolumeRef
from evidcore.case import Intensity, Split
from evidcore.errors import did_you_mean
from evidcore_plugin_tables.box_masks import CaseBoxes, boxes_of_cell
from evidcore_plugin_tables.csv_rows import files_of_cell, optional_column, shown, text_faults, usual_column
from evidcore_plugin_tables.folder_table import finding_state, masks_of_cell, no_patient
from evidcore_plugin_tables.table_questions import written
from evidcore_plugin_tables.table_records import Record

PICTURES = (".png", ".jpg", ".jpeg")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseColumns:
    """Which columns say what a question is about.

    Args:
        id_column: column name; "" where there is none.
        image_column: column name; "volume" is read where there is no "image".
        patient_column: column name; "" where patients are not known: splits are then by image.
        split_column: column name; "" shares the patients out by `validation_share` and `test_share`.
        report_column: column name; "report" may be absent, "" reads none.
        masks_column: column name; "masks" may be absent, "" reads none.
        boxes_column: column name; "boxes" may be absent, "" reads none.
    """

    id_column: str = "id"
    image_column: str = "image"
    patient_column: str = "patient"
    split_column: str = "split"
    report_column: str = "report"
    masks_column: str = "masks"
    boxes_column: str = "boxes"

    def among(self, names: Collection[str]) -> CaseColumns:
        """Return the columns that are read of a table with these names."""
        return dataclasses.replace(
            self,
            image_column=usual_column(self.image_column, "image", "volume", names),
            report_column=optional_column(self.report_column, "report", names),
            masks_column=optional_column(self.masks_column, "masks", names),
            boxes_column=optional_column(self.boxes_column, "boxes", names),
        )

    def wanted(self) -> tuple[str, ...]:
        """Return the columns that must be there."""
        return tuple(name for name in dataclasses.astuple(self) if name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splitting:
    """How patients come into splits: by a column, or by shares.

    Args:
        split_names: what the table calls the splits, where it uses other words: `{ val = "validation" }`.
        validation_share: share of the patients for validation, where there is no column for the split.
        test_share: share of the patients for the test.
        seed: decides who is in which share; a patient who is added later moves no other.
    """

    split_names: dict[str, Split] | None = None
    validation_share: Annotated[float, Ge(0), Le(1)] = 0.1
    test_share: Annotated[float, Ge(0), Le(1)] = 0.2
    seed: Annotated[int, Ge(0)] = 17

    def names(self) -> Mapping[str, Split]:
        """Return the split that each word stands for."""
        return {name: name for name in get_args(Split)} | (self.split_names or {})

    def share_of(self, patient: str) -> Split:
        """Return the split in which a patient falls by a hash: who is added later moves no other."""
        return drawn_split(f"{self.seed}/{patient}", self.validation_share, self.test_share)


def drawn_split(text: str, validation_share: float, test_share: float = 0.0) -> Split:
    """Return the split that a hash of a text draws, the same on every machine."""
    place = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
    if place < test_share:
        return "test"
    return "validation" if place < test_share + validation_share else "train"


@dataclasses.dataclass
class Gathered:
    """The cases of a table, gathered record by record."""

    table: Path
    folder: Path
    intensity: Intensity
    columns: CaseColumns
    splitting: Splitting
    findings: tuple[str, ...]

    def __post_init__(self) -> None:
        self.questions: dict[str, list[Question]] = collections.defaultdict(list)  # by image
        self.open_questions: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
        self.boxes: dict[str, CaseBoxes] = {}  # by image
        self.clashes: list[str] = []  # patients that are in two splits: a message each
        self._cases: dict[str, Case] = {}
        self._splits: dict[str, Split] = {}
        self._places: dict[str, str] = {}  # question -> where it stands
        self._homes: dict[str, tuple[str, Split]] = {}  # patient -> his first case and its split

    def with_questions(self) -> list[tuple[Case, Split]]:
        """Return the cases that `questions` has an entry for, in the order of the table."""
        result = []
        for name, case in self._cases.items():
            if name in self.questions:
                questions, open_ones = tuple(self.questions[name]), self.open_questions.get(name)
                notes = {"open_questions": tuple(open_ones)} if open_ones else {}
                whole = dataclasses.replace(case, questions=questions, notes=notes)
                result.append((whole, self._splits[name]))
        return result

    def take(self, record: Record, place: str) -> tuple[str, str, str]:
        """Enter the case of a record; return the question's id, the image, and what errors call the place.

        Raises:
            DataError: if a cell cannot be used, or contradicts an earlier record.
        """
        columns = self.columns
        named = (columns.image_column, columns.id_column, columns.patient_column)
        for fault in text_faults(record, named, self.folder).values():
            raise DataError(f"{self.table}: {place}: {fault}")
        image = written(record[columns.image_column])
        if not image:
            why = f"{place}: column {columns.image_column!r} is empty"
            raise DataError(f"{self.table}: {why}. Name the picture or volume.")
        where = f"{self.table}: {place}, case {image!r}"
        identity = written(record[columns.id_column]) if columns.id_column else place.replace(" ", "-")
        if not identity:
            raise DataError(f"{where}: column {columns.id_column!r} is empty. Give the question a name.")
        first = self._places.setdefault(identity, place)
        if first != place:
            raise DataError(f"{where}: question {identity!r} stands in {first} already. Give each an id.")
        case = self._case(record, image, where)
        self._agree(case, self._boxes(record, case, where), self._split(record, case, where), where)
        return identity, image, f"{where}, question {identity!r}"

    def _case(self, record: Record, image: str, where: str) -> Case:
        patient: str | None = None
        if self.columns.patient_column:
            patient = written(record[self.columns.patient_column])
            if not patient:
                raise DataError(f"{where}: {no_patient(self.columns.patient_column)}")
        report = written(record[self.columns.report_column]) if self.columns.report_column else ""
        masks = written(record[self.columns.masks_column]) if self.columns.masks_column else ""
        states = {
            name: finding_state(written(record[name]), f"{where}, column {name!r}") for name in self.findings
        }
        volumes = []
        for name in files_of_cell(image, self.folder):
            intensity: Intensity = "arbitrary" if name.lower().endswith(PICTURES) else self.intensity
            volumes.append(VolumeRef(path=str(self.folder / name), intensity=intensity))
        return Case(
            id=image,
            patient=patient,
            volumes=tuple(volumes),
            report=Report(text=report) if report else None,
            findings=tuple(Finding(name=name, state=state) for name, state in states.items() if state),
            masks=masks_of_cell(masks, self.folder, where),
        )

    def _boxes(self, record: Record, case: Case, where: str) -> CaseBoxes:
        column = self.columns.boxes_column
        where = f"{where}, column {column!r}"
        boxes = boxes_of_cell(record[column], where) if column else {}
        if boxes and len(case.volumes) != 1:
            why = f"{where}: boxes need a case of one picture, this one has {len(case.volumes)}"
            raise DataError(f"{why}. Name one picture, or give masks in column 'masks' (masks_column).")
        if boxes and not case.volumes[0].path.lower().endswith(PICTURES):
            why = f"boxes lie on a picture ({', '.join(PICTURES)}), got {case.volumes[0].path!r}"
            raise DataError(f"{where}: {why}. Give a volume masks in column 'masks' (masks_column).")
        for name in boxes:
            if name in case.masks:
                why = f"{shown(name)} has boxes here and a mask in column {self.columns.masks_column!r}"
                raise DataError(f"{where}: {why}. Rename or drop one.")
        return CaseBoxes(boxes, where)

    def _split(self, record: Record, case: Case, where: str) -> Split:
        if not self.columns.split_column:
            return self.splitting.share_of(case.patient or case.id)
        named, known = written(record[self.columns.split_column]), self.splitting.names()
        if named not in known:
            why = f"has split {shown(named)}, expected one of {', '.join(known)}.{did_you_mean(named, known)}"
            how = f'split_names = {{ {shown(named)} = "validation" }} on the dataset'
            raise DataError(f"{where}: {why} Correct the cell, or say what it means with {how}.")
        return known[named]

    def _agree(self, case: Case, boxes: CaseBoxes, split: Split, where: str) -> None:
        """Enter a case, or compare it with what earlier records said of it."""
        is_new = case.id not in self._cases
        known = self._cases.setdefault(case.id, case)
        known_boxes = self.boxes.setdefault(case.id, boxes)
        home = self._splits.setdefault(case.id, split)
        facts: dict[str, tuple[Any, Any]] = {
            self.columns.patient_column: (known.patient, case.patient),
            self.columns.split_column: (home, split),
            self.columns.report_column: (known.report, case.report),
            self.columns.masks_column: (known.masks, case.masks),
            self.columns.boxes_column: (known_boxes, boxes),
            **{name: (known.state_of(name), case.state_of(name)) for name in self.findings},
        }
        for column, (before, now) in facts.items():
            if before != now:
                columns = self.columns
                is_long = column in {columns.report_column, columns.masks_column, columns.boxes_column}
                differs = "another text" if is_long else f"{shown(now)}, not {shown(before)},"
                why = f"column {column!r} says {differs} than an earlier record of this image"
                raise DataError(f"{where}: {why}. Make the records of one image agree.")
        if is_new and case.patient is not None:
            other, other_split = self._homes.setdefault(case.patient, (case.id, split))
            if other_split != split:
                why = f"case {other!r} in {other_split!r}, this one in {split!r}. Move one of them."
                self.clashes.append(f"{where}: patient {case.patient!r} is in two splits: {why}")
