"""Compare answers to the same questions: before and after training, two conditions, several seeds.

Answers are lines of `answers/<stage>.jsonl`, so that any two stages, runs or checkpoints can be compared
after the fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from evidcore.evaluate.reference_lines import cluster
from evidcore.evaluate.statistics import Interval, hierarchical_interval, paired_interval

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
    first, second, patients = _paired(before, after, reading, before_reading)
    return paired_interval(second, first, patients)


def change_over_seeds(
    pairs: Sequence[tuple[Iterable[Line], Iterable[Line]]],
    *,
    patients_shared: bool,
    reading: Reading = "choice",
    before_reading: Reading | None = None,
) -> Interval:
    """Estimate the same over training seeds: the mean over seeds, resampling seeds, then patients.

    Args:
        pairs: before and after, one pair per seed.
        patients_shared: the seeds were tested on the same patients.
        reading: how "after" is read.
        before_reading: how "before" is read, if otherwise.

    Raises:
        ValueError: if a pair answers different questions; tells how many.
    """
    differences: list[float] = []
    seeds: list[int] = []
    patients: list[str] = []
    for seed, (before, after) in enumerate(pairs):
        first, second, owners = _paired(before, after, reading, before_reading)
        differences += [new - old for old, new in zip(first, second, strict=True)]
        seeds += [seed] * len(owners)
        # seeds with data of their own may call different patients by one name
        patients += owners if patients_shared else [f"{seed}/{owner}" for owner in owners]
    return hierarchical_interval(differences, seeds, patients, patients_shared=patients_shared)


def _paired(
    before: Iterable[Line], after: Iterable[Line], reading: Reading, before_reading: Reading | None
) -> tuple[list[float], list[float], list[str]]:
    old, new = correctness(before, before_reading or reading), correctness(after, reading)
    if old.keys() != new.keys():
        raise ValueError(
            f"a comparison needs the same questions: {len(old.keys() - new.keys())} are only before, "
            f"{len(new.keys() - old.keys())} only after, {len(old.keys() & new.keys())} by both"
        )
    return (
        [old[prompt][1] for prompt in new],
        [right for _, right in new.values()],
        [patient for patient, _ in new.values()],
    )
