"""What the generated data sets share: options to a fingerprint, splits to files, files to parts of a case."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from evidcore.case import Case, Finding, Report, Span, VolumeRef
from evidcore.contracts import Dataset
from evidcore_plugin_phantoms.drawing import Population
from evidcore_plugin_phantoms.store import ensure, twin

Drawable = TypeVar("Drawable", bound=Population)


class Phantoms(Dataset, Generic[Drawable]):
    """A population that is drawn when it is first asked for, and kept."""

    folder_name: ClassVar[str]  # in the cache

    def __init__(self, cache_folder: Path, population: Drawable, counts: Mapping[str, int]) -> None:
        """Take the cache, who is drawn, and how many of each split."""
        self._cache_folder, self._population, self._counts = cache_folder, population, counts

    @abstractmethod
    def _asked(self) -> Mapping[str, Any]:
        """Return the options that decide what is asked about the cases, as plain JSON."""

    def fingerprint(self) -> str:
        """Return a short hash of all options and of the version of what is drawn."""
        known = {
            "population": self._population.key(),
            "counts": dict(self._counts),
            **self._asked(),
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the volume of the same patient without `finding`, drawn when it is first asked for."""
        state = case.state_of(finding)
        if state != "present":
            return None if state is None else case.volumes
        split, _, number = case.id.partition("-")
        root = self._cache_folder / self.folder_name
        path = twin(root, self._population, split, int(number), finding)
        return (dataclasses.replace(case.volumes[0], path=str(path)),)

    def _drawn(self, split: str) -> tuple[Path, list[dict[str, Any]]]:
        """Return a split's folder and what is known about its cases; draw it if it is not in the cache."""
        folder = ensure(self._cache_folder / self.folder_name, self._population, split, self._counts[split])
        return folder, json.loads((folder / "cases.json").read_text(encoding="utf-8"))

    def _common(self, folder: Path, split: str, number: int, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a case that every set has: who, volume, report, findings, notes."""
        notes: dict[str, Any] = {"impression": known["impression"]}
        if self._population.prior_strength > 0:
            notes["indication"] = known["indication"]
        spans = tuple(Span(start=start, end=end, label=label) for start, end, label in known["spans"])
        return {
            "id": f"{split}-{number:05d}",
            "patient": f"phantom-{self._population.seed}-{split}-{number:05d}",
            "volumes": (VolumeRef(path=str(folder / f"{number:05d}.nii"), intensity="hu"),),
            "report": Report(text=known["report"], spans=spans),
            "findings": tuple(_finding(item) for item in known["findings"]),
            "notes": notes,
        }


def _finding(item: Mapping[str, Any]) -> Finding:
    span = item["span"]  # None: the report does not name it
    return Finding(
        name=item["name"],
        state="present" if item["present"] else "absent",
        side=item["side"],
        size_mm=item["size_mm"],
        span=None
        if span is None
        else Span(start=span[0], end=span[1], label="abnormal" if item["present"] else "normal"),
    )
