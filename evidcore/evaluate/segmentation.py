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
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Answer, Prompt
from evidcore.contracts import Policy, Segmenter, Task
from evidcore.evaluate.answered import batches, unknown_patients
from evidcore.evaluate.bootstrap import mean_interval
from evidcore.evaluate.followed import Given, SegmentationAnswer, follow
from evidcore.evaluate.mask_figures import BY_PART, UNITS, MaskFigures
from evidcore.evaluate.measuring import Measurement, TextFigures
from evidcore.evaluate.reference_lines import row

_AT_ONCE = 8  # masks of one volume in memory


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
        batch_size: prompts shown at once.

    Raises:
        ValueError: if there are no prompts.
        DataError: if a mask cannot be read, or a case has no mask of that name; names the case.
        ContractError: if the segmenter fails, or returns no mask of the whole volume; names its package.
    """
    answers = answered(policy, prompts, task, max_new_tokens=max_new_tokens, batch_size=batch_size)
    (result,) = score_segmentations([Given(prompts, answers)], task, segmenter, name=name)
    return result


def answered(
    policy: Policy, prompts: Sequence[Prompt], task: Task, *, max_new_tokens: int, batch_size: int = 64
) -> list[Answer]:
    """Answer greedily; return what the task reads in it."""
    texts: list[str] = []
    for some in batches(prompts, batch_size):
        texts += policy.generate(some, max_new_tokens=max_new_tokens)
    return [task.parse(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]


def score_segmentations(
    given: Sequence[Given], task: Task, segmenter: Segmenter, *, name: str | None = None
) -> list[SegmentationResult]:
    """Measure answers that were given to the same questions, once or several times.

    What several answers to a question need, as the mask of the gold boxes, is made once.

    Args:
        given: the answers, each time to the same questions in one order; what was shown may differ.
        task: its gold answers give the ceiling.
        segmenter: makes masks of boxes.
        name: what results call it; the prompts' task if left out.

    Raises:
        ValueError: if there are no prompts.
        DataError: if a mask cannot be read, or a case has no mask of that name; names the case.
        ContractError: if the segmenter fails, or returns no mask of the whole volume; names its package.
    """
    if not given or not given[0].prompts:
        raise ValueError("there is no segmentation to evaluate")
    results = []
    for one, found in zip(given, follow(given, task, segmenter), strict=True):
        answers, measured = zip(*found, strict=True)
        results.append(
            SegmentationResult(
                name=name or one.prompts[0].task, answers=answers, measured=_measurement(answers, measured)
            )
        )
    return results


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
