"""What a run found, in a few lines: accuracies beside their reference lines, and the audit."""

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.runs.folder import RunFolder

Row = Mapping[str, Any]

_FRACTIONS = ("f1", "auc")  # written 0.87; everything else is a share or a difference of shares, in percent


def number(metric: str, value: float | None, unit: str | None = None) -> str:
    """Return a figure as it is written: percent, points for differences, three digits for F1 and AUC.

    `unit` is "rate", "points", "score" or "plain", as rows name it; without one the metric tells.
    """
    if value is None:
        return "–"  # noqa: RUF001  an en dash is what it is
    if is_fraction(metric, unit):
        return f"{value:.3f}"
    return f"{100 * value:+.1f}" if is_difference(metric) else f"{100 * value:.1f} %"


def is_difference(metric: str) -> bool:
    """Tell whether a figure is a difference of shares, written in points."""
    return any(word in metric for word in ("margin", "minus", "change"))


def is_fraction(metric: str, unit: str | None = None) -> bool:
    """Tell whether a figure is written with three digits behind the point; others are in percent."""
    return unit in ("score", "plain") or (unit is None and any(word in metric for word in _FRACTIONS))


def summary(folder: RunFolder, only: str = "*") -> dict[str, Any]:
    """Return the results of a run (of one stage), and the lines that say them."""
    files = sorted((folder.path / "results").glob(f"{only}.json"))
    results = [folder.result(path.stem) for path in files]
    lines: list[str] = []
    for result in results:
        references: dict[str, dict[str, float | None]] = result.get("reference_lines") or {}
        named_below = {name for lines_ in references.values() for name in lines_}
        whole = [row for row in result["rows"] if "/" not in row["metric"]]  # others: of a finding, a decile
        rows = [row for row in whole if row["metric"] not in named_below]
        if rows:
            lines += ["", f"{result['stage']}"]
        for row in rows:
            lines.append(f"  {row['name']:24} {_said(row['metric']):32} {_figure(row)}")
        for task, reference in references.items():
            listing = ", ".join(f"{_said(name)} {_share(value)}" for name, value in reference.items())
            lines.append(f"  {task:24} reference lines: {listing}")
        for task, verdict in (result.get("verdict") or {}).items():
            lines.append(f"  {task:24} {verdict}")
    return {"results": results, "lines": lines}


_MOST_LINES = 12


def ending(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a run ends with, at most twelve lines: own, margins, what training changed, the verdict.

    Without an audit it is what the last stage measured, at a glance.
    """
    audits = [result for result in results if result.get("verdict")]
    changes = [row for result in results if result["kind"] == "changes" for row in result["rows"]]
    measured = audits[-1:] or [result for result in results if result["kind"] != "changes"]
    lines: list[str] = []
    for result in measured[-1:]:
        rows = [row for row in result["rows"] if row.get("headline")]
        main = [row for row in rows if row["name"] == "own volumes"] or rows
        lines += [f"{row.get('task', row['name'])}, {_said(row['metric'])}: {_figure(row)}" for row in main]
        for task, verdict in (result.get("verdict") or {}).items():
            summaries = [row for row in result["rows"] if row["name"] == task and row.get("summary")]
            summaries.sort(key=lambda row: is_difference(row["metric"]))  # what was scored, then margins
            lines += [f"  {row['summary']}: {_figure(row)}" for row in summaries]
            lines.append(f"  {verdict}")
    lines += [f"{row['name']}, {row.get('note')}: {_figure(row)}" for row in changes]
    left = len(lines) - _MOST_LINES
    return lines if left <= 0 else [*lines[: _MOST_LINES - 1], f"and {left + 1} more lines: see the page"]


def _said(metric: str) -> str:
    return "best blind rule" if metric == "prior_only" else metric.replace("_", " ")


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.1f} %"


def _figure(row: Mapping[str, Any]) -> str:
    """Return value and interval; shares as percentages, differences in points, the rest as they are."""
    metric, low, high, unit = row["metric"], row.get("low"), row.get("high"), row.get("unit")
    if row["value"] is None:
        return f"not measured ({row.get('note')})"
    unit = "score" if is_fraction(metric) else unit
    text = number(metric, row["value"], unit)
    if is_difference(metric) and not is_fraction(metric, unit):
        text += " points"
    if low is not None:
        text += f" ({number(metric, low, unit)} to {number(metric, high, unit)})".replace(" %", "")
    questions, patients = row.get("questions"), row.get("patients")
    return text + (f", {questions} questions, {patients} patients" if questions else "")
