"""Answers' boxes followed through the volumes that they are about, each volume opened once."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from evidcore.api import Answer, Answers, Prompt, Segmenter, Task, VolumeRef, read
from evidcore.case import Evidence
from evidcore.contracts import MaskRequest, SegmenterSession
from evidcore.data import Volume
from evidcore.errors import ContractError
from evidcore.evaluate.answer_record import AnswerRecord, question_of
from evidcore.registry import Offer, blame
from evidcore.registry.factory import offer_of
from evidcore_plugin_medvol_r1.mask_figures import MaskFigures, mask_figures
from evidcore_plugin_medvol_r1.masks import masks_of, other_mask, request, target_mask
from evidcore_plugin_medvol_r1.rewards import boxes_on

_AT_ONCE = 8  # masks of one volume in memory, unless one question needs more


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentationAnswer(AnswerRecord):
    """One question answered."""

    unparsable: str | None  # why no box on a slice could be read
    refused: str | None  # why the segmenter could not use the boxes
    slice: int | None
    boxes: tuple[Mapping[str, int], ...]  # in voxels, as `evidcore.case.Box`
    gold_slice: int | None
    target: str  # what was meant; results are told by it
    kind: str | None  # of the query; results are told by it too
    masks: tuple[str, ...]  # the case's masks that answer

    @property
    def parts(self) -> tuple[str, ...]:
        """Return what the answer's figures are told by beside all questions: its target, and its kind."""
        return (self.target, *([f"{self.kind} (kind)"] if self.kind else []))


Followed = tuple[SegmentationAnswer, MaskFigures]


def follow(given: Sequence[Answers[Answer]], task: Task, segmenter: Segmenter) -> list[list[Followed]]:
    """Follow the boxes of all answers, each time to the same questions, through the questions' own volumes.

    Returns:
        For each of `given`, what was answered and its figures, by question.
    """
    golds = [gold_evidence(prompt, task) for prompt in given[0].prompts]
    asked = [
        [_Asked(*question) for question in zip(item.prompts, item.said, golds, strict=True)] for item in given
    ]
    by_volume: dict[VolumeRef, list[int]] = {}
    for place, prompt in enumerate(given[0].prompts):
        by_volume.setdefault(prompt.case.volumes[0], []).append(place)
    result: dict[int, list[MaskFigures]] = {}
    for ref, places in by_volume.items():
        about_it = [[own[place] for own in asked] for place in places]
        result |= zip(places, _measure(ref, about_it, segmenter), strict=True)
    return [
        [
            (item.answered(group.condition, result[place][number].refused), result[place][number])
            for place, item in enumerate(own)
        ]
        for number, (group, own) in enumerate(zip(given, asked, strict=True))
    ]


def gold_evidence(prompt: Prompt, task: Task) -> Evidence:
    """Return slice and boxes that are right: tight ones where the task measured them, or the gold answer's.

    A gold answer may draw its boxes wider than what is measured (`margin_voxels`).

    Raises:
        ContractError: if the task measured none and reads none from what it wrote itself.
    """
    measured = prompt.reference.get("target")
    if measured is not None and "boxes" in measured:
        z = int(measured["slice"])
        return Evidence(slice=z, boxes=tuple(boxes_on(measured, z)))
    gold = task.parse(prompt, task.gold(prompt)[0]).evidence
    if gold is None or not gold.boxes:
        why = f"no box is read from its own gold answer to {prompt.id!r}"
        raise ContractError(f"task {type(task).__name__}: {why}.")
    return gold


@dataclasses.dataclass(frozen=True)
class _Asked:
    """A question, what was answered and what should have been."""

    prompt: Prompt
    answer: Answer
    gold: Evidence

    @property
    def said(self) -> Evidence | None:
        """Return what can be segmented; None where nothing can."""
        evidence = self.answer.evidence
        return evidence if evidence is not None and evidence.boxes else None

    def answered(self, condition: str, refused: str | None) -> SegmentationAnswer:
        prompt, said = self.prompt, self.said
        masks = tuple(prompt.reference["masks"])
        return SegmentationAnswer(
            **question_of(prompt, condition),
            text=self.answer.text,
            malformed=self.answer.malformed,
            unparsable=None if said is not None else self.answer.malformed or "it names no box",
            refused=refused,
            slice=None if said is None else said.boxes[0].z,
            boxes=() if said is None else tuple(dataclasses.asdict(box) for box in said.boxes),
            gold_slice=self.gold.boxes[0].z,
            target=str(prompt.reference.get("finding") or " + ".join(masks)),
            kind=prompt.reference.get("kind"),
            masks=masks,
        )


def _measure(
    ref: VolumeRef, questions: Sequence[Sequence[_Asked]], segmenter: Segmenter
) -> Iterator[list[MaskFigures]]:
    """Yield, for each question about a volume, the figures of its answers."""
    offer = offer_of(segmenter)
    with blame(offer, f"opening {ref.path}"):
        session = segmenter.session(ref)
    volume = read(ref)
    together = max(1, _AT_ONCE // (len(questions[0]) + 1))
    for start in range(0, len(questions), together):
        yield from _figures(session, questions[start : start + together], volume, offer)


def _figures(
    session: SegmenterSession, questions: Sequence[Sequence[_Asked]], volume: Volume, offer: Offer
) -> Iterator[list[MaskFigures]]:
    """Yield the figures of some questions, whose masks are asked for in one call."""
    wanted: list[MaskRequest] = []
    for answers in questions:
        wanted.append(request(answers[0].gold.boxes))
        wanted += [request(item.said.boxes) for item in answers if item.said is not None]
    made = iter(masks_of(session, wanted, volume.shape_zyx))
    for answers in questions:
        best = next(made)
        masks = [next(made) if item.said is not None else None for item in answers]
        for mask in (best, *masks):
            if isinstance(mask, Exception) and not isinstance(mask, ValueError):
                prompt = answers[0].prompt
                why = f"{offer} failed on prompt {prompt.id!r}, {prompt.case.volumes[0].path}"
                remedy = f"Report this to the authors of {offer.package}; the traceback is below."
                raise ContractError(f"{why}: {type(mask).__name__}: {mask}. {remedy}") from mask
        target, step_mm = target_mask(answers[0].prompt, volume), volume.spacing_mm_zyx[0]
        others = other_mask(answers[0].prompt, volume)
        yield [
            mask_figures(item.said, item.gold, target, own, best, step_mm, others)
            for item, own in zip(answers, masks, strict=True)
        ]
