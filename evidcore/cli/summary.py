"""What a run found, in a few lines: accuracies beside their reference lines, the audit, the controls."""

from __future__ import annotations

import json
from typing import Any

from evidcore.run.folder import RunFolder

_SHOWN = (
    "strict_accuracy", "log_likelihood_accuracy", "accuracy_given_valid_format", "format_rate",
    "findings_f1_micro", "findings_f1_macro", "bleu_4_corpus", "rouge_l", "cider_d", "meteor",
    "abnormal_recall", "abnormal_recall_late_minus_early", "judge_correctness", "dsc", "iou", "iou_from_dsc",
    "oracle_dsc", "unparsable_rate", "key_slice_area", "box_iou", "probe_accuracy",
    "probe_auc_mean", "probe_auc_min", "blind_dsc", "grounding_margin", "other_patient_minus_prior_only",
    "other_patient_minus_blind_rule",
    "log_likelihood_change", "verdict_log_likelihood_change",
)  # fmt: skip
_LINES = ("uniform_chance", "prior_only", "perfect_perception")


def summary(folder: RunFolder, only: str = "*") -> dict[str, Any]:
    """Return the results of a run (of one stage), and the lines that say them."""
    files = sorted((folder.path / "results").glob(f"{only}.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    lines: list[str] = []
    for result in results:
        rows = [row for row in result["rows"] if row["metric"] in _SHOWN]
        if rows:
            lines += ["", f"{result['stage']}"]
        for row in rows:
            lines.append(f"  {row['name']:24} {row['metric'].replace('_', ' '):32} {_figure(row)}")
        for task, reference in (result.get("reference_lines") or {}).items():
            shown = ", ".join(f"{name.replace('_', ' ')} {_share(reference[name])}" for name in _LINES)
            lines.append(f"  {task:24} reference lines: {shown}")
        for task, verdict in (result.get("verdict") or {}).items():
            lines.append(f"  {task:24} {verdict}")
    return {"results": results, "lines": lines}


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.1f} %"


def _figure(row: dict[str, Any]) -> str:
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
