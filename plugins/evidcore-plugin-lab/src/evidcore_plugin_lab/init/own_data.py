"""What a user's table and scans are, as a recipe says it: data set, tasks, splits, kind of intensity."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from evidcore_plugin_tables.placing import place
from evidcore_plugin_tables.target import TABLE, folder_options

from evidcore.api import DataError, Dataset, VolumeRef, read
from evidcore.cache import cache_folder
from evidcore.case import Intensity
from evidcore.data.stored import unreadable
from evidcore.errors import EvidError
from evidcore.registry import factory

QUESTIONS = "questions.csv"
AIR_HU = -500.0  # a scan that goes below holds air in Hounsfield units; other scales rarely go there
FEWEST_FINDINGS = 4  # task `choice` draws four options from them
_LOOKED_AT = 3  # scans
_SEEDS = range(17, 117)  # of sharing out patients, until each split that is wanted has some
_TRAIN = "Give cases the split 'train'."
_TOO_FEW = (
    "No column says the split, and there are too few patients to share out. Add a column 'split', or name "
    "another for the patient with --column patient=NAME."
)
_NO_PATIENT = (
    "patients are not known: each scan counts as one, so two splits may share a patient (a column 'patient' "
    "tells them, or of a table --column patient=NAME)"
)
Asks = Literal["choice", "report"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnData:
    """A data set as a recipe's table, and what was seen of it."""

    table: Mapping[str, Any]  # of [dataset.own]; paths are absolute
    asks: Asks  # what a model is trained and measured on
    cases: Mapping[str, int]  # by split
    prompts: int  # of the training cases: questions, or reports
    is_ct: bool  # whether its values are Hounsfield units
    ground: str  # what the kind of its values was told from
    said: tuple[str, ...]  # what was placed where, and what was not used


def own_data(
    data: Path, *, scans: Path | None, columns: Mapping[str, str], intensity: Intensity | None
) -> OwnData:
    """Look at a table of questions, or at a folder that holds `questions.csv` or `cases.csv`.

    `columns` gives columns by what they hold, in place of what would be found. Without `scans` a table's
    files are named from its own folder; without `intensity` the first scans tell it.
    """
    table = data
    if data.is_dir():
        table = data / (QUESTIONS if (data / QUESTIONS).is_file() else TABLE)
    is_folder = data.is_dir() and table.name == TABLE
    if is_folder and (columns or scans):
        raise DataError(
            f"{'--column' if columns else '--scans'} goes with a table of questions, and {data} holds "
            f"{TABLE}. Rename its columns as docs/start/own_scans.md says, or name a table with --data."
        )
    if not is_folder and not table.is_file():
        raise DataError(f"--data {unreadable(data, remedy='Name a table of questions, or a folder.')}")
    found = _folder(data, intensity) if is_folder else _questions(table, scans, columns, intensity)
    counts = "cases: " + ", ".join(f"{split} {count}" for split, count in found.cases.items())
    if not found.prompts:
        unread = list(_built(found.table).unlisted())
        remedy = _TRAIN if found.table.get("split_column", "split") else _TOO_FEW
        remedy = f"Rows that cannot be read: {len(unread)}. The first: {unread[0]}" if unread else remedy
        raise DataError(f"{table}: nothing is asked about a training case ({counts}). {remedy}")
    unknown = () if found.table.get("patient_column", "patient") else (_NO_PATIENT,)
    return dataclasses.replace(found, said=(*found.said, *unknown, counts))


def _questions(
    table: Path, scans: Path | None, columns: Mapping[str, str], intensity: Intensity | None
) -> OwnData:
    """Place the columns of a table of questions."""
    folder = (scans or table.parent).resolve()
    placed = place(table, folder, columns)
    files = [str(folder / name.partition(";")[0].strip()) for name in placed.scans]
    is_ct, ground = _is_ct(files, intensity)
    options = {"intensity": "hu"} if is_ct else {}
    name = table.name if folder == table.parent.resolve() else os.fspath(table.resolve())
    named = {"table": name} if name != QUESTIONS else {}
    own: dict[str, Any] = {"use": "table", "path": str(folder), **named, **options, **placed.options}
    said = [f"{what}: column {column!r}" for what, column in placed.columns.items()]
    if placed.unused:
        said.append(f"not used: {', '.join(placed.unused)}")
    if "split" not in placed.columns:
        tables = [own, *({**own, "seed": seed} for seed in _SEEDS[1:])]
        for own in tables:  # by the first seed that leaves patients to train on and to test
            dataset = _built(own)
            if (cases := _cases(dataset))["train"] and cases["test"]:
                break
        shares = "a fifth of the patients are for the test, a tenth for validation"
        said.append(f"no column for the split: {shares} (dataset.own.seed decides who)")
    else:
        dataset = _built(own)
    cases = _cases(dataset)
    asked = sum(len(case.questions) for case in dataset.listed("train"))
    return OwnData(
        table=own, asks="choice", cases=cases, prompts=asked, is_ct=is_ct, ground=ground, said=tuple(said)
    )


def _folder(folder: Path, intensity: Intensity | None) -> OwnData:
    """Read what a folder's `cases.csv` holds."""
    options = folder_options(folder / TABLE)
    own = {"use": "folder", "path": str(folder.resolve()), **options}
    listed = list(_built(own).listed("train"))
    is_ct, ground = _is_ct([case.volumes[0].path for case in listed if case.volumes], intensity)
    own |= {} if is_ct else {"intensity": "arbitrary"}
    findings, reports = options["findings"], sum(case.report is not None for case in listed)
    if listed and not reports and len(findings) < FEWEST_FINDINGS:
        raise DataError(
            f"{folder / TABLE}: has no reports and {len(findings)} findings, and questions are drawn from "
            f"{FEWEST_FINDINGS} or more. Add a column 'report', columns of findings, or a table of questions "
            f"({QUESTIONS})."
        )
    asks: Asks = "choice" if len(findings) >= FEWEST_FINDINGS else "report"
    listing = ", ".join(findings) or "none"
    return OwnData(
        table=own, asks=asks, cases=_cases(_built(own)), prompts=len(listed), is_ct=is_ct, ground=ground,
        said=(f"findings: {listing}", f"reports: {reports} of the training cases"),
    )  # fmt: skip


def _built(own: Mapping[str, Any]) -> Dataset:
    given = {"recipe_folder": Path(), "cache_folder": cache_folder()}
    dataset = factory.build("dataset", own, given=given, where="dataset.own")
    assert isinstance(dataset, Dataset)
    return dataset


def _cases(dataset: Dataset) -> Mapping[str, int]:
    return {split: sum(1 for _ in dataset.listed(split)) for split in ("train", "validation", "test")}


def _is_ct(files: Sequence[str], intensity: Intensity | None) -> tuple[bool, str]:
    """Tell whether scans are in Hounsfield units, and from what."""
    if intensity is not None:
        return intensity == "hu", "as --intensity says"
    lowest: dict[str, float] = {}
    for file in files[:_LOOKED_AT]:
        try:
            values = read(VolumeRef(path=file, intensity="arbitrary")).array
        except EvidError as cause:
            text = f"{cause} (It was read to tell whether scans are CT; --intensity says it.)"
            raise DataError(text) from cause
        lowest["/".join(Path(file).parts[-2:])] = float(values.min())
    is_ct = all(value < AIR_HU for value in lowest.values())
    said = ", ".join(f"{value:.0f} in {name}" for name, value in lowest.items())
    return is_ct, f"lowest value {said}"
