"""Evaluate segmentations: boxes on a slice, made a mask by a segmenter, against the masks of the case.

What is counted how:

- An answer from which no box on a slice can be read, by a tolerant reader, has Dice 0, and so has one that
  the segmenter refuses. Their shares are printed; leaving them out would reward silence.
- `dsc` and `iou` are means over questions. `iou_from_dsc` is DSC / (2 - DSC) of the mean DSC, which papers
  print as IoU; it is not the mean IoU.
- `oracle_dsc` is what the same segmenter makes of the gold boxes: no answer can be expected to beat it.
- `key_slice_area` is the target's area on the named slice over its largest on any slice, `key_slice_off_mm`
  how far that slice lies from the gold one, `box_iou` how well the boxes match the gold ones in the plane,
  whatever slice was named. `repeated_boxes` is how many boxes of an answer are no others in voxels than one
  before: they make no other mask, and count against `box_iou`.
- `right_mask` is the share of queries whose words leave several masks open (`reference["among"]`, as both
  kidneys) for which the mask made of the answer overlaps what is meant by more voxels than all the others.

Beside a policy under audit stand the best blind rule and *registration*, which knows where the body lies in
the scan and never looks at what is asked (`blind_boxes`).
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from evidcore.api import (
    Answer,
    Answers,
    EvalResult,
    Evaluation,
    Prompt,
    Row,
    Segmenter,
    Task,
    VolumeRef,
    mean_interval,
)
from evidcore.case import Evidence
from evidcore.data import Mask
from evidcore.evaluate.answer_record import gold_answer
from evidcore.evaluate.measuring import Measurement, TextFigures
from evidcore.evaluate.numeric_result import NumericResult
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_medvol_r1.blind_boxes import BLIND, REGISTRATION, Rule, best_answers
from evidcore_plugin_medvol_r1.followed import SegmentationAnswer, follow
from evidcore_plugin_medvol_r1.mask_figures import BY_PART, UNITS, MaskFigures
from evidcore_plugin_medvol_r1.masks import request
from evidcore_plugin_medvol_r1.scan_facts import outlined, stated

MOST_SCANS = 600  # of training patients, whose outlines registration learns from
RUNGS = (  # name, metric and summary of the best blind rule, and of registration
    ("blind-rule", "blind_dsc", "the best blind rule"), ("registration", "registration_dsc", "registration"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentationResult(NumericResult):
    """All segmentations of one policy, or of a rule in its place."""

    answers: tuple[SegmentationAnswer, ...]

    def rows(self) -> list[Row]:
        """Return the results rows: well-formed answers, overlaps, ceiling, slices, boxes; parts last."""
        result = [self.mean_row("format_rate")]
        for item in self.measured.rows(self.name, self.clusters):
            shown = dataclasses.replace(item, is_headline=item.metric in ("dsc", "oracle_dsc"))
            result += [shown, _as_iou(item)] if item.metric == "dsc" else [shown]
        for part in sorted({part for answer in self.answers for part in answer.parts}):
            places = [place for place, answer in enumerate(self.answers) if part in answer.parts]
            names = {f"{name}/{part}": name for name in BY_PART}
            texts = [
                TextFigures(
                    figures={name: text.figures[name] for name in names if name in text.figures},
                    unscored={bare: text.unscored[bare] for bare in BY_PART if bare in text.unscored},
                )
                for text in (self.measured.texts[place] for place in places)
            ]
            units = {name: UNITS[bare] for name, bare in names.items()}
            known = {name for text in texts for name in text.figures}
            sources = {name: bare for name, bare in names.items() if name in known}
            about_it = Measurement(texts=tuple(texts), units=units, notes={}, sources=sources)
            result += about_it.rows(self.name, [self.clusters[place] for place in places])
        return result


class SegmentationEvaluation(Evaluation[Answer]):
    """Let a segmenter follow the boxes of answers through the whole volume, and measure the masks.

    Prompts name the masks that answer in `reference["masks"]`. Results are told by `reference["finding"]`
    and, where it is given, `reference["kind"]`. An audit segments the case's own volume, whatever was shown.

    Args:
        cache_folder: keeps the outlines of bodies that registration learns from.
        segmenter: makes masks of boxes, of the answers' and of the gold ones.
    """

    headline = "dsc"
    beside = ("key_slice_area", "box_iou", "unparsable_rate")
    points = "points of DSC"

    def __init__(self, cache_folder: Path, *, segmenter: Segmenter = {"use": "region-growing"}) -> None:  # type: ignore[assignment]  # noqa: B006
        self.cache_folder = cache_folder
        self.segmenter = segmenter

    def refusal(self, task: Task, prompts: Sequence[Prompt]) -> str:
        """Return why the first prompt cannot be measured: no named masks, or no gold boxes."""
        prompt = prompts[0]
        if not prompt.reference.get("masks"):
            return f"prompt {prompt.id!r} names no masks that answer it"
        read = gold_answer(prompt, task)
        if read.evidence is None or not read.evidence.boxes:
            return f"the gold answer of prompt {prompt.id!r} is read as no boxes on a slice"
        return ""

    def score(self, answers: Sequence[Answers[Answer]], task: Task, name: str) -> list[EvalResult]:
        """Measure sets of answers; what they share, as the mask of the gold boxes, is made once."""
        results: list[EvalResult] = []
        for result in follow(answers, task, self.segmenter):
            said, measured = zip(*result, strict=True)
            results.append(SegmentationResult(name=name, answers=said, measured=_measurement(said, measured)))
        return results

    def score_beside_blind(
        self,
        answers: Sequence[Answers[Answer]],
        prompts: Sequence[Prompt],
        training: Callable[[], Sequence[Prompt]],
        task: Task,
        name: str,
    ) -> tuple[list[EvalResult], Evaluation.BlindRule]:
        """Measure the answers and the rules' boxes together, each volume opened once.

        The best blind rule, and over scans in HU registration beside it, were chosen on training patients.
        """
        chosen = self.best_rules(prompts, training(), task)
        sets = [*answers, *(Answers(prompts, said) for _, said in chosen)]
        scored = self.score(sets, task, name)
        rules = [
            _rule(item, rule.name, *called, name)
            for (rule, _), item, called in zip(chosen, scored[len(answers) :], RUNGS, strict=False)
        ]
        rows = tuple(row for item in rules for row in item.rows)
        return scored[: len(answers)], dataclasses.replace(rules[0], also=tuple(rules[1:]), rows=rows)

    def best_rules(
        self, prompts: Sequence[Prompt], known: Sequence[Prompt], task: Task
    ) -> list[tuple[Rule, list[Answer]]]:
        """Return the best blind rule, and over scans in HU registration beside it, each with its answers.

        Rules learn from `known`; no answer depends on the other prompts.
        """
        chosen = [best_answers(prompts, known, task, BLIND, stated)]
        if all(item.case.volumes[0].intensity == "hu" for item in (*prompts, *known)):
            scans = list(dict.fromkeys(item.case.volumes[0] for item in known))
            some = set(scans[:: -(-len(scans) // MOST_SCANS)])
            learnt = [item for item in known if item.case.volumes[0] in some]
            look = functools.partial(outlined, cache_folder=self.cache_folder)
            chosen.append(best_answers(prompts, learnt, task, REGISTRATION, look))
        return chosen

    def follow(self, prompt: Prompt, evidence: Evidence, volume: VolumeRef) -> tuple[Mask, object] | None:
        """Return what the segmenter makes of the boxes of an answer."""
        if not evidence.boxes:
            return None
        with blame(offer_of(self.segmenter), f"following boxes through {volume.path}"):
            made = self.segmenter.session(volume).mask(request(evidence.boxes).prompts)
        return made, self.segmenter


def _rule(
    scored: EvalResult, rule: str, name: str, metric: str, says: str, task: str
) -> Evaluation.BlindRule:
    """Return what a rule scores, under the name of its rung."""
    values = scored.values("dsc")
    interval = mean_interval(values, scored.clusters)
    shown = Row.of(task, metric, interval, note=rule, unit="score", summary=says)
    return Evaluation.BlindRule(values=values, rule=rule, label="blind_rule", rows=(shown,), name=name)


def _measurement(answers: Sequence[SegmentationAnswer], measured: Sequence[MaskFigures]) -> Measurement:
    """Return the figures, and what tables say beside them; texts hold them by part too."""
    texts = []
    for answer, item in zip(answers, measured, strict=True):
        known = {name: item.figures[name] for name in BY_PART if name in item.figures}
        parts = {f"{name}/{part}": known[name] for part in answer.parts for name in known}
        texts.append(TextFigures(figures={**item.figures, **parts}, unscored=item.missing))
    counts = collections.Counter(
        kind for answer in answers for kind in ("unparsable", "refused") if getattr(answer, kind) is not None
    )
    zeros = f"{counts['unparsable']} unparsable and {counts['refused']} refused of {len(answers)} count as 0"
    return Measurement(
        texts=tuple(texts),
        units=UNITS,
        notes={"dsc": zeros, "oracle_dsc": "gold boxes through the same segmenter: the ceiling of dsc"},
        sources={name: name for name in UNITS if any(name in text.figures for text in texts)},
    )


def _as_iou(dsc: Row) -> Row:
    """Return DSC / (2 - DSC) of a row; the function rises, so the ends of the interval go with it."""

    def iou(value: float | None) -> float | None:
        return None if value is None else value / (2 - value)

    note = "DSC / (2 - DSC) of the mean DSC, as papers print; not the mean IoU"
    value, low, high = iou(dsc.value), iou(dsc.low), iou(dsc.high)
    return dataclasses.replace(dsc, metric="iou_from_dsc", note=note, value=value, low=low, high=high)
