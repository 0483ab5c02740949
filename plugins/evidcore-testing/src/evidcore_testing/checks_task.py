"""The check of tasks."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from evidcore.api import Case, Prompt, Task, TextPart, View, VisualPart
from evidcore_testing.clauses import raises_nothing, require

EMPTY = ("", "   ", "\n\n\t")
ODD = (
    "<think>",
    "</answer><answer>",
    "<answer></answer>" * 3,
    "<think><think>A</think></answer>",
    "{}[]()\\{0}%s%d$1",
    "\x00\x1b[31m\ufffd\u202e",
    "größer 😀 —",
    "9" * 5000,
    "[1, 2, NaN, -1e999]",
    "A" * 20000,
)


def check_task(
    task: Task,
    view: View,
    cases: Sequence[Case],
    *,
    garbage: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1),
) -> None:
    """Assert the contract of a task.

    - prompts have ids of their own, carry their case, and show all or some parts of what the view shows;
    - the reference is plain JSON;
    - equal arguments give equal prompts;
    - no prompt shows the report;
    - gold is read as well-formed, with spans inside it;
    - garbage is malformed with a reason;
    - no completion raises;
    - an answer holds the completion as written.

    Args:
        task: the component under test.
        view: shows the cases; one that tags slices where the task needs it.
        cases: cases that the task can ask about, at least one.
        garbage: completions that break this task's format, beside empty ones.
        seeds: for which prompts are drawn.
    """
    if task.needs_slice_tags and not view.tags_slices:
        raise ValueError(f"{type(task).__name__} needs slice tags, {type(view).__name__} writes none")
    for seed in seeds:
        prompts = [prompt for case in cases for prompt in _asked(task, view, case, seed)]
        told = f"no prompt for seed {seed}"
        require(bool(prompts), task, "cases that it can ask about are asked about", told)
        ids = [prompt.id for prompt in prompts]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        require(not twice, task, "prompts have ids of their own", f"more than once: {twice}")
        for prompt in prompts:
            _gold_is_read(task, prompt)
            _garbage_is_malformed(task, prompt, garbage)


def _asked(task: Task, view: View, case: Case, seed: int) -> list[Prompt]:
    prompts = list(task.prompts(case, view, seed))
    told = f"not so for {case.id!r}, seed {seed}"
    require(prompts == list(task.prompts(case, view, seed)), task, "equal arguments give equal prompts", told)
    for prompt in prompts:
        where = f"in prompt {prompt.id!r}"
        same = dataclasses.replace(prompt.case, findings=case.findings) == case
        require(same, task, "a prompt carries its case", f"got {prompt.case.id!r} {where}")
        shown = tuple(part.crop for part in view.render(case) if isinstance(part, VisualPart))
        told = f"got {len(prompt.crops())} crops {where}, {len(shown)} shown"
        sound = prompt.crops() == (tuple(crop for crop in shown if crop in prompt.crops()) or shown)
        require(sound, task, "the view's parts are shown, all or some", told)
        try:
            plain = json.loads(json.dumps(prompt.reference)) == prompt.reference
        except TypeError:
            plain = False
        require(plain, task, "the reference is plain JSON", f"got {prompt.reference!r} {where}")
        text = " ".join(part.text for part in prompt.parts if isinstance(part, TextPart))
        is_kept = case.report is None or case.report.text not in text
        require(is_kept, task, "no prompt shows the report", f"it stands {where}")
    return prompts


def _gold_is_read(task: Task, prompt: Prompt) -> None:
    clause = "gold is read as well-formed"
    with raises_nothing(task, clause, f"prompt {prompt.id!r}"):
        gold, spans = task.gold(prompt)
        answer = task.parse(prompt, gold)
    require(answer.malformed is None, task, clause, f"{gold[:80]!r} is malformed: {answer.malformed}")
    read = [answer.choice, answer.report, answer.evidence, answer.value]
    told = f"neither choice, report, evidence nor value was read from {gold[:80]!r}"
    require(any(each is not None for each in read), task, clause, told)
    told = f"not so for {prompt.id!r}"
    require((gold, spans) == task.gold(prompt), task, "equal prompts have equal gold", told)
    for span in spans:
        result = f"got {span.start}..{span.end} in {len(gold)} characters (prompt {prompt.id!r})"
        require(span.end <= len(gold), task, "labelled spans lie inside gold", result)


def _garbage_is_malformed(task: Task, prompt: Prompt, garbage: Sequence[str]) -> None:
    gold, _ = task.gold(prompt)
    pieces = [gold[:stop] for stop in range(0, len(gold), max(1, len(gold) // 16))]
    mixed = [gold + gold, gold[::-1], gold.upper(), f"x {gold}", gold.replace("<", "").replace(">", "")]
    for completion in (*EMPTY, *garbage, *ODD, *pieces, *mixed):
        shown = repr(completion[:60])
        with raises_nothing(task, "no completion raises", shown):
            answer = task.parse(prompt, completion)
        told = f"got {answer.text[:60]!r} for {shown}"
        require(answer.text == completion, task, "an answer holds the completion as written", told)
        clause = "garbage is malformed with a reason"
        if completion in (*EMPTY, *garbage):
            require(answer.malformed is not None, task, clause, f"{shown} is taken as well-formed")
        if answer.malformed is not None:
            require(bool(answer.malformed.strip()), task, clause, f"the reason is empty for {shown}")
