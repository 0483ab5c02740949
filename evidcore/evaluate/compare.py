"""Compare how often two sets of answers to the same choice questions are right, read in any two ways.

Answers are lines of `answers/<stage>.jsonl`, so that any two stages, runs or checkpoints can be compared
after the fact. Figures of reports and masks, and several seeds, are compared by `bootstrap.Arms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from evidcore.evaluate.bootstrap import Interval, paired_interval
from evidcore.evaluate.reference_lines import cluster

Line = Mapping[str, Any]
Reading = Literal[
    "choice", "lenient_choice", "rescue_choice", "log_likelihood_choice", "verdict_log_likelihood_choice"
]


def correctness(lines: Iterable[Line], reading: Reading = "choice") -> dict[str, tuple[str, float]]:
    """Return cluster and correctness by prompt; a prompt that was asked several times gets the mean.

    Args:
        lines: answers to choice questions.
        reading: which reading of the answer counts.

    Raises:
        ValueError: if a line holds no such reading; names its prompt.
    """
    found: dict[str, tuple[str, list[float]]] = {}
    for line in lines:
        if reading not in line or "answer" not in line:
            raise ValueError(f"the answer to prompt {line.get('prompt_id')!r} holds no {reading!r}")
        owner = cluster(line["patient"], line["case_id"])
        hits = found.setdefault(line["prompt_id"], (owner, []))[1]
        hits.append(float(line[reading] == line["answer"]))
    return {prompt: (patient, sum(hits) / len(hits)) for prompt, (patient, hits) in found.items()}


def change(
    before: Iterable[Line],
    after: Iterable[Line],
    *,
    reading: Reading = "choice",
    before_reading: Reading | None = None,
) -> Interval:
    """Estimate how much more often `after` is right than `before`, over the questions that both answer.

    Args:
        before: answers to choice questions.
        after: answers to the same questions.
        reading: how `after` is read.
        before_reading: how `before` is read, if otherwise; "log_likelihood_choice" sets what a policy saw
            before training against what it says after.

    Raises:
        ValueError: if they answer different questions; tells how many.
    """
    old, new = correctness(before, before_reading or reading), correctness(after, reading)
    if old.keys() != new.keys():
        raise ValueError(
            f"a comparison needs the same questions: {len(old.keys() - new.keys())} are only before, "
            f"{len(new.keys() - old.keys())} only after, {len(old.keys() & new.keys())} by both"
        )
    return paired_interval(
        [right for _, right in new.values()],
        [old[prompt][1] for prompt in new],
        [patient for patient, _ in new.values()],
    )
