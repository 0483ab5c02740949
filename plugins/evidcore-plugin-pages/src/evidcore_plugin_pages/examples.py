"""The evidence section: how the questions fared, and some cases of each kind to look at."""

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages import cases
from evidcore_plugin_pages.cases import Asked, Group, Known
from evidcore_plugin_pages.charts import Branch, forks
from evidcore_plugin_pages.gallery import Gallery
from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import DASH, Html, written
from evidcore_plugin_pages.record import Line, RunRecord

CONDITIONS = {"own": "Own volume", "other-patient": "Another patient's volume", "blank": "Blank volume"}
READINGS = (  # field, label, whether None means that it was not asked for
    ("choice", "strict", False),
    ("lenient_choice", "lenient", False),
    ("rescue_choice", "rescue", False),
    ("log_likelihood_choice", "likeliest option", True),
    ("verdict_log_likelihood_choice", "likeliest verdicts", True),
    ("answer", "right answer", False),
)
OPEN_KEYS = ("letter", "options", "finding", "answer", "present")  # never report text


def evidence_section(record: RunRecord, gallery: Gallery, show_reports: bool) -> Html:
    """Return the section; volumes that its cards show are read through `gallery`."""
    kept: dict[str, list[Line]] = {}  # for each task the answers of the last stage that asked it
    for line in record.answers:
        held = kept.setdefault(str(line.get("task", "")), [])
        if held and held[0]["stage"] != line["stage"]:
            held.clear()
        held.append(line)
    tasks = dict(sorted(kept.items(), key=lambda item: len({line.get("condition") for line in item[1]}) == 1))
    asked = {task: cases.chosen_answers(answers) for task, answers in tasks.items()}  # audited first
    groups = {path.stem: cases.chosen_groups(path) for path in record.rollout_files}
    lines = [next(iter(item.answers.values())) for items in asked.values() for item in items]
    lines += [item.line for items in groups.values() for item in items]
    known, faults = cases.look_up(record, lines)
    cards = {
        task: [_answer_card(item, gallery, known, show_reports) for item in items]
        for task, items in asked.items()
    }
    rollouts = {
        stage: [_group_card(item, gallery, known, show_reports) for item in items]
        for stage, items in groups.items()
    }
    result = {
        "faults": faults,
        "first": next((card for items in cards.values() for card in items), None),
        "tasks": [
            {
                "name": task, "stage": answers[0]["stage"], "asked": cards[task],
                "counts": Counter(
                    filter(None, map(cases.pattern, cases.by_question(answers).values()))
                ).most_common(),
            }
            for task, answers in tasks.items()
        ],
        "groups": rollouts if any(groups.values()) else {},
    }  # fmt: skip
    return part("section", result, template="evidence.html")


def _group_card(
    group: Group, gallery: Gallery, known_cases: Mapping[str, Known], show_reports: bool
) -> dict[str, Any]:
    """Return what a card shows of a group: the volume and the prompt, its rollouts from best to worst."""
    line, known = group.line, known_cases.get(str(group.line["case_id"]))
    drawn: Sequence[Mapping[str, Any]] = line["rollouts"]
    order = sorted(range(len(drawn)), key=lambda index: -float(drawn[index].get("total") or 0.0))
    widest = max((abs(float(item.get("advantage") or 0.0)) for item in drawn), default=0.0)
    reference = line.get("reference") or {}
    shown = reference if known is not None and known.phantom else {k: reference.get(k) for k in OPEN_KEYS}
    if shown.get("letter") is None:
        shown = {
            key: ", ".join(map(str, value)) if isinstance(value, list) else value
            for key, value in shown.items()
            if value is not None and not isinstance(value, Mapping)
        }
    return {
        "why": group.why,
        "line": line,
        "known": known,
        "viewer": gallery.viewer(line.get("images") or (), known, reference.get("finding")),
        "reference": shown,
        "report": _report(known, show_reports),
        "forks": _forks(drawn, order),
        "rollouts": [
            (drawn[index], float(drawn[index].get("advantage") or 0.0) / (widest or 1.0)) for index in order
        ],
    }


def _answer_card(
    asked: Asked, gallery: Gallery, known_cases: Mapping[str, Known], show_reports: bool
) -> dict[str, Any]:
    """Return what a card shows of a question: its answers under each condition side by side."""
    first = asked.answers.get("own") or next(iter(asked.answers.values()))
    known = known_cases.get(str(next(iter(asked.answers.values()))["case_id"]))
    columns = [
        {
            "condition": condition, "label": label, "answer": answer, "readings": _readings(answer),
            "thumbnail": gallery.thumbnail(answer.get("images") or ()), "affirmed": _affirmed(answer),
        }
        for condition, label in CONDITIONS.items()
        if (answer := asked.answers.get(condition)) is not None
    ]  # fmt: skip
    return {
        "why": asked.why,
        "first": first,
        "known": known,
        "columns": columns,
        "viewer": gallery.viewer(first.get("images") or (), known, first.get("finding")),
        "prompt": _question(asked, known),
        "report": _report(known, show_reports),
    }


def _report(known: Known | None, show_reports: bool) -> dict[str, Any] | None:
    """Return a case's report in pieces, each with its sentence's label; none of them where it is withheld."""
    if known is None or known.case.report is None:
        return None
    if not (known.phantom or show_reports):
        return {"pieces": None}
    report, end = known.case.report, 0
    pieces: list[tuple[str, str | None]] = []
    for span in sorted(report.spans, key=lambda item: item.start):
        if span.start < end:
            continue
        pieces += [(report.text[end : span.start], None), (report.text[span.start : span.end], span.label)]
        end = span.end
    return {"pieces": [*pieces, (report.text[end:], None)], "phantom": known.phantom}


def _forks(drawn: Sequence[Mapping[str, Any]], order: Sequence[int]) -> Html | None:
    """Draw which answer was forked from which; nothing where none was."""
    if not any(item.get("parent") for item in drawn):
        return None
    branches = []
    for index, item in enumerate(drawn):
        parent, start = item.get("parent") or (None, 0)
        label = f"#{order.index(index) + 1}, total {written(float(item.get('total') or 0.0))}"
        branches.append(Branch(label=label, length=int(item["length"]), parent=parent, start=start))
    return forks(branches, "Tokens from left to right; a fork shares what stands before it with its parent.")


def _readings(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, DASH if answer[key] is None else answer[key])
        for key, name, where_asked in READINGS
        if key in answer and (answer[key] is not None or not where_asked)
    ]


def _affirmed(answer: Mapping[str, Any]) -> list[tuple[str, set[str]]] | None:
    """Return which findings a report names: those the case shows, those it missed, those it does not show."""
    if "affirmed" not in answer:
        return None
    named, present, absent = (set(answer.get(key) or ()) for key in ("affirmed", "present", "absent"))
    return [("found", named & present), ("missed", present - named), ("invented", named & absent)]


def _question(item: Asked, known: Known | None) -> str | None:
    """Return what was asked: as recorded, or the question that came with the case."""
    first = next(iter(item.answers.values()))
    if first.get("prompt"):
        return str(first["prompt"])
    for question in known.case.questions if known is not None else ():
        if str(first["prompt_id"]) == f"{first['case_id']}:{question.id}":
            lettered = zip(string.ascii_uppercase, question.options, strict=False)
            options = [f"{letter}) {option}" for letter, option in lettered]
            return "\n".join([question.text, *options])
    return None
