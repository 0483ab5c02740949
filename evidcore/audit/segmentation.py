"""Is the mask earned by the volume? The same queries over the right, the wrong and no volume.

As `evidcore.audit.policy` does for choices, in DSC: boxes named over another patient's volume are followed
through the case's own. Organs lie where they lie, so even those overlap; the best blind rule says how much.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.audit.blind_boxes import blind_answers
from evidcore.audit.policy import CONDITIONS, shown_as, verdict
from evidcore.case import Prompt
from evidcore.contracts import Policy, Segmenter, Task
from evidcore.evaluate.answered import Condition
from evidcore.evaluate.bootstrap import Interval, mean_interval, paired_interval
from evidcore.evaluate.followed import Given
from evidcore.evaluate.reference_lines import row
from evidcore.evaluate.segmentation import SegmentationResult, answered, score_segmentations

_BESIDE = ("key_slice_area", "box_iou", "unparsable_rate")  # told of each condition beside DSC


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentationAudit:
    """What a policy's boxes are worth with the right volume, with another patient's and with none."""

    name: str
    results: Mapping[Condition, tuple[SegmentationResult, ...]]  # "other-patient" holds one per exchange
    blind: tuple[float, ...]  # DSC of the best blind rule, by question
    blind_rule: str
    margin: Interval  # own minus other patient
    over_blind: Interval  # other patient minus the best blind rule

    @property
    def clusters(self) -> tuple[str, ...]:
        """Return the patient of each question."""
        return _clusters(self.results["own"])

    def verdict(self) -> str:
        """Return in words what the figures say."""
        return verdict(self.margin, self.over_blind, what="points of DSC")

    def answer_lines(self) -> list[dict[str, Any]]:
        """Return what `answers/<stage>.jsonl` holds of each answer."""
        return [line for some in self.results.values() for result in some for line in result.lines()]

    def rows(self) -> list[dict[str, Any]]:
        """Return the results rows: each condition, the blind rule, then the differences."""
        found = []
        for condition, some in self.results.items():
            note = f"mean over {len(some)} exchanges of volumes" if len(some) > 1 else ""
            for metric in ("dsc", *_BESIDE):
                interval = mean_interval(_mean(some, metric), self.clusters)
                unit = "rate" if metric == "unparsable_rate" else "score"
                found.append(
                    row(CONDITIONS[condition], metric, interval, note=note)
                    | {"task": self.name, "condition": condition, "unit": unit}
                )
        blind = mean_interval(self.blind, self.clusters)
        found.append(row(self.name, "blind_dsc", blind, note=self.blind_rule) | {"unit": "score"})
        found.append(row(self.name, "grounding_margin", self.margin, note="DSC, own minus another patient's"))
        note = f"DSC, another patient's minus the best blind rule ({self.blind_rule})"
        found.append(row(self.name, "other_patient_minus_blind_rule", self.over_blind, note=note))
        return found


def audit_segmentation(
    policy: Policy,
    prompts: Sequence[Prompt],
    task: Task,
    segmenter: Segmenter,
    *,
    training: Sequence[Prompt],
    max_new_tokens: int,
    name: str | None = None,
    exchanges: int = 3,
    blank: bool = True,
    batch_size: int = 64,
    seed: int = 0,
) -> SegmentationAudit:
    """Ask the same queries over own, exchanged and blank volumes, and segment the case's own each time.

    Args:
        policy: the model.
        prompts: queries of `task`, from at least two patients.
        task: reads the completions; its gold answers teach the blind rules.
        segmenter: makes masks of boxes.
        training: queries about the training cases.
        max_new_tokens: most tokens of an answer.
        name: what results call it; the prompts' task if left out.
        exchanges: how often volumes are exchanged between patients, each time otherwise.
        blank: also ask over air.
        batch_size: prompts shown at once.
        seed: of the exchanges.

    Raises:
        DataError: if volumes cannot be exchanged; names the patient.
    """
    given = [
        Given(
            some,
            answered(policy, some, task, max_new_tokens=max_new_tokens, batch_size=batch_size),
            condition,
        )
        for condition, variants in shown_as(prompts, exchanges=exchanges, blank=blank, seed=seed).items()
        for some in variants
    ]
    rules = blind_answers(prompts, training, task)
    blind = [Given(prompts, answers) for answers in rules.values()]
    called = name or prompts[0].task
    scored = score_segmentations([*given, *blind], task, segmenter, name=called)
    results: dict[Condition, tuple[SegmentationResult, ...]] = {}
    for one, result in zip(given, scored, strict=False):
        results[one.condition] = (*results.get(one.condition, ()), result)
    by_rule = {
        rule: _mean((result,), "dsc") for rule, result in zip(rules, scored[len(given) :], strict=True)
    }
    rule = max(by_rule, key=lambda one: sum(by_rule[one]))
    clusters = _clusters(results["own"])
    right, wrong = _mean(results["own"], "dsc"), _mean(results["other-patient"], "dsc")
    return SegmentationAudit(
        name=called,
        results=results,
        blind=by_rule[rule],
        blind_rule=rule,
        margin=paired_interval(right, wrong, clusters),
        over_blind=paired_interval(wrong, by_rule[rule], clusters),
    )


def _clusters(results: Sequence[SegmentationResult]) -> tuple[str, ...]:
    return tuple(answer.cluster for answer in results[0].answers)


def _mean(results: Sequence[SegmentationResult], metric: str) -> tuple[float, ...]:
    """Return a figure of each question, averaged over results; one that cannot be measured counts as 0."""
    by_result = [[text.figures.get(metric, 0.0) for text in one.measured.texts] for one in results]
    return tuple(sum(some) / len(some) for some in zip(*by_result, strict=True))
