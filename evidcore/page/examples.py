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
    tasks = _last_of_each_task(record.answers)
    asked = {task: chosen_answers(answers) for task, answers in tasks.items()}
    groups = {path.stem: chosen_groups(path) for path in record.rollout_files}
    lines = [next(iter(item.answers.values())) for items in asked.values() for item in items]
    lines += [item.line for items in groups.values() for item in items]
    known, faults = look_up(record, lines)
    blocks: list[Html] = [tag("p", fault, class_="empty") for fault in faults]
    if not tasks:
        blocks += [tag("h3", "Answers"), tag("p", "No evaluation has stored answers yet.", class_="empty")]
    first = True
    for task, answers in tasks.items():
        blocks.append(tag("h3", f"Answers, {answers[0]['stage']}: {task}"))
        blocks.append(_patterns(answers))
        for item in asked[task]:
            case = known.get(_case(item))
            blocks.append(
                answer_card(
                    item, gallery, case, _prompt(item, case), show_reports=show_reports, is_open=first
                )
            )
            first = False
    return join([*blocks, _groups(groups, gallery, known, show_reports)])


def _last_of_each_task(answers: Iterable[Line]) -> dict[str, list[Line]]:
    """Keep for each task the answers of the last stage that asked it; audited tasks come first."""
    kept: dict[str, list[Line]] = {}
    for line in answers:
        held = kept.setdefault(str(line.get("task", "")), [])
        if held and held[0]["stage"] != line["stage"]:
            held.clear()
        held.append(line)
    return dict(sorted(kept.items(), key=lambda item: len({line.get("condition") for line in item[1]}) == 1))


def _patterns(answers: list[Line]) -> Html:
    """Count how the questions fared under the strict reading."""
    counts = Counter(kind for item in by_question(answers).values() if (kind := pattern(item)))
    if not counts:
        return tag("p", "The first in the order of the data set.", class_="faint")
    said = [tag("span", tag("b", number(count, "count")), f" {kind}") for kind, count in counts.most_common()]
    return tag(
        "p",
        "Of ",
        number(sum(counts.values()), "count"),
        " questions: ",
        join(said, ", "),
        ". Below, the first of each kind in the order of the data set.",
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
