"""Compare answers to the same questions: before and after training, two conditions, several seeds.

Answers are lines of `answers/<stage>.jsonl`, so that any two stages, runs or checkpoints can be compared
after the fact: choices by how often they are right, reports by any figure that their lines hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal

from evidcore.evaluate.pooling import Figure, change_interval, change_interval_over_seeds, from_json
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


def figure_names(*answers: Iterable[Line]) -> list[str]:
    """Return the figures that some line of each set of answers holds, in the order of the first."""
    found = [dict.fromkeys(name for line in lines for name in line.get("figures", {})) for lines in answers]
    return [name for name in found[0] if all(name in other for other in found)]


def figure_change(before: Iterable[Line], after: Iterable[Line], figure: str) -> Interval | None:
    """Estimate how much larger a figure of reports is after than before; None where it is 0 over 0.

    Pooled figures (names such as `bleu_4_corpus`, `findings_f1_micro`) are computed anew in each resample of
    patients. Reports that lack the figure on either side are left out, and the note says how many.

    Args:
        before: answers to report prompts.
        after: answers to the same prompts.
        figure: its name, one of `figure_names(before, after)`.

    Raises:
        ValueError: if they answer different prompts, or none holds the figure; tells how many.
    """
    old, new, patients, note = _paired_figures(before, after, figure)
    interval = change_interval(old, new, patients)
    return interval if interval is None else _noted(interval, note)


def figure_change_over_seeds(
    pairs: Sequence[tuple[Iterable[Line], Iterable[Line]]], figure: str, *, patients_shared: bool
) -> Interval | None:
    """Estimate the same over training seeds: the mean over seeds, resampling seeds, then patients.

    Args:
        pairs: before and after, one pair per seed.
        figure: its name.
        patients_shared: the seeds were tested on the same patients.

    Raises:
        ValueError: if a pair answers different prompts or holds no such figure; tells how many.
    """
    sides, owners, notes = [], [], []
    for seed, (before, after) in enumerate(pairs):
        old, new, patients, note = _paired_figures(before, after, figure)
        sides.append((old, new))
        # seeds with data of their own may call different patients by one name
        owners.append(patients if patients_shared else [f"{seed}/{owner}" for owner in patients])
        notes.append(note)
    interval = change_interval_over_seeds(sides, owners, patients_shared=patients_shared)
    return interval if interval is None else _noted(interval, *notes)


def _figures(lines: Iterable[Line], figure: str) -> dict[str, tuple[str, Figure | None]]:
    found: dict[str, tuple[str, Figure | None]] = {}
    for line in lines:
        prompt = line["prompt_id"]
        if prompt in found:
            raise ValueError(f"prompt {prompt!r} is answered twice; compare one stage's answers at a time")
        value = line.get("figures", {}).get(figure)
        owner = cluster(line["patient"], line["case_id"])
        found[prompt] = owner, None if value is None else from_json(value)
    return found


def _paired_figures(
    before: Iterable[Line], after: Iterable[Line], figure: str
) -> tuple[list[Figure], list[Figure], list[str], str]:
    old, new = _figures(before, figure), _figures(after, figure)
    _require_same(old.keys(), new.keys())
    pairs = [
        (first, second, owner)
        for prompt, (owner, second) in new.items()
        if (first := old[prompt][1]) is not None and second is not None
    ]
    if not pairs:
        raise ValueError(f"none of {len(new)} reports holds the figure {figure!r} on both sides")
    missing = len(new) - len(pairs)
    note = f"{missing} of {len(new)} reports lack it on a side" if missing else ""
    return [one for one, _, _ in pairs], [two for _, two, _ in pairs], [owner for _, _, owner in pairs], note


def _noted(interval: Interval, *notes: str) -> Interval:
    parts = dict.fromkeys(part for part in (interval.note, *notes) if part)
    return dataclasses.replace(interval, note="; ".join(parts))


def _require_same(old: Set[str], new: Set[str]) -> None:
    if old != new:
        raise ValueError(
            f"a comparison needs the same questions: {len(old - new)} are only before, "
            f"{len(new - old)} only after, {len(old & new)} by both"
        )


def _paired(
    before: Iterable[Line], after: Iterable[Line], reading: Reading, before_reading: Reading | None
) -> tuple[list[float], list[float], list[str]]:
    old, new = correctness(before, before_reading or reading), correctness(after, reading)
    _require_same(old.keys(), new.keys())
    return (
        [old[prompt][1] for prompt in new],
        [right for _, right in new.values()],
        [patient for patient, _ in new.values()],
    )
