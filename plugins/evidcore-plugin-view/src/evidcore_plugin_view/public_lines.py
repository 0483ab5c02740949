"""What may be told of a line: long texts are cut, and nothing that a patient's report may have written.

The rule is that of the offline page: reports of phantoms are shown, a real patient's only on request. Beside
a real case stand what the model was asked and wrote, numbers, and the fields that are never report text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.examples import OPEN_KEYS, READINGS

from evidcore_plugin_view.line_index import Line

MOST_CHARACTERS = 20_000
_IDS = ("prompt_id", "case_id", "patient", "task", "condition", "stage")
_ASKED_AND_WRITTEN = ("prompt", "text", "malformed")
_LISTS_OF_FINDINGS = ("affirmed", "present", "absent", "masks")
_SHORT = ("unparsable", "refused", "target", "kind")
_OPEN = {
    *_IDS,
    *_ASKED_AND_WRITTEN,
    *_LISTS_OF_FINDINGS,
    *_SHORT,
    *OPEN_KEYS,
    *(name for name, *_ in READINGS),
}
_ELSEWHERE = {"images", "rollouts"}  # drawn, or told one by one


def shortened(text: str, most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """Return a text, cut where it is longer than `most` characters, and its length."""
    return {"text": text[:most], "characters": len(text), "cut": len(text) > most}


def public_fields(line: Line, *, phantom: bool) -> dict[str, Any]:
    """Return what may be told of an answer or of a group without its rollouts.

    Args:
        line: as the run wrote it.
        phantom: whether its case was generated, so that nothing in it is a patient's.
    """
    return {
        name: _cut(value)
        for name, value in line.items()
        if name not in _ELSEWHERE and (phantom or name in _OPEN or _holds_numbers(value))
    }


def public_reference(reference: Mapping[str, Any], *, phantom: bool) -> dict[str, Any]:
    """Return what may be told of what is right: of patients only fields that are never report text."""
    return {name: _cut(value) for name, value in reference.items() if phantom or name in OPEN_KEYS}


def rollout_json(rollout: Line) -> dict[str, Any]:
    """Return one rollout; the model wrote its texts and the rewards their reasons."""
    return {
        **{name: _cut(value) for name, value in rollout.items() if name not in ("text", "turns")},
        "text": shortened(str(rollout.get("text", ""))),
        "turns": turns_json(rollout.get("turns") or ()),
    }


def turns_json(turns: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the turns before an answer: what the model wrote, which tools it called, what they replied."""
    return [
        {
            "text": shortened(str(turn.get("text", ""))),
            "tools": [str(action.get("tool") or "no tool") for action in turn.get("actions") or ()],
            "reply": shortened(str(turn.get("reply", ""))),
        }
        for turn in turns
    ]


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
    if isinstance(value, str):
        return (
            value
            if len(value) <= MOST_CHARACTERS
            else f"{value[:MOST_CHARACTERS]}… ({len(value)} characters)"
        )
    if isinstance(value, Mapping):
        return {str(name): _cut(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item) for item in value]
    return value
