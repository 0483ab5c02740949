"""The evidence section: how the questions fared, and some cases of each kind to look at."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Mapping

from evidcore.page.cases import (
    Asked,
    Group,
    Known,
    by_question,
    chosen_answers,
    chosen_groups,
    look_up,
    pattern,
)
from evidcore.page.evidence import answer_card, group_card
from evidcore.page.gallery import Gallery
from evidcore.page.markup import Html, join, tag
from evidcore.page.numbers import number
from evidcore.page.record import Line, RunRecord


def evidence_section(record: RunRecord, gallery: Gallery, show_reports: bool) -> Html:
    """Return the section; volumes that its cards show are read through `gallery`."""
    answers = _last_stage(record.answers)
    asked = chosen_answers(answers)
    groups = {path.stem: chosen_groups(path) for path in record.rollout_files}
    lines = [next(iter(item.answers.values())) for item in asked]
    lines += [item.line for found in groups.values() for item in found]
    known, faults = look_up(record, lines)
    return join([
        *(tag("p", fault, class_="empty") for fault in faults),
        _answers(asked, answers, gallery, known, show_reports),
        _groups(groups, gallery, known, show_reports),
    ])


def _last_stage(answers: Iterable[Line]) -> list[Line]:
    """Keep the answers of the last stage that stored some; it speaks for the run."""
    kept: list[Line] = []
    for line in answers:
        if kept and kept[0]["stage"] != line["stage"]:
            kept = []
        kept.append(line)
    return kept


def _answers(
    asked: list[Asked],
    answers: list[Line],
    gallery: Gallery,
    known: Mapping[str, Known],
    show_reports: bool,
) -> Html:
    if not asked:
        return join([tag("h3", "Answers"), tag("p", "No evaluation has stored answers yet.", class_="empty")])
    cards = [
        answer_card(
            item,
            gallery,
            known.get(_case(item)),
            _prompt(item, known.get(_case(item))),
            show_reports=show_reports,
            is_open=place == 0,
        )
        for place, item in enumerate(asked)
    ]
    return join([tag("h3", f"Answers, {answers[0]['stage']}"), _patterns(answers), *cards])


def _patterns(answers: list[Line]) -> Html | None:
    """Count how the questions fared under the strict reading."""
    counts = Counter(kind for item in by_question(answers).values() if (kind := pattern(item)))
    if not counts:
        return tag("p", "One answer of each task, the first in the order of the test set.", class_="faint")
    total = sum(counts.values())
    said = [tag("span", tag("b", number(count, "count")), f" {kind}") for kind, count in counts.most_common()]
    return tag(
        "p",
        "Of ",
        number(total, "count"),
        " questions: ",
        join(said, ", "),
        ". Below, the first of each kind in the order of the test set.",
    )


def _groups(
    groups: Mapping[str, list[Group]], gallery: Gallery, known: Mapping[str, Known], show_reports: bool
) -> Html:
    if not any(groups.values()):
        sentence = "This run has no GRPO rollouts."
        return join([tag("h3", "Groups in training"), tag("p", sentence, class_="empty")])
    blocks: list[Html] = []
    for stage, found in groups.items():
        blocks.append(tag("h3", f"Groups in training, {stage}"))
        if not found:
            blocks.append(tag("p", "This stage has judged no group yet.", class_="empty"))
        blocks += [
            group_card(
                item,
                gallery,
                known.get(str(item.line["case_id"])),
                show_reports=show_reports,
                is_open=place == 0,
            )
            for place, item in enumerate(found)
        ]
    return join(blocks)


def _case(item: Asked) -> str:
    return str(next(iter(item.answers.values()))["case_id"])


def _prompt(item: Asked, known: Known | None) -> str | None:
    """Return what was asked: as recorded, or the question that came with the case."""
    first = next(iter(item.answers.values()))
    if first.get("prompt"):
        return str(first["prompt"])
    for question in known.case.questions if known is not None else ():
        if str(first["prompt_id"]) == f"{first['case_id']}:{question.id}":
            options = [
                f"{letter}) {option}"
                for letter, option in zip(string.ascii_uppercase, question.options, strict=False)
            ]
            return "\n".join([question.text, *options])
    return None
