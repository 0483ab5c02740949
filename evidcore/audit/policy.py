"""Is the accuracy earned by the volume? The same questions over the right, the wrong and no volume.

*Grounding margin*: accuracy over the case's own volumes minus accuracy over another patient's, question by
question. A policy that answers from priors has a margin of 0 however high its accuracy. Beside it stands the
accuracy over another patient's volumes minus the best blind rule of the same questions: without the right
volume a policy can know no more than the priors, so a positive difference means that questions or prompts
give the answers away.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Crop, Prompt
from evidcore.contracts import Policy, Task
from evidcore.errors import DataError
from evidcore.evaluate.answered import Condition
from evidcore.evaluate.bootstrap import Interval, mean_interval, paired_interval
from evidcore.evaluate.choice import ChoiceAnswer, ChoiceResult, evaluate_choice
from evidcore.evaluate.reference_lines import ReferenceLines, cluster_of, reference_lines, row

CONDITIONS: Mapping[Condition, str] = {  # what results call them
    "own": "own volumes", "other-patient": "another patient's volumes", "blank": "blank volumes",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyAudit:
    """What a policy scores with the right volume, with another patient's and with none."""

    name: str
    results: Mapping[Condition, tuple[ChoiceResult, ...]]  # "other-patient" holds one per exchange of volumes
    lines: ReferenceLines
    margin: Interval  # own minus other patient
    over_prior: Interval  # other patient minus the best blind rule

    def accuracy(self, condition: Condition) -> Interval:
        """Return strict accuracy, averaged over exchanges."""
        return mean_interval(_mean_correct(self.results[condition]), self.lines.clusters)

    @property
    def answers(self) -> tuple[ChoiceAnswer, ...]:
        """Return every answer of every condition."""
        return tuple(answer for some in self.results.values() for result in some for answer in result.answers)

    def verdict(self) -> str:
        """Return in words what the figures say, and what they cannot."""
        return verdict(self.margin, self.over_prior)

    def rows(self) -> list[dict[str, Any]]:
        """Return the results rows: each condition, then the differences, then the reference lines."""
        found = []
        for condition, some in self.results.items():
            note = f"mean over {len(some)} exchanges of volumes" if condition == "other-patient" else ""
            found.append(
                row(CONDITIONS[condition], "strict_accuracy", self.accuracy(condition), note=note)
                | {"task": self.name, "condition": condition}
            )
            valid = [
                sum(float(answer.malformed is None) for answer in answers) / len(answers)
                for answers in zip(*(result.answers for result in some), strict=True)
            ]
            found.append(
                row(CONDITIONS[condition], "format_rate", mean_interval(valid, self.lines.clusters))
                | {"task": self.name, "condition": condition}
            )
        found.append(row(self.name, "grounding_margin", self.margin, note="own minus another patient's"))
        note = f"another patient's minus the best blind rule ({self.lines.prior_rule})"
        found.append(row(self.name, "other_patient_minus_prior_only", self.over_prior, note=note))
        return found + self.lines.rows(self.name)


def audit_policy(
    policy: Policy,
    prompts: Sequence[Prompt],
    task: Task,
    *,
    training: Sequence[Prompt],
    max_new_tokens: int,
    name: str | None = None,
    exchanges: int = 3,
    blank: bool = True,
    batch_size: int = 64,
    likelihoods: bool = False,
    seed: int = 0,
    own: ChoiceResult | None = None,
) -> PolicyAudit:
    """Ask the same questions over own, exchanged and blank volumes.

    Args:
        policy: the model.
        prompts: questions of `task`, from at least two patients.
        task: reads the completions.
        training: training questions, from which the blind rules learn.
        max_new_tokens: most tokens of an answer.
        name: what results call it; the prompts' task if left out.
        exchanges: how often volumes are exchanged between patients, each time otherwise; more make the
            margin's interval narrower.
        blank: also ask over air.
        batch_size: prompts shown at once.
        likelihoods: also ask for option likelihoods in every condition.
        seed: of the exchanges.
        own: answers over own volumes, where they were given before.

    Raises:
        DataError: if volumes cannot be exchanged; names the patient.
        ValueError: if `own` answers other questions.
    """
    shown = shown_as(prompts, exchanges=exchanges, blank=blank, seed=seed)
    if own is not None and [answer.prompt_id for answer in own.answers] != [prompt.id for prompt in prompts]:
        raise ValueError("`own` holds answers to other questions than those audited")
    called = name or prompts[0].task
    results: dict[Condition, tuple[ChoiceResult, ...]] = {}
    for condition, variants in shown.items():
        if condition == "own" and own is not None:
            results[condition] = (own,)
            continue
        results[condition] = tuple(
            evaluate_choice(
                policy,
                some,
                task,
                max_new_tokens=max_new_tokens,
                name=called,
                condition=condition,
                batch_size=batch_size,
                likelihoods=likelihoods,
            )
            for some in variants
        )
    lines = reference_lines(prompts, training)
    right, wrong = _mean_correct(results["own"]), _mean_correct(results["other-patient"])
    return PolicyAudit(
        name=called,
        results=results,
        lines=lines,
        margin=paired_interval(right, wrong, lines.clusters),
        over_prior=paired_interval(wrong, lines.prior_only, lines.clusters),
    )


def shown_as(
    prompts: Sequence[Prompt], *, exchanges: int, blank: bool, seed: int
) -> dict[Condition, list[Sequence[Prompt]]]:
    """Return the prompts over own volumes, over those of each exchange, and over air if asked for."""
    shown: dict[Condition, list[Sequence[Prompt]]] = {
        "own": [prompts],
        "other-patient": [exchanged(prompts, seed=seed + number) for number in range(exchanges)],
    }
    if blank:
        shown["blank"] = [[blanked(prompt) for prompt in prompts]]
    return shown


def exchanged(prompts: Sequence[Prompt], *, seed: int = 0) -> list[Prompt]:
    """Show every question over another patient's volumes: nobody keeps his own.

    Patients stand in a circle, in an order drawn from `seed`, and each gets the next one's volumes, so every
    volume is shown about as often as before. Where the next patient shows another number of volumes, the one
    after him is taken.

    Raises:
        DataError: if no other patient shows as many volumes; names the patient and the prompt.
    """
    scans: dict[str, list[tuple[Crop, ...]]] = {}
    for prompt in prompts:
        of_patient = scans.setdefault(cluster_of(prompt), [])
        if prompt.crops() not in of_patient:
            of_patient.append(prompt.crops())
    circle = sorted(scans)
    random.Random(f"exchange/{seed}").shuffle(circle)
    place = {patient: number for number, patient in enumerate(circle)}
    return [
        prompt.showing(_of_another(prompt, scans, circle, place[cluster_of(prompt)])) for prompt in prompts
    ]


def blanked(prompt: Prompt) -> Prompt:
    """Show the question over volumes of air."""
    return prompt.showing([dataclasses.replace(crop, blank=True) for crop in prompt.crops()])


def _of_another(
    prompt: Prompt, scans: Mapping[str, list[tuple[Crop, ...]]], circle: Sequence[str], place: int
) -> tuple[Crop, ...]:
    own = scans[circle[place]].index(prompt.crops())
    for step in range(1, len(circle)):
        donor = scans[circle[(place + step) % len(circle)]]
        fitting = [crops for crops in donor if len(crops) == len(prompt.crops())]
        if fitting:
            return fitting[own % len(fitting)]
    raise DataError(
        f"prompt {prompt.id!r} of {circle[place]!r} shows {len(prompt.crops())} volumes and no other of the "
        f"{len(circle)} patients shows as many. Audit with at least two patients, seen in the same view."
    )


def _mean_correct(results: Sequence[ChoiceResult]) -> tuple[float, ...]:
    return tuple(sum(hits) / len(hits) for hits in zip(*(one.correct() for one in results), strict=True))


def verdict(margin: Interval, over_prior: Interval, what: str = "points") -> str:
    """Return in words what the margin and the difference from the best blind rule say."""
    return " ".join([_on_margin(margin, what), _on_prior(over_prior, what)]).strip()


def _on_margin(margin: Interval, what: str) -> str:
    points = f"{100 * margin.value:+.1f} {what}"
    ends = _ends(margin)
    if ends is None:
        return f"Undecided: margin {points}, {margin.note}."
    found = f"margin {points}, {_spread(margin)}"
    if ends[0] > 0:
        return f"The volume is used: {found}."
    if ends[1] < 0:
        return f"The right volume misleads: {found}."
    return f"No sign that the volume is used: {found}."


def _on_prior(over: Interval, what: str) -> str:
    ends = _ends(over)
    if ends is None:
        return ""
    spread = _spread(over).removeprefix("95 % interval ")
    found = f"{100 * over.value:+.1f} {what} against the best blind rule ({spread})"
    if ends[0] > 0:
        return f"Without its volume it beats the blind rules, so something else gives answers away: {found}."
    if ends[1] < 0:
        return f"Without its volume it stays below the best blind rule: {found}."
    return f"Without its volume it scores as the best blind rule does: {found}."


def _ends(interval: Interval) -> tuple[float, float] | None:
    """Return between which values the draws lie; None where there are none."""
    if interval.is_tied:
        return interval.value, interval.value
    return None if interval.low is None or interval.high is None else (interval.low, interval.high)


def _spread(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "the same in every draw of patients"
    return f"95 % interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
