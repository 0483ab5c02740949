"""What the scans that a model was trained on were like, and how unlike them another scan is.

Of at most `MOST_SCANS` training scans these are measured: voxel spacing and size in mm; for CT quantiles of
the HU values that are not air; and the mean of the encoder's features. No data set names the region of the
body, so size, HU values and features stand for it. A scan's excess in a measure is how far it lies outside of
the middle 98 % of training scans: 1 is a factor of 2 (spacing, size), 200 HU, or twice the distance.

Order of events: each training scan is compared with those of other patients, each validation scan with all.
The bound of a warning is the smallest excess that at most 5 % of the scans of either split exceed in any
measure. A scan is far outside where its excess is 0.5 above the bound; spacing never says so, as views
resample. What is found is kept in the run folder, without a name of a case or a path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages.record import is_phantom
from scipy.spatial.distance import cdist

from evidcore.api import Case, DataError, View, VisualPart, VolumeRef, read
from evidcore.data import Volume
from evidcore.errors import EvidError
from evidcore.model.policy import VLMPolicy
from evidcore.runs.assembly import Assembly
from evidcore.runs.folder import RunFolder, write

FILE = "training_scans.json"
LAYOUT = 1  # raise whenever the file holds something else
MOST_SCANS = 100  # of each split: reading a CT takes a second or two
FEATURES = "encoder features"
_QUANTILES = (5, 50, 95)
_AIR_HU = -950.0  # around a body, and outside of a scanner's field
_HU_OF_ONE = 200.0  # an excess of 1; less than lung and soft tissue or soft tissue and fat differ together
_LEAST_BOUND = 0.25  # of a warning: few scans, or equal ones, must not warn of a millimetre
_FAR = 0.5  # above the bound: 1.4 times as large, 100 HU
_LEAST_PATIENTS = 3  # below, no distance between patients has another to be compared with

Figures = Mapping[str, float]  # of a scan, by measure
Vector = npt.NDArray[np.float64]
Tell = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingScans:
    """The measures of training scans, and the bound above which an excess is told."""

    model: str  # the stage folder of the weights whose features these are
    patients: Sequence[int]  # of each scan, counted from 0
    figures: Mapping[str, Sequence[float]]  # by measure, of each scan
    features: Vector  # (scan, channel)
    validation_scans: int = 0
    bound: float = _LEAST_BOUND

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the middle 98 % of each measure but features."""
        return {name: _middle(np.asarray(values)) for name, values in self.figures.items()}

    def unlike(self, figures: Figures, features: Vector) -> list[dict[str, Any]]:
        """Return the measures in which a scan exceeds the bound, each in words too."""
        result = []
        for name, (value, low, high) in self._placed(figures, features).items():
            excess = _excess(name, value, low, high)
            if excess <= self.bound:
                continue
            sentence = f"its {name} is {value:.3g}, that of training scans {low:.3g} to {high:.3g}"
            if name == FEATURES:
                times = f"{value / high:.1f} times as far from the nearest training scan"
                sentence = f"its {FEATURES} lie {times} as those of nearly all training scans"
            is_far = excess > self.bound + _FAR and not name.startswith("spacing")
            entry = {"measure": name, "value": value, "low": low, "high": high, "is_far": is_far}
            result.append({**entry, "sentence": sentence})
        return result

    def calibrated(self, validation: Sequence[tuple[Figures, Vector]]) -> TrainingScans:
        """Return the same with the bound that at most 5 % of training and of validation scans exceed."""

        def largest(figures: Figures, features: Vector, patient: int | None = None) -> float:
            placed = self._placed(figures, features, patient)
            return max((_excess(name, *place) for name, place in placed.items()), default=0.0)

        own = [
            largest({name: values[place] for name, values in self.figures.items()}, vector, patient)
            for place, (vector, patient) in enumerate(zip(self.features, self.patients, strict=True))
        ]
        others = [largest(figures, vector) for figures, vector in validation]
        bounds = [np.quantile(some, 0.95, method="higher") for some in (own, others) if some]
        bound = float(max([_LEAST_BOUND, *bounds]))
        return dataclasses.replace(self, validation_scans=len(validation), bound=bound)

    def to_json(self) -> dict[str, Any]:
        """Return it as the file holds it; features to 5 digits."""
        rows = [[float(f"{value:.5g}") for value in row] for row in self.features]
        return {**vars(self), "layout": LAYOUT, "features": rows}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> TrainingScans:
        """Read back what `to_json` gave."""
        fields = {key: value for key, value in table.items() if key != "layout"}
        return cls(**{**fields, "features": np.asarray(table["features"], dtype=np.float64)})

    def _placed(
        self, figures: Figures, features: Vector, patient: int | None = None
    ) -> dict[str, tuple[float, float, float]]:
        """Return each measure's value and range, among the scans of other patients than `patient`."""
        patients = np.asarray(self.patients)
        others = patients != (-1 if patient is None else patient)
        result = {}
        for name, values in self.figures.items():
            if name in figures and others.any():
                result[name] = (figures[name], *_middle(np.asarray(values)[others]))
        if len(set(self.patients)) >= _LEAST_PATIENTS:
            spread = self.features.std(axis=0)
            # none below a tenth of the mean: channels that hardly change would tell it all
            scaled = self.features / (scale := np.maximum(spread, 0.1 * spread.mean() + 1e-12))
            apart = cdist(scaled, scaled)
            apart[patients[:, None] == patients] = np.inf
            high = float(np.quantile(apart.min(axis=1)[others], 0.99))
            (to_each,) = cdist(features[None] / scale, scaled)
            result[FEATURES] = (float(to_each[others].min()), 0.0, high)
        return result


def figures_of(volume: Volume) -> dict[str, float]:
    """Return a scan's measures, those of its features left out."""
    axes = ("z", "y", "x")
    steps = dict(zip(axes, volume.spacing_mm_zyx, strict=True))
    counts = dict(zip(axes, volume.shape_zyx, strict=True))
    result = {f"spacing along {axis} in mm": float(steps[axis]) for axis in axes}
    result |= {f"size along {axis} in mm": float(steps[axis] * counts[axis]) for axis in axes}
    if volume.intensity == "hu":
        values = volume.array.reshape(-1)[:: max(1, volume.array.size // 1_000_000)]
        body = values[values > _AIR_HU]
        shares = np.percentile(body, _QUANTILES) if body.size else [_AIR_HU] * len(_QUANTILES)
        names = [f"{share} % quantile of HU but air" for share in _QUANTILES]
        result |= {name: float(value) for name, value in zip(names, shares, strict=True)}
    return result


def features_of(policy: VLMPolicy, view: View, ref: VolumeRef) -> Vector:
    """Return the mean of the encoder's features over all that is shown of a scan: (channel,)."""
    images, encoder = policy.processor.image_processor, policy.model.model.encoder
    parts = view.render(Case(id="scan", patient=None, volumes=(ref,)))
    handles = [images.handle(part.crop) for part in parts if isinstance(part, VisualPart)]
    means: dict[int, Vector] = {}
    for group, patches in images.bank.patches(list(dict.fromkeys(handles)), encoder):
        rows = patches.features.detach().float().cpu().numpy().astype(np.float64)
        means.update(zip(group, rows.reshape(len(group), -1, rows.shape[-1]).mean(axis=1), strict=True))
    return np.asarray(np.mean([means[handle] for handle in handles], axis=0))


def known_scans(
    folder: RunFolder, assembly: Assembly, policy: VLMPolicy, weights: Path, tell: Tell
) -> TrainingScans | str:
    """Return what is kept of a run's training scans, or measure them now and keep it; else why that fails."""
    model = weights.resolve().parent.name
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # none of this layout
        table = json.loads((folder.path / FILE).read_text(encoding="utf-8"))
        if (table["layout"], table["model"]) == (LAYOUT, model):
            return TrainingScans.from_json(table)
    try:
        result = _measured(assembly, policy, model, tell)
    except EvidError as error:  # the run may have been carried off, without its data
        return str(error)
    with contextlib.suppress(OSError):  # a run folder that may only be read: measured again next time
        write(folder.path / FILE, json.dumps(result.to_json()) + "\n")
    return result


def describe(known: TrainingScans | str, assembly: Assembly) -> dict[str, Any]:
    """Return what a model was trained on, as answer.json holds it: data sets, and what the scans are like."""
    datasets, scans = [], None
    for name, cases in _trained_on(assembly).items():
        component = str(assembly.recipe.datasets[name]["use"])
        datasets.append({
            "name": name,
            "component": component,
            "is_phantom": is_phantom(component),
            "patients": None if cases is None else len({case.patient or case.id for case in cases}),
            "scans": None if cases is None else sum(len(case.volumes) for case in cases),
            "findings": list(assembly.datasets[name].findings),
        })  # fmt: skip
    if isinstance(known, TrainingScans):
        scans = {
            "measured": len(known.patients),
            "validation_scans": known.validation_scans,
            "bound": known.bound,
            "ranges": {name: list(pair) for name, pair in known.ranges().items()},
        }
    return {"datasets": datasets, "unknown": known if isinstance(known, str) else None, "scans": scans}


def _trained_on(assembly: Assembly) -> dict[str, list[Case] | None]:
    """Return the cases that encoder or model were trained on, by data set; None where they are not here."""
    result: dict[str, dict[str, Case] | None] = {}
    for stage in assembly.recipe.line.values():
        uses = stage.data_uses() if stage.output in ("encoder", "model") else ()
        for use in (use for use in uses if use.split == "train"):
            try:
                cases = {case.id: case for case in assembly.cases(use)}
            except EvidError:
                result[use.dataset] = None
                continue
            result[use.dataset] = {**(result.get(use.dataset) or {}), **cases}
    return {name: None if cases is None else list(cases.values()) for name, cases in result.items()}


def _measured(assembly: Assembly, policy: VLMPolicy, model: str, tell: Tell) -> TrainingScans:
    """Measure training and validation scans."""
    trained = _trained_on(assembly)
    missing = [name for name, cases in trained.items() if cases is None]
    if missing or not trained:
        raise DataError(f"the training cases of {', '.join(missing) or 'any data set'} are not here.")
    scans = _spread([case for cases in trained.values() for case in cases or ()])
    checked = []
    for name in trained:
        with contextlib.suppress(DataError):  # a split without cases
            checked += assembly.split(name, "validation")
    validation = _spread(checked)
    measured = []
    for number, (_, ref) in enumerate([*scans, *validation], start=1):
        measured.append((figures_of(read(ref)), features_of(policy, assembly.view, ref)))
        tell(number, len(scans) + len(validation))
    figures, features = zip(*measured[: len(scans)], strict=True)
    numbers = {patient: number for number, patient in enumerate(dict.fromkeys(name for name, _ in scans))}
    names = [name for name in figures[0] if all(name in item for item in figures)]  # MR has no HU
    result = TrainingScans(
        model=model,
        patients=[numbers[patient] for patient, _ in scans],
        figures={name: [item[name] for item in figures] for name in names},
        features=np.asarray(features),
    )
    return result.calibrated(measured[len(scans) :])


def _spread(cases: Sequence[Case]) -> list[tuple[str, VolumeRef]]:
    """Return at most `MOST_SCANS` scans with their patients, evenly spread over the cases."""
    scans = [(case.patient or case.id, ref) for case in cases for ref in case.volumes]
    count = min(len(scans), MOST_SCANS)
    return [scans[place * len(scans) // count] for place in range(count)]


def _middle(values: Vector) -> tuple[float, float]:
    low, high = np.quantile(values, (0.01, 0.99))
    return float(low), float(high)


def _excess(name: str, value: float, low: float, high: float) -> float:
    """Return how far a value lies outside of a range: 1 is a factor of 2, or 200 HU."""
    if name == FEATURES:
        return max(0.0, float(np.log2(max(value, 1e-12) / max(high, 1e-12))))
    if "HU" in name:
        return max(0.0, low - value, value - high) / _HU_OF_ONE
    return max(0.0, float(np.log2(low / value)), float(np.log2(value / high)))
