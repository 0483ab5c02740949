"""What a data set holds, before anything is trained on it: numbers alone, no text of any report.

Reports tell the normal first. A model trained on them can lower its loss by position alone, so a profile says
where normal and abnormal sentences stand, and how long reports are.

Source:
    Lai et al. 2026, Med3D-R1, arXiv:2602.01200, figures 1 and 3.
"""

import collections
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages.charts import Lane, lanes
from evidcore_plugin_pages.jinja import environment
from evidcore_plugin_pages.jinja import page as page_from_template
from evidcore_plugin_pages.markup import Html, join, tag
from evidcore_plugin_reports.sentences import labelled, sentences

from evidcore.api import Case, DataError, Labeler, Report, Span, Task, mean_interval
from evidcore.contracts import LabelError
from evidcore.data import Geometry, read_geometry
from evidcore.errors import did_you_mean
from evidcore.evaluate.reference_lines import cluster
from evidcore_plugin_doctor import blind
from evidcore_plugin_doctor.listing import Cases

Profile = dict[str, Any]
_PACKAGE = "evidcore_plugin_doctor"
BINS = 20  # of a report's length
LABELS = ("normal", "abnormal")
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
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
            why = f"nothing is asked as {wanted!r}.{did_you_mean(wanted, known)}"
            listed = ", ".join(known) or "nothing, there are neither questions nor findings"
            raise DataError(f"dataset {name!r}: {why} It can be asked: {listed}.")
    reports = {split: [case.report for case in some if case.report] for split, some in cases.items()}
    where = {split: positions(some, labeler) for split, some in reports.items()}
    measured = [way for way in ways if not asked or way.name in asked]
    return {
        "dataset": name,
        "unlisted": unlisted,
        "splits": {split: _counts(some) for split, some in cases.items()},
        "findings": [row for split, some in cases.items() for row in prevalence(split, some)],
        "reference_lines": [row for way in measured for row in blind.lines(way)],
        "positions": {split: densities for split, densities in where.items() if densities is not None},
        "reports": {split: lengths(some) for split, some in reports.items() if some},
        "volumes": _volumes(cases, progress),
    }


def _counts(cases: Sequence[Case]) -> dict[str, Any]:
    patients = {case.patient for case in cases}
    return {
        "cases": len(cases),
        "scans": len({case.notes.get("scan", case.id) for case in cases}),  # of several reconstructions each
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
        interval = mean_interval(values, [*present, *absent])
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
            with contextlib.suppress(DataError):  # counted; `evid data check` says why
                grids.append(read_geometry(ref))
            count += 1
            progress(count, total)
        spacing = np.array([grid.spacing_mm_zyx for grid in grids]).reshape(-1, 3)
        shape = np.array([grid.shape_zyx for grid in grids]).reshape(-1, 3)
        measured = {"spacing_mm": spacing, "voxels": shape, "extent_mm": spacing * shape}
        if some:
            volumes[split] = {"volumes": len(some), "unreadable": len(some) - len(grids)} | {
                name: {axis: quantiles(column) for axis, column in zip("zyx", rows.T, strict=True)}
                for name, rows in measured.items()
            }
    return volumes


def positions(reports: Sequence[Report], labeler: Labeler | None) -> dict[str, Any] | None:
    """Return how densely normal and abnormal sentences stand along a report, None where no label is known.

    A sentence stands where its middle is, 0 at the start of the report and 1 at its end, in characters. A
    density of 1 everywhere is a report in which position tells nothing.

    Args:
        reports: texts; their spans are taken where they have any.
        labeler: labels the sentences of the others: abnormal if it finds anything present or uncertain in
            one, normal if all that it finds is absent. What it cannot read is counted as "unread".
    """
    places: dict[str, list[float]] = collections.defaultdict(list)
    sources: collections.Counter[str] = collections.Counter()
    for report in reports:
        if not report.text or not (report.spans or labeler):
            continue
        spans: Sequence[Span] = report.spans
        source = "spans"
        if not spans and labeler is not None:
            try:
                spans, source = list(labelled(report.text, labeler)), "labeler"
            except LabelError:
                source = "unread"
        sources[source] += 1
        for span in spans:
            places[span.label].append((span.start + span.end) / 2 / len(report.text))
    if not any(places[label] for label in LABELS):
        return None
    result: dict[str, Any] = {"bins": BINS, "reports": dict(sources), "unlabelled": len(places["other"])}
    for label in LABELS:
        counts, _ = np.histogram(places[label], bins=BINS, range=(0, 1))
        total = int(counts.sum())
        result[label] = {
            "sentences": total,
            "mean_position": float(np.mean(places[label])) if total else None,
            "density": [float(count) * BINS / total for count in counts] if total else None,
        }
    return result


def lengths(reports: Sequence[Report]) -> dict[str, Any]:
    """Return how many words and sentences the reports have."""
    words = [len(re.findall(r"\w+", report.text)) for report in reports]
    return {
        "reports": len(reports),
        "words": quantiles(words),
        "sentences": quantiles([sum(1 for _ in sentences(report.text)) for report in reports]),
    }


def quantiles(numbers: npt.ArrayLike) -> dict[str, float] | None:
    """Return the distribution of some numbers, None where there are none."""
    if not np.size(numbers):
        return None
    result = np.quantile(np.asarray(numbers, dtype=np.float64), QUANTILES)
    return {f"{100 * share:g} %": float(value) for share, value in zip(QUANTILES, result, strict=True)}


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
    keys = [tag("span", label, class_=f"line-key {name.replace('_', '-')}") for name, label in _LINES.items()]
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
