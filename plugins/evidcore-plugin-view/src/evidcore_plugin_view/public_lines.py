"""What is shown of a line: its row of the list, and its fields, long texts cut.

Nothing is shown that a patient's report may have written.

The rule is that of the offline page: reports of phantoms are shown, a real patient's only on request. Beside
a real case stand what the model was asked and wrote, numbers, and the fields that are never report text.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.durations import is_number
from evidcore_plugin_pages.examples import OPEN_KEYS, READINGS

from evidcore.runs.read import findings_of
from evidcore.text.tags import inside
from evidcore_plugin_view.background import Sentences
from evidcore_plugin_view.line_index import Line, Row

MOST_CHARACTERS = 20_000
_OPEN = {
    "prompt_id", "case_id", "patient", "task", "condition", "stage",
    "prompt", "text", "malformed",  # what was asked and written
    "affirmed", "present", "absent", "masks",  # lists of findings
    "unparsable", "refused", "target", "kind",
    *OPEN_KEYS, *(name for name, *_ in READINGS),
}  # fmt: skip
_ELSEWHERE = {"images", "rollouts"}  # drawn, or told one by one


def shortened(text: str, most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """Return a text, cut where it is longer than `most` characters, and its length."""
    return {"text": text[:most], "characters": len(text), "cut": len(text) > most}


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
        "text": shortened(str(line.get("text", ""))),
        "turns": [
            {
                "text": shortened(str(turn.get("text", ""))),
                "tools": [str(action.get("tool") or "no tool") for action in turn.get("actions") or ()],
                "reply": shortened(str(turn.get("reply", ""))),
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
