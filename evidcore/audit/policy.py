"""Were the answers earned by the volume? The same questions over the right, the wrong and no volume.

*Grounding margin*: the evaluation's headline over the case's own volumes minus that over another patient's,
question by question. A policy that answers from priors has a margin of 0 however high its score. Beside it
stands the score over another patient's volumes minus the best blind rule of the same questions: without the
right volume a policy can know no more than the priors, so a positive difference means that questions or
prompts give the answers away.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Ge

from evidcore.case import Crop, Prompt
from evidcore.contracts import (
    Answers,
    Asking,
    Audit,
    Audited,
    Blind,
    Evaluation,
    Policy,
    Row,
    Scored,
    Task,
)
from evidcore.errors import DataError
from evidcore.evaluate.bootstrap import Interval, mean_interval, paired_interval
from evidcore.evaluate.reference_lines import cluster_of, row

CONDITIONS: Mapping[str, str] = {  # what results call them
    "own": "own volumes", "other-patient": "another patient's volumes", "blank": "blank volumes",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyAudited(Audited):
    """What a policy scores with the right volume, with another patient's and with none."""

    name: str
    evaluation: Evaluation[Any]
    results: Mapping[str, tuple[Scored, ...]]  # by condition; "other-patient" holds one per exchange
    blind: Blind | None  # the best rule that does not look, where the evaluation has one
    margin: Interval  # own minus other patient
    over_blind: Interval | None  # other patient minus the best blind rule

    @property
    def clusters(self) -> tuple[str, ...]:
        """Return the patient of each question."""
        return self.results["own"][0].clusters

    def score(self, condition: str, metric: str = "") -> Interval:
        """Return a metric under a condition, the headline if none is named, averaged over exchanges."""
        return mean_interval(
            _mean(self.results[condition], metric or self.evaluation.headline), self.clusters
        )

    def verdict(self) -> str:
        """Return in words what the figures say, and what they cannot."""
        return verdict(self.margin, self.over_blind, self.evaluation.points)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of every condition."""
        return [line for some in self.results.values() for result in some for line in result.lines()]

    def reference_lines(self) -> Mapping[str, float | None]:
        """Return what blind rules score."""
        return {} if self.blind is None else self.blind.figures

    def rows(self) -> list[Row]:
        """Return the results rows: each condition, the differences, then the blind rules."""
        found = []
        for condition, some in self.results.items():
            note = f"mean over {len(some)} exchanges of volumes" if len(some) > 1 else ""
            for metric in (self.evaluation.headline, *self.evaluation.beside):
                found.append(
                    row(
                        CONDITIONS[condition], metric, self.score(condition, metric),
                        note=note if metric == self.evaluation.headline else "",
                        unit=some[0].unit(metric), task=self.name, condition=condition,
                        is_headline=metric == self.evaluation.headline,
                    )
                )  # fmt: skip
        what = self.evaluation.points.removeprefix("points").removeprefix(" of ")
        what = f"{what}, " if what else ""
        note = f"{what}own minus another patient's"
        of = {"of": self.evaluation.headline}
        found.append(row(self.name, "grounding_margin", self.margin, note=note, extra=of))
        if self.blind is not None and self.over_blind is not None:
            note = f"{what}another patient's minus the best blind rule ({self.blind.rule})"
            metric = f"other_patient_minus_{self.blind.label}"
            found.append(row(self.name, metric, self.over_blind, note=note))
            found += self.blind.rows
        return found


class PolicyAudit(Audit):
    """Ask over own, exchanged and blank volumes.

    Args:
        exchanges: how often volumes are exchanged between patients, each time otherwise; more make the
            margin's interval narrower.
    """

    def __init__(self, *, exchanges: Annotated[int, Ge(1)] = 3) -> None:
        self.exchanges = exchanges

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        task: Task,
        evaluation: Evaluation[Any],
        training: Callable[[], Sequence[Prompt]],
        asking: Asking,
        name: str,
    ) -> PolicyAudited:
        """Audit a policy on `prompts`, from at least two patients.

        Raises:
            DataError: if volumes cannot be exchanged; names the patient.
        """
        asking = dataclasses.replace(asking, headline_only=True)
        given = [
            Answers(some, evaluation.answer(policy, some, task, asking), condition)
            for condition, variants in self.shown(prompts, asking.seed).items()
            for some in variants
        ]
        scored, blind = evaluation.score_beside_blind(given, prompts, training, task, name)
        results: dict[str, tuple[Scored, ...]] = {}
        for one, result in zip(given, scored, strict=True):
            results[one.condition] = (*results.get(one.condition, ()), result)
        clusters = results["own"][0].clusters
        right, wrong = (_mean(results[side], evaluation.headline) for side in ("own", "other-patient"))
        return PolicyAudited(
            name=name,
            evaluation=evaluation,
            results=results,
            blind=blind,
            margin=paired_interval(right, wrong, clusters),
            over_blind=None if blind is None else paired_interval(wrong, blind.values, clusters),
        )

    def shown(self, prompts: Sequence[Prompt], seed: int) -> dict[str, list[Sequence[Prompt]]]:
        """Return the prompts over own volumes, over those of each exchange, and over air."""
        return {
            "own": [prompts],
            "other-patient": [exchanged(prompts, seed=seed + number) for number in range(self.exchanges)],
            "blank": [[blanked(prompt) for prompt in prompts]],
        }


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


def _mean(results: Sequence[Scored], metric: str) -> tuple[float, ...]:
    """Return a metric of each question, averaged over results."""
    each = zip(*(one.values(metric) for one in results), strict=True)
    return tuple(sum(some) / len(some) for some in each)


def verdict(margin: Interval, over_blind: Interval | None, what: str = "points") -> str:
    """Return in words what the margin and the difference from the best blind rule say."""
    over = "" if over_blind is None else _on_blind(over_blind, what)
    return f"{_on_margin(margin, what)} {over}".strip()


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


def _on_blind(over: Interval, what: str) -> str:
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
