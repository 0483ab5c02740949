"""Evaluate segmentations: boxes on a slice, made a mask by a segmenter, against the masks of the case.

What is counted how:

- An answer from which no box on a slice can be read, by a tolerant reader, has Dice 0, and so has one that
  the segmenter refuses. Their shares are printed; leaving them out would reward silence.
- `dsc` and `iou` are means over questions. `iou_from_dsc` is DSC / (2 - DSC) of the mean DSC, which papers
  print as IoU; it is not the mean IoU.
- `oracle_dsc` is what the same segmenter makes of the gold boxes: no answer can be expected to beat it.
- `key_slice_area` is the target's area on the named slice over its largest on any slice, `key_slice_off_mm`
  how far that slice lies from the gold one, `box_iou` how well the boxes match the gold ones in the plane,
  whatever slice was named.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evidcore.case import Answer, Evidence, Prompt, VolumeRef
from evidcore.contracts import MaskRequest, Policy, Segmenter, Task
from evidcore.errors import ContractError
from evidcore.evaluate.answered import Answered, Condition, batches, unknown_patients
from evidcore.evaluate.mask_figures import BY_PART, UNITS, MaskFigures, mask_figures
from evidcore.evaluate.measuring import Measurement, TextFigures
from evidcore.evaluate.propagation import masks_of, request
from evidcore.evaluate.reference_lines import row
from evidcore.evaluate.statistics import mean_interval
from evidcore.evaluate.target_mask import target_mask
from evidcore.plugins import blame
from evidcore.plugins.factory import offer_of
from evidcore.volume import read

_AT_ONCE = 8  # masks of one volume in memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentationAnswer(Answered):
    """One question answered: a line of `answers/<stage>.jsonl`."""

    unparsable: str | None  # why no box on a slice could be read
    refused: str | None  # why the segmenter could not use the boxes
    slice: int | None
    boxes: tuple[Mapping[str, int], ...]  # in voxels, as `evidcore.case.Box`
    gold_slice: int | None
    target: str  # what was meant; results are told by it
    kind: str | None  # of the query; results are told by it too
    masks: tuple[str, ...]  # the case's masks that answer
    images: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Return what the answer's figures are told by beside all questions: its target, and its kind."""
        return (self.target, *([f"{self.kind} (kind)"] if self.kind else []))

    def line(self) -> dict[str, Any]:
        """Return the JSON form."""
        lists = ("boxes", "masks", "images")
        return {**dataclasses.asdict(self), **{name: list(getattr(self, name)) for name in lists}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentationResult:
    """All segmentations of one policy."""

    name: str
    answers: tuple[SegmentationAnswer, ...]
    measured: Measurement

    def lines(self) -> list[dict[str, Any]]:
        """Return what `answers/<stage>.jsonl` holds of each answer, its figures with it."""
        return self.measured.beside([answer.line() for answer in self.answers])

    def rows(self) -> list[dict[str, Any]]:
        """Return the results rows: well-formed answers, overlaps, ceiling, slices, boxes; parts last."""
        patients = [answer.cluster for answer in self.answers]
        formed = mean_interval([float(answer.malformed is None) for answer in self.answers], patients)
        note = unknown_patients(answer.patient for answer in self.answers)
        found = [row(self.name, "format_rate", formed, note=note)]
        for item in self.measured.rows(self.name, patients):
            found += [item, _as_iou(item)] if item["metric"] == "dsc" else [item]
        for part in sorted({part for answer in self.answers for part in answer.parts}):
            places = [place for place, answer in enumerate(self.answers) if part in answer.parts]
            about_it = _of_part(part, [self.measured.texts[place] for place in places])
            found += about_it.rows(self.name, [patients[place] for place in places])
        return found


def evaluate_segmentation(
    policy: Policy,
    prompts: Sequence[Prompt],
    task: Task,
    segmenter: Segmenter,
    *,
    max_new_tokens: int,
    name: str | None = None,
    condition: Condition = "own",
    batch_size: int = 64,
) -> SegmentationResult:
    """Answer greedily, let the segmenter follow the boxes through the whole volume, and measure.

    Args:
        policy: the model.
        prompts: prompts of `task`; `reference["masks"]` names the masks that answer. Results are told by
            `reference["finding"]` and, where it is given, `reference["kind"]`.
        task: reads the completions; its gold answers give the ceiling.
        segmenter: makes masks of boxes, of the answers' and of the gold ones.
        max_new_tokens: most tokens of an answer.
        name: what results call it; the prompts' task if left out.
        condition: which volumes the prompts show.
        batch_size: prompts shown at once.

    Raises:
        ValueError: if there are no prompts.
        DataError: if a mask cannot be read, or a case has no mask of that name; names the case.
        ContractError: if the segmenter fails, or returns no mask of the whole volume; names its package.
    """
    texts: list[str] = []
    for some in batches(prompts, batch_size):
        texts += policy.generate(some, max_new_tokens=max_new_tokens)
    answers = [task.parse(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    return score_segmentations(prompts, answers, task, segmenter, name=name, condition=condition)


def score_segmentations(
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    task: Task,
    segmenter: Segmenter,
    *,
    name: str | None = None,
    condition: Condition = "own",
) -> SegmentationResult:
    """Measure answers that were given, as `evaluate_segmentation` does."""
    if not prompts:
        raise ValueError("there is no segmentation to evaluate")
    asked = [_Asked.of(prompt, task, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    by_volume: dict[VolumeRef, list[int]] = {}
    for place, one in enumerate(asked):
        by_volume.setdefault(one.prompt.case.volumes[0], []).append(place)
    found: dict[int, MaskFigures] = {}
    for ref, places in by_volume.items():
        about_it = [asked[place] for place in places]
        found |= zip(places, _measure(ref, about_it, segmenter), strict=True)
    measured = [found[place] for place in range(len(asked))]
    given = [one.answered(condition, result.refused) for one, result in zip(asked, measured, strict=True)]
    return SegmentationResult(
        name=name or prompts[0].task, answers=tuple(given), measured=_measurement(given, measured)
    )


def gold_evidence(prompt: Prompt, task: Task) -> Evidence:
    """Return slice and boxes of the gold answer.

    Raises:
        ContractError: if the task reads none from what it wrote itself.
    """
    gold = task.parse(prompt, task.gold(prompt)[0]).evidence
    if gold is None or not gold.boxes:
        raise ContractError(
            f"task {type(task).__name__}: no box is read from its own gold answer to {prompt.id!r}."
        )
    return gold


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Asked:
    """A question, what was answered and what should have been."""

    prompt: Prompt
    answer: Answer
    gold: Evidence

    @classmethod
    def of(cls, prompt: Prompt, task: Task, answer: Answer) -> _Asked:
        return cls(prompt=prompt, answer=answer, gold=gold_evidence(prompt, task))

    @property
    def said(self) -> Evidence | None:
        """Return what can be segmented; None where nothing can."""
        evidence = self.answer.evidence
        return evidence if evidence is not None and evidence.boxes else None

    def answered(self, condition: Condition, refused: str | None) -> SegmentationAnswer:
        prompt, said = self.prompt, self.said
        masks = tuple(prompt.reference["masks"])
        return SegmentationAnswer(
            prompt_id=prompt.id,
            case_id=prompt.case.id,
            patient=prompt.case.patient,
            task=prompt.task,
            condition=condition,
            prompt=prompt.written(),
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
            images=tuple(crop.uri() for crop in prompt.crops()),
        )


def _measure(ref: VolumeRef, asked: Sequence[_Asked], segmenter: Segmenter) -> Iterator[MaskFigures]:
    """Yield the figures of all questions about a volume."""
    offer = offer_of(segmenter)
    with blame(offer, f"opening {ref.path}"):
        session = segmenter.session(ref)
    volume = read(ref)
    for start in range(0, len(asked), _AT_ONCE // 2):
        some = asked[start : start + _AT_ONCE // 2]
        wanted: list[MaskRequest] = []
        for one in some:
            wanted += [request(said.boxes) for said in (one.said, one.gold) if said is not None]
        made = iter(masks_of(session, wanted, volume.shape_zyx))
        for one in some:
            own = next(made) if one.said is not None else None
            best = next(made)
            for mask in (own, best):
                if isinstance(mask, Exception) and not isinstance(mask, ValueError):
                    raise ContractError(
                        f"{offer} failed on prompt {one.prompt.id!r}, {ref.path}: {type(mask).__name__}: "
                        f"{mask}. Report this to the authors of {offer.package}; the traceback is below."
                    ) from mask
            target = target_mask(one.prompt, volume)
            yield mask_figures(one.said, one.gold, target, own, best, volume.spacing_mm_zyx[0])


def _measurement(answers: Sequence[SegmentationAnswer], measured: Sequence[MaskFigures]) -> Measurement:
    """Return the figures, and what tables say beside them; texts hold them by part too."""
    texts = []
    for answer, one in zip(answers, measured, strict=True):
        parts = {
            f"{name}/{part}": one.figures[name]
            for part in answer.parts
            for name in BY_PART
            if name in one.figures
        }
        texts.append(TextFigures(figures={**one.figures, **parts}, unscored=one.missing))
    counts = collections.Counter(
        kind for answer in answers for kind in ("unparsable", "refused") if getattr(answer, kind) is not None
    )
    zeros = f"{counts['unparsable']} unparsable and {counts['refused']} refused of {len(answers)} count as 0"
    held = [name for name in UNITS if any(name in text.figures for text in texts)]
    return Measurement(
        texts=tuple(texts),
        units={name: UNITS[name] for name in held},
        notes={"dsc": zeros, "oracle_dsc": "gold boxes through the same segmenter: the ceiling of dsc"},
        sources={name: name for name in held},
    )


def _of_part(part: str, texts: Sequence[TextFigures]) -> Measurement:
    """Return the figures of the answers about a part."""
    names = {f"{name}/{part}": name for name in BY_PART}
    held = {name: bare for name, bare in names.items() if any(name in text.figures for text in texts)}
    return Measurement(
        texts=tuple(
            TextFigures(
                figures={name: text.figures[name] for name in held if name in text.figures},
                unscored={bare: text.unscored[bare] for bare in BY_PART if bare in text.unscored},
            )
            for text in texts
        ),
        units={name: UNITS[bare] for name, bare in held.items()},
        notes={},
        sources=held,
    )


def _as_iou(dsc: Mapping[str, Any]) -> dict[str, Any]:
    """Return DSC / (2 - DSC) of a row; the function rises, so the ends of the interval go with it."""
    ends = {key: None if dsc[key] is None else dsc[key] / (2 - dsc[key]) for key in ("value", "low", "high")}
    note = "DSC / (2 - DSC) of the mean DSC, as papers print; not the mean IoU"
    return {**dsc, **ends, "metric": "iou_from_dsc", "note": note}
