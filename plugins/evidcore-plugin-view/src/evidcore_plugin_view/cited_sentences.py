"""Which sentences of a written report affirm which findings, and the slice that is cited for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evidcore.text.tags import inside
from evidcore_plugin_view.public_lines import MOST_CHARACTERS


def cited_sentences(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sentences that affirm a finding, and each finding with its slice.

    Sentences are read by the labeler `negation-rules`, which looks for the findings that the line names. A
    finding has the slice that is cited for it, else the one that is cited for the whole report, else None.
    Only what is shown is read: of a text that is cut, its beginning.

    Args:
        line: an answer, or a rollout with the findings of its group under `present` and `absent`.
    """
    evidence = line.get("evidence") or line
    whole = evidence.get("slice")
    slices = {str(name): z for name, z in (evidence.get("slices") or {}).items() if isinstance(z, int)}
    whole = slices.pop("", whole)
    lists = ("affirmed", "present", "absent")
    names = list(dict.fromkeys([*slices, *(str(name) for key in lists for name in line.get(key) or ())]))
    text = str(line.get("text", ""))[:MOST_CHARACTERS]
    report = inside(text, "report")
    start = 0 if report is None else text.index(report, text.index("<report>") + len("<report>"))
    sentences = _affirming(text if report is None else report, names) if names else []
    told = [*slices, *(line.get("affirmed") or ()), *(name for one in sentences for name in one["findings"])]
    return {
        "sentences": [{**one, "start": one["start"] + start, "end": one["end"] + start} for one in sentences],
        "slices": {name: slices.get(name, whole) for name in dict.fromkeys(map(str, told))},
    }


def _affirming(text: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the sentences in which a finding is present, with its characters and all such findings."""
    from evidcore.registry.factory import build  # torch comes with it
    from evidcore.text.sentences import sentences

    settings = {"use": "negation-rules", "findings": list(names)}
    labeler = build("labeler", settings, given={}, where="evid view")
    present = [one for one in labeler(text) if one.state == "present" and one.span is not None]
    found = []
    for stretch in sentences(text):
        told = [one.name for one in present if stretch.start <= one.span.start < stretch.end]
        if told:
            found.append({"start": stretch.start, "end": stretch.end, "findings": list(dict.fromkeys(told))})
    return found
