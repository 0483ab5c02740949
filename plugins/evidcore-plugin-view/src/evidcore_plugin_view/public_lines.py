"""What is shown of a line: its row of the list, its fields, long texts cut, and the steps of an audit.

Nothing is shown that a patient's report may have written.

The rule is that of the offline page: reports of phantoms are shown, a real patient's only on request. Beside
a real case stand what the model was asked and wrote, numbers, and the fields that are never report text.
"""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.durations import is_number
from evidcore_plugin_pages.examples import OPEN_KEYS, READINGS
from evidcore_plugin_pages.record import Line, findings_of
from evidcore_plugin_pages.tables import by_task, unit_of_row

from evidcore.text.tags import inside
from evidcore_plugin_view.background import Sentences

Row = dict[str, Any]
MOST_CHARACTERS = 20_000
_OPEN = {
    "prompt_id", "case_id", "patient", "task", "condition", "stage",
    "prompt", "text", "malformed",  # what was asked and written
    "affirmed", "present", "absent", "masks",  # lists of findings
    "unparsable", "refused", "target", "kind",
    *OPEN_KEYS, *(name for name, *_ in READINGS),
}  # fmt: skip
_ELSEWHERE = {"images", "rollouts"}  # drawn, or told one by one


def shortened(text: Any) -> dict[str, Any]:
    """Return a text, cut where it is long, and its length."""
    text = str(text)
    return {"text": text[:MOST_CHARACTERS], "characters": len(text), "cut": len(text) > MOST_CHARACTERS}


def public_fields(line: Line, *, phantom: bool) -> dict[str, Any]:
    """Return what may be shown of an answer or a group, all but its rollouts and images."""
    return {
        name: _cut(value)
        for name, value in line.items()
        if name not in _ELSEWHERE and (phantom or name in _OPEN or _holds_numbers(value))
    }


def public_reference(reference: Mapping[str, Any], *, phantom: bool) -> dict[str, Any]:
    """Return what may be told of what is right: of patients only fields that are never report text."""
    return {name: _cut(value) for name, value in reference.items() if phantom or name in OPEN_KEYS}


def with_turns(line: Line) -> dict[str, Any]:
    """Return the text of an answer or a rollout, and the turns before it with the tools' replies."""
    return {
        "text": shortened(line.get("text", "")),
        "turns": [
            {
                "text": shortened(turn.get("text", "")),
                "tools": [str(action.get("tool") or "no tool") for action in turn.get("actions") or ()],
                "reply": shortened(turn.get("reply", "")),
            }
            for turn in line.get("turns") or ()
        ],
    }


def rollout_json(rollout: Line) -> dict[str, Any]:
    """Return one rollout; the model wrote its texts and the rewards their reasons."""
    return {name: _cut(value) for name, value in rollout.items()} | with_turns(rollout)


def searched(line: Line) -> str:
    """Return the texts of a line that may be searched: ids, what was asked and what the model wrote."""
    pieces = [str(line.get(name, "")) for name in ("prompt_id", "case_id", "patient", "prompt", "text")]
    pieces += [str(rollout.get("text", "")) for rollout in line.get("rollouts") or ()]
    return "\n".join(pieces)


def _holds_numbers(value: Any) -> bool:
    """Tell whether a value holds numbers alone, however deep."""
    if isinstance(value, Mapping):
        return all(_holds_numbers(item) for item in value.values())
    if isinstance(value, list):
        return all(_holds_numbers(item) for item in value)
    return value is None or isinstance(value, bool | int | float)


def _cut(value: Any) -> Any:
    """Return a value of a line with every text in it cut."""
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return f"{value[:MOST_CHARACTERS]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {str(name): _cut(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value]
    return value


def answer_row(line: Line, headlines: Collection[str] = ()) -> Row:
    """Return the row of a line of `answers/<stage>.jsonl`; a headline metric scores one without a verdict."""
    correct = line.get("correct")
    return {
        "prompt": str(line.get("prompt_id", "")),
        "case": str(line.get("case_id", "")),
        "patient": line.get("patient"),
        "task": str(line.get("task", "")),
        "condition": str(line.get("condition", "own")),
        "findings": findings_of(line),
        "correct": None if correct is None else bool(correct),
        "score": score_of(line, headlines),
        "malformed": line.get("malformed") is not None,
    }


def group_row(line: Line) -> Row:
    """Return the row of a line of `rollouts/<stage>.jsonl`."""
    rollouts: Sequence[Line] = line.get("rollouts") or ()
    totals = [float(one["total"]) for one in rollouts if is_number(one.get("total"))]
    return {
        "prompt": str(line.get("prompt_id", "")),
        "case": str(line.get("case_id", "")),
        "task": str(line.get("task", "")),
        "step": line.get("step"),
        "findings": findings_of(line.get("reference") or {}),
        "rollouts": len(rollouts),
        "mean": statistics.fmean(totals) if totals else None,
        "spread": statistics.pstdev(totals) if totals else None,
        "zeros": sum(total == 0 for total in totals),
        "malformed": sum(one.get("malformed") is not None for one in rollouts),
    }


def score_of(line: Line, headlines: Collection[str] = ()) -> float | None:
    """Return an answer's score: 1 or 0 where it is right or wrong, else its value or its headline figure."""
    if line.get("correct") is not None:
        return float(bool(line["correct"]))
    if is_number(line.get("value")):
        return float(line["value"])
    figures = line.get("figures") or {}
    return next((float(figures[name]) for name in sorted(headlines) if is_number(figures.get(name))), None)


def cited_sentences(line: Line, read: Callable[[str, Sequence[str]], Sentences]) -> dict[str, Any]:
    """Return the sentences that affirm a finding, and each finding with its slice.

    A finding has the slice that is cited for it, else the one that is cited for the whole report, else None.
    Only what is shown is read: of a text that is cut, its beginning. A rollout has the findings of its group
    under `present` and `absent`.
    """
    evidence = line.get("evidence") or line
    slices = {str(name): z for name, z in (evidence.get("slices") or {}).items() if isinstance(z, int)}
    whole = slices.pop("", evidence.get("slice"))
    lists = ("affirmed", "present", "absent")
    names = list(dict.fromkeys([*slices, *(str(name) for key in lists for name in line.get(key) or ())]))
    text = str(line.get("text", ""))[:MOST_CHARACTERS]
    report = inside(text, "report")
    start = 0 if report is None else text.index(report, text.index("<report>") + len("<report>"))
    sentences = read(text if report is None else report, names) if names else []
    cited = [*slices, *(line.get("affirmed") or ()), *(name for one in sentences for name in one["findings"])]
    return {
        "sentences": [{**one, "start": one["start"] + start, "end": one["end"] + start} for one in sentences],
        "slices": {name: slices.get(name, whole) for name in dict.fromkeys(map(str, cited))},
    }


def staircases(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of each task that an audit asked, by its `results/<stage>.json`, lowest first.

    A step is a condition of the audit. A rule that does not look is one too: results hold own volumes minus
    the rule on the same questions, so the rule's figure follows from it, and its interval is that of the row
    that holds this figure. Each step has the difference to own volumes, `above`, where it was measured. Other
    stages have none.
    """
    results = []
    for task, rows in by_task(result).items():
        levels = {str(row["condition"]): row for row in rows if row.get("condition") and row.get("headline")}
        own = levels.get("own")
        if own is None:
            continue
        compared = [row for row in rows if row.get("against") and "/" not in str(row["metric"])]
        differences = {str(row["against"]): row for row in compared if row["metric"] != "own_minus_blind"}
        steps: list[dict[str, Any]] = [
            {"name": str(row["name"]), "condition": name, "note": row.get("note") or "", **_interval(row)}
            for name, row in levels.items()
        ]
        for step in steps:
            difference = differences.pop(step["condition"], None)
            step["above"] = None if difference is None else _interval(difference)
        others = [row for row in rows if not row.get("condition") and not row.get("against")]
        steps += [_rule(name, float(own["value"]), row, others) for name, row in differences.items()]
        steps.sort(key=lambda step: float(step["value"]))
        results.append({
            "task": task,
            "metric": str(own["metric"]),
            "unit": unit_of_row(own),
            "verdict": str((result.get("verdict") or {}).get(task, "")),
            "steps": steps,
        })
    return results


def _rule(name: str, own: float, difference: Line, others: Sequence[Line]) -> dict[str, Any]:
    """Return the step of a rule that does not look."""
    value = own - float(difference["value"])
    level = next((row for row in others if math.isclose(float(row["value"]), value, abs_tol=1e-9)), {})
    says = str(difference.get("note") or name).partition(";")[0]
    return {
        "name": says.rpartition("own minus ")[2],
        "condition": None,
        "note": str(level.get("note") or ""),
        **_interval({"value": value, **level}),
        "above": _interval(difference),
    }


def _interval(row: Line) -> dict[str, Any]:
    return {name: row.get(name) for name in ("value", "low", "high")}
