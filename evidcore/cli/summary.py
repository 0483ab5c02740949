"""What a run found, in a few lines: accuracies beside their reference lines, the audit, the controls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from evidcore.evaluate.tables import main_rows
from evidcore.run.folder import RunFolder


def summary(folder: RunFolder, only: str = "*") -> dict[str, Any]:
    """Return the results of a run (of one stage), and the lines that say them."""
    files = sorted((folder.path / "results").glob(f"{only}.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    lines: list[str] = []
    for result in results:
        references: dict[str, dict[str, float | None]] = result.get("reference_lines") or {}
        said_below = {name for lines_ in references.values() for name in lines_}
        rows = [row for row in main_rows(result["rows"]) if row["metric"] not in said_below]
        if rows:
            lines += ["", f"{result['stage']}"]
        for row in rows:
            lines.append(f"  {row['name']:24} {row['metric'].replace('_', ' '):32} {_figure(row)}")
        for task, reference in references.items():
            shown = ", ".join(f"{name.replace('_', ' ')} {_share(one)}" for name, one in reference.items())
            lines.append(f"  {task:24} reference lines: {shown}")
        for task, verdict in (result.get("verdict") or {}).items():
            lines.append(f"  {task:24} {verdict}")
    return {"results": results, "lines": lines}


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.1f} %"


def _figure(row: Mapping[str, Any]) -> str:
    """Return value and interval; shares as percentages, differences in points, the rest as they are."""
    metric, value, low, high = row["metric"], row["value"], row["low"], row["high"]
    if value is None:
        return f"not measured ({row['note']})"
    if row.get("unit") in ("score", "plain") or "f1" in metric or "auc" in metric:
        text = f"{value:.3f}" + (f" ({low:.3f} to {high:.3f})" if low is not None else "")
    elif "margin" in metric or "minus" in metric or "change" in metric:
        text = f"{100 * value:+.1f} points" + (
            f" ({100 * low:+.1f} to {100 * high:+.1f})" if low is not None else ""
        )
    else:
        text = f"{100 * value:.1f} %" + (f" ({100 * low:.1f} to {100 * high:.1f})" if low is not None else "")
    questions, patients = row.get("questions"), row.get("patients")
    return text + (f", {questions} questions, {patients} patients" if questions else "")
