"""The check of tasks."""

import dataclasses
import json
from collections.abc import Sequence

from evidcore.api import Case, Prompt, Task, TextPart, View, VisualPart
from evidcore_testing.clauses import Clauses

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
    task: Task, view: View, cases: Sequence[Case], *, garbage: Sequence[str] = (), has_volumes: bool = True
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
        has_volumes: whether prompts show volumes; of a task of words alone they show none.
    """
    if task.needs_slice_tags and not view.tags_slices:
        raise ValueError(f"{type(task).__name__} needs slice tags, {type(view).__name__} writes none")
    check = Clauses(task)
    for seed in (0, 1):
        prompts = [prompt for case in cases for prompt in _asked(task, view, case, seed, has_volumes)]
        check(prompts, "cases that it can ask about are asked about", f"no prompt for seed {seed}")
        ids = [prompt.id for prompt in prompts]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        check(not twice, "prompts have ids of their own", f"more than once: {twice}")
        for prompt in prompts:
            gold_clause = "gold is read as well-formed"
            with check.raises_nothing(gold_clause, f"prompt {prompt.id!r}"):
                gold, spans = task.gold(prompt)
                answer = task.parse(prompt, gold)
            check(answer.malformed is None, gold_clause, f"{gold[:80]!r} is malformed: {answer.malformed}")
            read = [answer.choice, answer.report, answer.evidence, answer.value]
            got = f"neither choice, report, evidence nor value was read from {gold[:80]!r}"
            check(any(each is not None for each in read), gold_clause, got)
            same = (gold, spans) == task.gold(prompt)
            check(same, "equal prompts have equal gold", f"not so for {prompt.id!r}")
            for span in spans:
                got = f"got {span.start}..{span.end} in {len(gold)} characters (prompt {prompt.id!r})"
                check(span.end <= len(gold), "labelled spans lie inside gold", got)
            _garbage_is_malformed(task, prompt, garbage)


def _asked(task: Task, view: View, case: Case, seed: int, has_volumes: bool) -> list[Prompt]:
    check = Clauses(task)
    prompts = list(task.prompts(case, view, seed))
    same = prompts == list(task.prompts(case, view, seed))
    check(same, "equal arguments give equal prompts", f"not so for {case.id!r}, seed {seed}")
    shown = tuple(part.crop for part in view.render(case) if has_volumes and isinstance(part, VisualPart))
    for prompt in prompts:
        where = f"in prompt {prompt.id!r}"
        same = dataclasses.replace(prompt.case, findings=case.findings) == case
        check(same, "a prompt carries its case", f"got {prompt.case.id!r} {where}")
        sound = prompt.crops() == (tuple(crop for crop in shown if crop in prompt.crops()) or shown)
        got = f"got {len(prompt.crops())} crops {where}, {len(shown)} shown"
        check(sound, "the view's parts are shown, all or some", got)
        try:
            plain = json.loads(json.dumps(prompt.reference)) == prompt.reference
        except TypeError:
            plain = False
        check(plain, "the reference is plain JSON", f"got {prompt.reference!r} {where}")
        text = " ".join(part.text for part in prompt.parts if isinstance(part, TextPart))
        is_hidden = case.report is None or case.report.text not in text
        check(is_hidden, "no prompt shows the report", f"it stands {where}")
    return prompts


def _garbage_is_malformed(task: Task, prompt: Prompt, garbage: Sequence[str]) -> None:
    check, clause = Clauses(task), "garbage is malformed with a reason"
    gold, _ = task.gold(prompt)
    pieces = [gold[:stop] for stop in range(0, len(gold), max(1, len(gold) // 16))]
    mixed = [gold + gold, gold[::-1], gold.upper(), f"x {gold}", gold.replace("<", "").replace(">", "")]
    for completion in (*EMPTY, *garbage, *ODD, *pieces, *mixed):
        shown = repr(completion[:60])
        with check.raises_nothing("no completion raises", shown):
            answer = task.parse(prompt, completion)
        got = f"got {answer.text[:60]!r} for {shown}"
        check(answer.text == completion, "an answer holds the completion as written", got)
        if completion in (*EMPTY, *garbage):
            check(answer.malformed is not None, clause, f"{shown} is taken as well-formed")
        if answer.malformed is not None:
            check(answer.malformed.strip(), clause, f"the reason is empty for {shown}")
