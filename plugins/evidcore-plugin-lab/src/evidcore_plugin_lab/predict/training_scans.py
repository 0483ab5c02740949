"""What the scans that a model was trained on were like, and how unlike them another scan is.

Of at most `MOST_SCANS` training scans these are measured: voxel spacing and size in mm, and for CT quantiles
of the HU values that are not air. No data set names the region of the body; these stand for it. A scan's
excess in a measure is how far it lies outside of the middle 98 % of training scans: 1 is a factor of 2, or
200 HU. It is told above `NEAR`, and the scan is far outside above `FAR`; spacing never says so, as views
resample. What is found is kept in the run folder, without a name of a case or a path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from evidcore_plugin_pages.record import is_phantom

from evidcore.api import Case, DataError, read
from evidcore.cache import plain_file
from evidcore.data import Volume
from evidcore.errors import EvidError
from evidcore.runs.assembly import Assembly
from evidcore.runs.folder import RunFolder, write

FILE = "training_scans.json"
LAYOUT = 2  # raise whenever the file holds something else
MOST_SCANS = 100  # reading a CT takes a second or two
NEAR, FAR = 0.25, 0.75  # 1.2 and 1.7 times as large, 50 and 150 HU: a few scans must not warn of a millimetre
_QUANTILES = (5, 50, 95)
_AIR_HU = -950.0  # around a body, and outside of a scanner's field
_HU_OF_ONE = 200.0  # an excess of 1; less than lung and soft tissue or soft tissue and fat differ together

Tell = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class TrainingScans:
    """The measures of training scans."""

    figures: Mapping[str, Sequence[float]]  # by measure, of each scan

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the middle 98 % of each measure."""
        ends = {name: np.quantile(values, (0.01, 0.99)) for name, values in self.figures.items()}
        return {name: (float(low), float(high)) for name, (low, high) in ends.items()}

    def unlike(self, figures: Mapping[str, float]) -> list[dict[str, Any]]:
        """Return the measures in which a scan lies outside, each in words too."""
        result = []
        for name, (low, high) in self.ranges().items():
            value = figures.get(name, low)
            if "HU" in name:
                excess = max(low - value, value - high) / _HU_OF_ONE
            else:
                excess = max(np.log2(low / value), np.log2(value / high))
            if excess > NEAR:
                sentence = f"its {name} is {value:.3g}, that of training scans {low:.3g} to {high:.3g}"
                is_far = bool(excess > FAR and not name.startswith("spacing"))
                entry = {"measure": name, "value": value, "low": low, "high": high, "is_far": is_far}
                result.append({**entry, "sentence": sentence})
        return result


def figures_of(volume: Volume) -> dict[str, float]:
    """Return a scan's measures."""
    sides = [*zip("zyx", volume.spacing_mm_zyx, volume.shape_zyx, strict=True)]
    result = {f"spacing along {axis} in mm": float(step) for axis, step, _ in sides}
    result |= {f"size along {axis} in mm": float(step * count) for axis, step, count in sides}
    if volume.intensity == "hu":
        values = volume.array.reshape(-1)[:: max(1, volume.array.size // 1_000_000)]
        body = values[values > _AIR_HU]
        shares = np.percentile(body, _QUANTILES) if body.size else [_AIR_HU] * len(_QUANTILES)
        names = [f"{share} % quantile of HU but air" for share in _QUANTILES]
        result |= {name: float(value) for name, value in zip(names, shares, strict=True)}
    return result


def known_scans(folder: RunFolder, assembly: Assembly, tell: Tell) -> TrainingScans | str:
    """Return what is kept of a run's training scans, or measure them now and keep it; else why that fails."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # none of this layout
        table = json.loads(plain_file(folder.path / FILE).read_text(encoding="utf-8"))
        if table["layout"] == LAYOUT:
            return TrainingScans(table["figures"])
    try:
        result = _measured(assembly, tell)
    except EvidError as error:  # the run may have been carried off, without its data
        return str(error)
    with contextlib.suppress(OSError):  # a run folder that may only be read: measured again next time
        write(folder.path / FILE, json.dumps({"layout": LAYOUT, "figures": result.figures}) + "\n")
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
            "measured": max(map(len, known.figures.values())),
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


def _measured(assembly: Assembly, tell: Tell) -> TrainingScans:
    """Measure training scans, evenly spread over the cases."""
    trained = _trained_on(assembly)
    missing = [name for name, cases in trained.items() if cases is None]
    if missing or not trained:
        raise DataError(f"the training cases of {', '.join(missing) or 'any data set'} are not here.")
    scans = [ref for cases in trained.values() for case in cases or () for ref in case.volumes]
    count, figures = min(len(scans), MOST_SCANS), []
    for number in range(count):
        figures.append(figures_of(read(scans[number * len(scans) // count])))
        tell(number + 1, count)
    names = [name for name in figures[0] if all(name in item for item in figures)]  # MR has no HU
    return TrainingScans({name: [item[name] for item in figures] for name in names})
