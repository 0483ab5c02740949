"""The evidence section: how the questions fared, and some cases of each kind to look at."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evidcore.runs.read import Line, RunRecord
from evidcore_plugin_pages.cases import (
    Asked,
    Group,
    Known,
    by_question,
    chosen_answers,
    chosen_groups,
    look_up,
    pattern,
)
from evidcore_plugin_pages.charts import Branch, forks
from evidcore_plugin_pages.gallery import Gallery
from evidcore_plugin_pages.markup import DASH, Html, escape, join, number, tag, written

CONDITIONS = {"own": "Own volume", "other-patient": "Another patient's volume", "blank": "Blank volume"}
READINGS = (  # field, label, whether None means that it was not asked for
    ("choice", "strict", False),
    ("lenient_choice", "lenient", False),
    ("rescue_choice", "rescue", False),
    ("log_likelihood_choice", "likeliest option", True),
    ("verdict_log_likelihood_choice", "likeliest verdicts", True),
    ("answer", "right answer", False),
)
_TAG = re.compile(r"(</?[A-Za-z_]+>)")
OPEN_KEYS = ("letter", "options", "finding", "answer", "present")  # never report text


def group_card(
    group: Group, gallery: Gallery, known: Known | None, *, show_reports: bool, is_open: bool
) -> Html:
    """Return one group: the volume and the prompt, then its rollouts from best to worst."""
    line = group.line
    drawn: Sequence[Mapping[str, Any]] = line["rollouts"]
    order = sorted(range(len(drawn)), key=lambda index: -float(drawn[index].get("total") or 0.0))
    widest = max((abs(float(item.get("advantage") or 0.0)) for item in drawn), default=0.0)
    head = _head(group.why, f"step {line.get('step')} · {line.get('task')}", line, known)
    return tag(
        "details",
        head,
        tag(
            "div",
            gallery.viewer(line.get("images") or (), known, (line.get("reference") or {}).get("finding")),
            tag(
                "div",
                _prompt(str(line.get("prompt", ""))),
                _reference(line.get("reference") or {}, known),
                _report(known, show_reports),
                class_="beside",
            ),
            class_="case",
        ),
        tag("h4", f"{len(drawn)} rollouts, best first"),
        _forks(drawn, order),
        tag(
            "ol",
            *(_rollout(place, drawn[index], widest) for place, index in enumerate(order, start=1)),
            class_="rollouts",
            tabindex="0",
            aria_label="Rollouts of this group",
        ),
        class_="evidence",
        open=is_open,
    )


def answer_card(
    asked: Asked,
    gallery: Gallery,
    known: Known | None,
    prompt: str | None,
    *,
    show_reports: bool,
    is_open: bool,
) -> Html:
    """Return one evaluation question with its answers under each condition side by side."""
    first = asked.answers.get("own") or next(iter(asked.answers.values()))
    columns = []
    for condition, label in CONDITIONS.items():
        answer = asked.answers.get(condition)
        if answer is not None:
            columns.append(_answer(condition, label, answer, gallery))
    return tag(
        "details",
        _head(asked.why, str(first.get("task", "")), first, known),
        tag(
            "div",
            gallery.viewer(first.get("images") or (), known, first.get("finding")),
            tag(
                "div",
                _prompt(prompt) if prompt else None,
                tag("div", *columns, class_="conditions"),
                _report(known, show_reports),
                class_="beside",
            ),
            class_="case",
        ),
        class_="evidence",
        open=is_open,
    )


def _head(why: str, where: str, line: Mapping[str, Any], known: Known | None) -> Html:
    kind = tag("span", "phantom", class_="badge") if known is not None and known.phantom else None
    case = tag("code", line.get("case_id", "?"))
    return tag("summary", tag("b", why), tag("span", where, " · case ", case, class_="faint"), kind)


def _prompt(prompt: str) -> Html:
    return tag("div", tag("h4", "Prompt"), tag("pre", prompt, class_="text"))


def _reference(reference: Mapping[str, Any], known: Known | None) -> Html | None:
    """Name the right answer; whatever else a task keeps may be report text, so only phantoms show it."""
    shown = reference if known is not None and known.phantom else {k: reference.get(k) for k in OPEN_KEYS}
    letter, finding = shown.get("letter"), shown.get("finding")
    if letter is not None:
        said = join([tag("b", letter), f" {finding}" if finding else ""])
        return tag("p", "Right answer: ", said, class_="right-answer")
    pairs = [
        tag(
            "div", tag("dt", key), tag("dd", ", ".join(map(str, value)) if isinstance(value, list) else value)
        )
        for key, value in shown.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    return tag("dl", *pairs, class_="facts small") if pairs else None


def _report(known: Known | None, show_reports: bool) -> Html | None:
    if known is None or known.case.report is None:
        return None
    if not (known.phantom or show_reports):
        return tag(
            "p",
            "The reference report of a real patient is not shown. ",
            tag("code", "evid page RUN --show-reports"),
            " puts it here; keep such a page where the data may be.",
            class_="faint",
        )
    report, pieces, end = known.case.report, [], 0
    for span in sorted(report.spans, key=lambda item: item.start):
        if span.start < end:
            continue
        pieces.append(escape(report.text[end : span.start]))
        kind = "abnormal" if span.label == "abnormal" else None
        pieces.append(tag("span", report.text[span.start : span.end], class_=kind))
        end = span.end
    pieces.append(escape(report.text[end:]))
    title = "Reference report (phantom)" if known.phantom else "Reference report"
    return tag("details", tag("summary", title), tag("p", *pieces, class_="text report"))


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


def _rollout(place: int, item: Mapping[str, Any], widest: float) -> Html:
    advantage = item.get("advantage")
    rewards = [_reward(name, verdict) for name, verdict in (item.get("rewards") or {}).items()]
    return tag(
        "li",
        tag(
            "header",
            tag("span", f"#{place}", class_="faint"),
            tag("span", tag("span", "total ", class_="faint"), tag("b", number(item.get("total")))),
            tag("span", tag("span", "advantage ", class_="faint"), number(advantage)),
        ),
        _balance(advantage, widest),
        *(part for turn in item.get("turns") or () for part in _turn(turn)),
        completion(str(item.get("text", ""))),
        _malformed(item.get("malformed")),
        tag("dl", *rewards, class_="rewards")
        if rewards
        else tag("p", "No reward judged it.", class_="empty"),
    )


def _turn(turn: Mapping[str, Any]) -> list[Html]:
    """Return what the model wrote before a tool replied, and the reply."""
    tools = ", ".join(str(action.get("tool") or "no tool") for action in turn.get("actions") or ())
    said = (f"Reply of {tools}: " if tools else "Reply: ") + str(turn.get("reply", ""))
    return [completion(str(turn.get("text", ""))), tag("p", said, class_="reply faint small")]


def _balance(advantage: float | None, widest: float) -> Html:
    share = 0.0 if not advantage or not widest else float(advantage) / widest
    left = 50 if share >= 0 else 50 + 50 * share
    bar = tag(
        "span", class_="up" if share >= 0 else "down", style=f"left:{left:.1f}%;width:{50 * abs(share):.1f}%"
    )
    return tag("div", bar, class_="balance", aria_hidden="true")


def _reward(name: str, verdict: Mapping[str, Any]) -> Html:
    unscored = verdict.get("unscored")
    value: object = number(verdict.get("value"))
    if unscored is not None or verdict.get("value") is None:
        value = tag("span", str(unscored or "not scored").replace("-", " "), class_="unscored")
    parts = verdict.get("parts") or {}
    said = [tag("span", f"{part} ", number(figure), class_="part") for part, figure in parts.items()]
    reason = verdict.get("reason")
    return tag(
        "div",
        tag("dt", name),
        tag("dd", value, class_="num"),
        tag("dd", reason, class_="reason") if reason else None,
        tag("dd", *said, class_="parts") if said else None,
    )


def _answer(condition: str, label: str, answer: Mapping[str, Any], gallery: Gallery) -> Html:
    correct = answer.get("correct")
    verdict = None
    if correct is not None:
        verdict = tag(
            "span", "right" if correct else "wrong", class_="verdict right" if correct else "verdict wrong"
        )
    readings = [
        tag("div", tag("dt", name), tag("dd", DASH if answer[key] is None else answer[key]))
        for key, name, where_asked in READINGS
        if key in answer and (answer[key] is not None or not where_asked)
    ]
    return tag(
        "section",
        tag("h4", label),
        tag("p", verdict) if verdict else None,
        gallery.thumbnail(answer.get("images") or ()),
        completion(str(answer.get("text", ""))),
        _malformed(answer.get("malformed")),
        tag("dl", *readings, class_="readings") if readings else None,
        _affirmed(answer) if "affirmed" in answer else None,
        class_=f"condition {condition}",
    )


def _affirmed(answer: Mapping[str, Any]) -> Html:
    """Say which findings the report names: those the case shows, those it does not, and those it missed."""
    said, present, absent = (set(answer.get(key) or ()) for key in ("affirmed", "present", "absent"))
    lists = (("found", said & present), ("missed", present - said), ("invented", said & absent))
    return tag(
        "dl",
        *(
            tag("div", tag("dt", label), tag("dd", ", ".join(sorted(names)) or DASH), class_=label)
            for label, names in lists
        ),
        class_="affirmed",
    )


def completion(text: str) -> Html:
    """Return what the model wrote, its tags set apart."""
    if not text.strip():
        return tag("p", "It wrote nothing.", class_="empty")
    pieces = [
        tag("span", piece, class_="tag") if _TAG.fullmatch(piece) else escape(piece)
        for piece in _TAG.split(text)
    ]
    return tag("p", *pieces, class_="text")


def _malformed(reason: object) -> Html | None:
    return tag("p", "Malformed: ", str(reason), class_="malformed") if reason else None


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
            case = known.get(str(next(iter(item.answers.values()))["case_id"]))
            blocks.append(
                answer_card(
                    item, gallery, case, _question(item, case), show_reports=show_reports, is_open=first
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
                is_open=index == 0,
            )
            for index, item in enumerate(found)
        ]
    return join(blocks)


def _question(item: Asked, known: Known | None) -> str | None:
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
