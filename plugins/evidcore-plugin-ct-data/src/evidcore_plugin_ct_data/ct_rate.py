"""Data set `ct-rate`: chest CT with reports and 18 labels (Hub data set ibrahimhamamci/CT-RATE).

What the published files need, and what is done about it:

1. The trees `train` and `valid` hold stored values under a header that says nothing true of spacing and
   orientation. Slope, intercept, spacing and orientation are taken from the metadata tables, once. The trees
   `train_fixed` and `valid_fixed` are taken as they are: nothing is rescaled there.
2. The label file of the published validation part begins with `valid_`, the other tables with `validation_`.
3. A report section "Not given." is empty.
4. Two parts were published. `test` is the published validation part; `validation` is drawn from the published
   training part by a hash of the patient.
5. Every label was predicted from the report by a model, none set by hand.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import nibabel
import numpy as np
from annotated_types import Ge, Lt
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from nibabel.affines import from_matvec, obliquity

from evidcore.api import Case, DataError, Finding, InlineOptions, Question, Report, VolumeRef
from evidcore.case import Split
from evidcore.text.tags import LETTERS
from evidcore_plugin_ct_data.letters import Unanswerable, question
from evidcore_plugin_ct_data.published import Entry, HubSource, PublishedSet, drawn_split
from evidcore_plugin_ct_data.tables import Row, flag, number, numbers, read_list, read_rows

NOT_GIVEN = "Not given."
MOST_TILT_DEGREES = 1.0  # as everywhere: axes that lean more are no body axes
PARTS: Mapping[str, Mapping[str, str]] = {  # the publisher's two parts and the names of their files
    part: {
        "tree": part,
        "labels": f"multi_abnormality_labels/{part}_predicted_labels.csv",
        "reports": f"radiology_text_reports/{name}_reports.csv",
        "metadata": f"metadata/{name}_metadata.csv",
    }
    for part, name in {"train": "train", "valid": "validation"}.items()
}
SECTIONS = ("Findings_EN", "Impressions_EN")
GEOMETRY = ("RescaleSlope", "RescaleIntercept", "XYSpacing", "ZSpacing", "ImageOrientationPatient")
MULTIPLE_CHOICE = "<multiple_choice>"  # the set marks the kind of a question in its text
_OPTION = re.compile(r"(?<!\w)[(]?([A-Ha-h])[)]\s*")  # "(a) nodule" as in the set, "A) nodule" as in MMVQA
_ANSWER = re.compile(r"\s*[(]?([A-Ha-h])(?:[).:]|\s*$)")
_TAG = re.compile(r"<\w+>")


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class CtRate(PublishedSet):
    """CT-RATE: 50,188 chest CT volumes of 21,304 patients, with reports and the 18 labels.

    A case is one reconstruction. Its report is the findings section, its impression is `notes["impression"]`.
    `test` is the published validation part, `validation` is drawn from the published training part by
    patient.

    Args:
        path: the folder that holds `dataset/`.
        tree: "fixed" reads `train_fixed` and `valid_fixed`; "plain" reads `train` and `valid`, with
            values, spacing and orientation from the metadata tables.
        reconstructions: "first" takes one volume of each scan, the one whose name ends in `_1`.
        questions: JSON files below `dataset/` with multiple-choice questions: those of the set itself
            (`vqa/train_vqa.json`, `vqa/valid_vqa.json`) or lists of rows with VolumeName, question,
            options and answer. Questions without options are passed over.
        validation_share: share of the published training part's patients in `validation`.
        ids: only these patients (`train_12`) or volumes (`train_12_a_1`), or a text file with one a line.
        max_gb: more than this is never fetched for a split; the whole set has about 20,000 GB.
    """

    findings = CT_RATE_FINDINGS
    repository = "ibrahimhamamci/CT-RATE"

    source: Annotated[HubSource, InlineOptions]
    tree: Literal["fixed", "plain"] = "fixed"
    reconstructions: Literal["all", "first"] = "all"
    questions: tuple[str, ...] = ()
    validation_share: Annotated[float, Ge(0), Lt(1)] = 0.05

    def __post_init__(self) -> None:
        """Begin with no table read."""
        super().__post_init__()
        self._read: dict[str, Mapping[str, Row]] = {}

    def _tables(self) -> list[str]:
        tables = [PARTS[part][kind] for part in PARTS for kind in ("labels", "reports", "metadata")]
        return [f"dataset/{name}" for name in (*tables, *self.questions)]

    def _entries(self, split: Split) -> Iterator[Entry]:
        part = PARTS["valid" if split == "test" else "train"]
        labels = self._files.table(f"dataset/{part['labels']}")
        # publishers of derived tables order and write the findings' columns differently
        first = next(iter(read_rows(labels, ["VolumeName"])), None)
        by_name = {column.strip().lower(): column for column in (first[1] if first else ())}
        for name in CT_RATE_FINDINGS:
            if name not in by_name:
                why = f"has no column {name.capitalize()!r}, one of the 18 labels"
                raise DataError(f"{labels}: {why}. Fetch it again.")
        columns = {name: by_name[name] for name in CT_RATE_FINDINGS}
        for line, row in read_rows(labels, ["VolumeName", *columns.values()]):
            name = row["VolumeName"].removesuffix(".nii.gz")
            where = f"{labels}: line {line}, volume {name!r}"
            pieces = name.split("_")  # of patient, scan and reconstruction
            if len(pieces) != 4 or not all(pieces):
                why = "a volume is named like train_12_a_1.nii.gz"
                raise DataError(f"{where}: {why}. Fetch the table again.")
            patient, scan = "_".join(pieces[:2]), "_".join(pieces[:3])
            if self.reconstructions == "first" and pieces[3] != "1":
                continue
            if split != "test" and split != drawn_split(patient, validation_share=self.validation_share):
                continue
            tree = part["tree"] + ("_fixed" if self.tree == "fixed" else "")
            file = f"dataset/{tree}/{patient}/{scan}/{name}.nii.gz"
            volume, fault = self._volume(part, name, file)
            findings = tuple(
                finding(name, flag(row[column], f"{where}, column {column!r}"))
                for name, column in columns.items()
            )
            report, notes = _texts(self._by_volume(part["reports"], SECTIONS).get(name))
            case = Case(
                id=name,
                patient=patient,
                volumes=(volume,),
                report=report,
                findings=findings,
                questions=self._questions.get(name, ()),
                notes={**notes, "scan": scan},
            )
            yield Entry(case=case, names=(file,), fault=fault)

    def _volume(self, part: Mapping[str, str], name: str, file: str) -> tuple[VolumeRef, str | None]:
        """Return a volume, and why it cannot be used if the metadata say so."""
        path = str(self._files.path(file))
        if self.tree == "fixed":
            return VolumeRef(path=path, intensity="hu"), None
        row = self._by_volume(part["metadata"], GEOMETRY).get(name)
        table = self._files.path(f"dataset/{part['metadata']}")
        if row is None:
            why = f"has no row for {name!r}, so its values and spacing in tree 'plain' are unknown"
            fault = f"{table}: {why}. Fetch the table again, or read tree 'fixed'."
            return VolumeRef(path=path), fault
        where = f"{table}: volume {name!r}, column"
        slope, intercept, dz = (
            number(row[column], f"{where} {column!r}")
            for column in ("RescaleSlope", "RescaleIntercept", "ZSpacing")
        )
        dx, dy = numbers(row["XYSpacing"], 2, f"{where} 'XYSpacing'")
        orientation = numbers(row["ImageOrientationPatient"], 6, f"{where} 'ImageOrientationPatient'")
        axes, spacing, degrees = stored_grid(orientation, (dx, dy, dz))
        rescale = (slope, intercept)
        volume = VolumeRef(path=path, intensity="hu", rescale=rescale, spacing_mm_zyx=spacing, axes=axes)
        if degrees <= MOST_TILT_DEGREES:
            return volume, None
        tilt = f"leans by {degrees:.1f}° (ImageOrientationPatient {row['ImageOrientationPatient']})"
        most = f"at most {MOST_TILT_DEGREES:g}° is read from tree 'plain'"
        return volume, f"{table}: volume {name!r} {tilt}, {most}. Read tree 'fixed'."

    def _by_volume(self, name: str, columns: tuple[str, ...]) -> Mapping[str, Row]:
        """Return some columns of a table by volume name without its ending; read once."""
        if name not in self._read:
            table = self._files.table(f"dataset/{name}")
            self._read[name] = {
                row["VolumeName"].removesuffix(".nii.gz"): {column: row[column] for column in columns}
                for _, row in read_rows(table, ["VolumeName", *columns])
            }
        return self._read[name]

    @functools.cached_property
    def _questions(self) -> Mapping[str, tuple[Question, ...]]:
        result: dict[str, tuple[Question, ...]] = {}
        for name in self.questions:
            for volume, asked in read_questions(self._files.table(f"dataset/{name}")).items():
                result[volume] = (*result.get(volume, ()), *asked)
        return result


def _texts(row: Row | None) -> tuple[Report | None, dict[str, Any]]:
    """Return report and notes of a volume; sections that were not given are empty."""
    sections = ((row or {}).get(name, "").strip() for name in SECTIONS)
    findings, impression = ("" if text == NOT_GIVEN else text for text in sections)
    report = Report(text=findings or impression) if findings or impression else None
    return report, {"impression": impression} if impression and findings else {}


def stored_grid(
    orientation: Sequence[float], steps_mm: Sequence[float]
) -> tuple[str, tuple[float, float, float], float]:
    """Return where a stored array's axes run to, its spacing in body axes, and how far it leans in degrees.

    Args:
        orientation: of DICOM: the direction in which the columns follow each other, then the rows, in LPS.
            The array's axes are column, row, slice; slices follow each other along the normal.
        steps_mm: along column, row, slice.
    """
    across, down = np.array(orientation).reshape(2, 3)
    to_ras = np.diag([-1.0, -1.0, 1.0]) @ np.stack([across, down, np.cross(across, down)], axis=1)
    affine = from_matvec(to_ras)
    x, y, z = (steps_mm[index] for index in np.argsort(nibabel.io_orientation(affine)[:, 0]))
    degrees = np.degrees(obliquity(affine)).max()
    return "".join(nibabel.aff2axcodes(affine)), (z, y, x), float(degrees)


@functools.cache
def finding(name: str, is_present: bool) -> Finding:
    """Return a finding of a binary label."""
    return Finding(name=name, state="present" if is_present else "absent")


def read_questions(path: Path) -> Mapping[str, tuple[Question, ...]]:
    """Return the multiple-choice questions by volume name without its ending; the others are passed over.

    They are the set's own, or the rows that Med3D-R1 released.

    Raises:
        DataError: if a row cannot be read, or a question's answer is none of its options.
    """
    result: dict[str, list[Question]] = {}
    for index, row in enumerate(read_list(path)):
        where = f"{path}: entry {index}"
        volume = str(row.get("image") or row.get("VolumeName") or "")
        name = volume.rpartition("/")[2].removesuffix(".nii.gz")
        if not name:
            raise DataError(f"{where}: names no volume, its keys are {', '.join(row)}. Fetch the file again.")
        try:
            asked = list(_asked(row, index))
        except Unanswerable as cause:
            raise DataError(f"{where}, volume {name!r}: {cause}. Correct or drop the entry.") from cause
        result.setdefault(name, []).extend(asked)
    return {name: tuple(asked) for name, asked in result.items() if asked}


def _asked(row: Mapping[str, Any], place: int) -> Iterator[Question]:
    """Yield the multiple-choice questions of an entry: a conversation, or one question with its options."""
    turns = row.get("conversations")
    if turns is None:
        text, options = _parts(str(row.get("question", "")))
        given = row.get("options")
        if isinstance(given, dict):
            options = {str(key): str(value) for key, value in given.items()}
        yield question(str(place), text, options, letter=str(row.get("answer", "")))
        return
    exchanges = [(str(turn.get("from")), str(turn.get("value", ""))) for turn in turns]
    for at, ((asker, text), (_, answer)) in enumerate(pairwise(exchanges)):
        if asker == "human" and MULTIPLE_CHOICE in text:
            stem, options = _parts(_TAG.sub(" ", text))
            result = _ANSWER.match(answer)
            letter, answer_text = (result[1], "") if result else ("", answer)
            yield question(f"{place}-{at}", stem, options, letter=letter, answer=answer_text)


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """Split a question from the options that follow it in the same text, "(a) … (b) …"."""
    marks = list(_OPTION.finditer(text))
    first = next((index for index, mark in enumerate(marks) if mark[1].upper() == "A"), None)
    if first is None:
        return text.strip(), {}
    marks = marks[first:]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    options = {
        mark[1].upper(): text[mark.end() : end].strip(" \n,;")
        for mark, end, letter in zip(marks, ends, LETTERS, strict=False)
        if mark[1].upper() == letter
    }
    return text[: marks[0].start()].strip(), options
