"""What a data set holds, before anything is trained on it: numbers alone, no text of any report."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.charts import Lane, lanes
from evidcore_plugin_pages.jinja import environment
from evidcore_plugin_pages.jinja import page as page_from_template
from evidcore_plugin_pages.markup import Html, join, tag

from evidcore.api import Case, DataError, Labeler, Task, VolumeRef, mean_interval
from evidcore.data import Geometry, read_geometry
from evidcore.errors import did_you_mean
from evidcore.evaluate.reference_lines import cluster
from evidcore_plugin_doctor import blind, sentences
from evidcore_plugin_doctor.listing import Cases

Profile = dict[str, Any]
_PACKAGE = "evidcore_plugin_doctor"
_INTERVAL_DRAWS = 1000
_LINES = {
    "uniform_chance": "uniform chance",
    "prior_only": "best blind rule",
    "perfect_perception": "perfect perception",
}


def profile(
    cases: Cases,
    name: str,
    *,
    tasks: Mapping[str, Task],
    asked: Sequence[str],
    labeler: Labeler | None,
    progress: Callable[[int, int], None],
    unlisted: int = 0,
) -> Profile:
    """Describe a data set.

    Of a recipe's `tasks` those that ask multiple choice are measured, of all ways of asking those in `asked`,
    all where it is empty. `labeler` labels the sentences of reports that carry no labels; `unlisted` rows and
    cells of the set's tables cannot be read.

    Raises:
        DataError: if there is no case, or no such way of asking.
    """
    if not any(cases.values()):
        unread = f" {unlisted} rows and cells cannot be read: evid data check names them." if unlisted else ""
        raise DataError(f"dataset {name!r}: has no case in any split. Check its options and files.{unread}")
    ways = blind.ask(cases, tasks)
    known = [way.name for way in ways]
    for wanted in asked:
        if wanted not in known:
            raise DataError(
                f"dataset {name!r}: nothing is asked as {wanted!r}.{did_you_mean(wanted, known)} "
                f"It can be asked: {', '.join(known) or 'nothing, there are neither questions nor findings'}."
            )
    reports = {split: [case.report for case in some if case.report] for split, some in cases.items()}
    positions = {split: sentences.positions(some, labeler) for split, some in reports.items()}
    return {
        "dataset": name,
        "unlisted": unlisted,
        "splits": {split: _counts(some) for split, some in cases.items()},
        "findings": [row for split, some in cases.items() for row in prevalence(split, some)],
        "reference_lines": [
            row for way in ways if not asked or way.name in asked for row in blind.lines(way)
        ],
        "positions": {split: measured for split, measured in positions.items() if measured is not None},
        "reports": {split: sentences.lengths(some) for split, some in reports.items() if some},
        "volumes": _volumes(cases, progress),
    }


def _counts(cases: Sequence[Case]) -> dict[str, Any]:
    patients = {case.patient for case in cases}
    return {
        "cases": len(cases),
        "patients": None if None in patients else len(patients),
        "questions": sum(len(case.questions) for case in cases),
    }


def prevalence(split: str, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Yield for each finding how often it is present among the cases of a split that know of it."""
    states: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for case in cases:
        for finding in case.findings:
            states[finding.name][finding.state].append(cluster(case.patient, case.id))
    for name, by_state in states.items():
        present, absent = by_state["present"], by_state["absent"]
        if not present and not absent:
            continue
        values = [1.0] * len(present) + [0.0] * len(absent)
        interval = mean_interval(values, [*present, *absent], draws=_INTERVAL_DRAWS)
        yield {
            "finding": name,
            "split": split,
            "present": len(present),
            "absent": len(absent),
            "uncertain": len(by_state["uncertain"]),
            "unknown": len(cases) - len(present) - len(absent) - len(by_state["uncertain"]),
            "prevalence": interval.value,
            "low": interval.low,
            "high": interval.high,
            "note": interval.note,
        }


def _volumes(cases: Cases, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Describe voxel sizes and shapes by split, from headers alone."""
    refs = {split: [ref for case in some for ref in case.volumes] for split, some in cases.items()}
    total = sum(map(len, refs.values()))
    count = 0
    volumes: dict[str, Any] = {}
    for split, some in refs.items():
        grids: list[Geometry] = []
        for ref in some:
            grid = _grid(ref)
            grids += [grid] if grid is not None else []
            count += 1
            progress(count, total)
        if some:
            volumes[split] = {
                "volumes": len(some),
                "unreadable": len(some) - len(grids),
                "spacing_mm": _by_axis([grid.spacing_mm_zyx for grid in grids]),
                "voxels": _by_axis([grid.shape_zyx for grid in grids]),
                "extent_mm": _by_axis([
                    [count * step for count, step in zip(grid.shape_zyx, grid.spacing_mm_zyx, strict=True)]
                    for grid in grids
                ]),
            }
    return volumes


def _grid(ref: VolumeRef) -> Geometry | None:
    try:
        return read_geometry(ref)
    except DataError:
        return None  # counted; `evid data check` says why


def _by_axis(triples: Sequence[Sequence[float]]) -> dict[str, Any]:
    return {
        axis: sentences.quantiles([triple[index] for triple in triples]) for index, axis in enumerate("zyx")
    }


def text(profile: Profile, target: str) -> str:
    """Return a profile as the command prints it."""
    plain = environment(_PACKAGE).overlay(autoescape=False)
    return plain.get_template("profile.txt").render(profile=profile, target=target, lines=_LINES)


def page(profiles: Sequence[Profile]) -> str:
    """Return the page of some data sets' profiles: one file, no network, numbers alone."""
    return page_from_template(
        _PACKAGE, "profile.html", kicker="evidcore data profile",
        title=", ".join(item["dataset"] for item in profiles), profiles=profiles, lines=_lines,
        prevalence=_prevalence,
    )  # fmt: skip


def _lines(rows: Sequence[Mapping[str, Any]]) -> Html | str:
    drawn = [
        Lane(
            label=f"{row['asked']}, {row['split']}: {row['prior_rule']}",
            value=row["prior_only"]["value"],
            low=row["prior_only"]["low"],
            high=row["prior_only"]["high"],
            tone="other",
            lines={name: row[name]["value"] for name in _LINES if row[name]["value"] is not None},
        )
        for row in rows
    ]
    keys = [
        tag(
            "span",
            label,
            class_="line-key" + ("" if name == "uniform_chance" else f" {name}".replace("_", "-")),
        )
        for name, label in _LINES.items()
    ]
    caption = join(["The dot is the best blind rule, with its interval by patient. ", *keys])
    return lanes(drawn, start=0.0, stop=1.0, unit="rate", caption=caption) if drawn else ""


def _prevalence(rows: Sequence[Mapping[str, Any]]) -> list[Html]:
    by_split: dict[str, list[Lane]] = {}
    for row in rows:
        lane = Lane(label=row["finding"], value=row["prevalence"], low=row["low"], high=row["high"])
        by_split.setdefault(row["split"], []).append(lane)
    caption = "Share of the {} cases that know of the finding, with its interval by patient."
    return [
        lanes(drawn, start=0.0, stop=1.0, unit="rate", caption=caption.format(split))
        for split, drawn in by_split.items()
    ]
