"""Measure what was thought before a choice, by the metrics that read thinking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evidcore.case import Prompt
from evidcore.contracts import Task, Written
from evidcore.evaluate.measuring import Measurement, NamedMetric, measure


def measure_thinking(
    metrics: Iterable[NamedMetric], prompts: Sequence[Prompt], answers: Sequence[str], task: Task
) -> Measurement:
    """Measure the thinking of answers against the reports of their cases.

    An answer without thinking counts as one that thought nothing, unless none has any: then nothing was asked
    for, and nothing is measured.

    Args:
        metrics: those of them that read "think" are used.
        prompts: what was asked.
        answers: one completion each.
        task: reads them.
    """
    thoughts = [task.parse(prompt, text).think for prompt, text in zip(prompts, answers, strict=True)]
    if not any(thoughts):
        metrics = ()
    texts = [
        Written(case=prompt.case, asked=prompt.written(), text=thought or "", reference=prompt.case.report)
        for prompt, thought in zip(prompts, thoughts, strict=True)
    ]
    return measure(metrics, texts, "think")
