"""Rewards `evidence-format` and `box-overlap`: with the core's `key-slice`, what needs no segmenter.

They read the truth from the prompt's reference, as task `reasoning-segmentation` writes it, and open no file.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from evidcore.api import Box, Reward, Rollout, Score, Unscored
from evidcore.case import Verdict
from evidcore_plugin_medvol_r1.overlap import matched_iou
from evidcore_plugin_medvol_r1.reading import read

Scores = Sequence[Score | Unscored | None]
_READ = "reads slice and boxes as far as they can be read, as the released code"
LENIENT: Mapping[str, str] = MappingProxyType({"malformed": _READ})


class EvidenceFormat(Reward):
    """Share of the answer format that is kept: R_f of MedVol-R1.

    Args:
        levels: "graded", as the released code, is the mean of four shares: nothing but think and answer; a
            think text; an object that can be read; the share of its boxes that are boxes in 0..1000.
            "binary", as the paper's figure, is 1 where the strict format holds, else 0. Where the task asks
            for no thinking, the second share is left out.

    Source:
        Wang et al. 2026, MedVol-R1, arXiv:2605.26621, figure 1; github AdvancingEther/MedVol-R1 @051b20f,
        reward_function/ctorg.py.
    """

    judges = frozenset({"format"})

    def __init__(self, *, levels: Literal["graded", "binary"] = "graded") -> None:
        self.levels = levels
        if levels == "graded":
            self.declared = {"malformed": "shares ask for less than the strict format, as the released code"}

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Scores:
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score | Unscored:
        reference = rollout.prompt.reference
        if not {"shown", "think", "form"} <= reference.keys():
            return not_asked(rollout)
        result = read(rollout.text, reference["shown"], think=reference["think"], form=reference["form"])
        graded = sum(result.parts.values()) / len(result.parts)
        value = graded if self.levels == "graded" else float(result.fault is None)
        return Score(value=value, parts=result.parts, reason=result.fault or "")


class BoxOverlap(Reward):
    """IoU of boxes matched one to one, over the larger number of boxes: R_s of MedVol-R1.

    Boxes are counted as they were written: one that repeats another matches nothing, and earns less.

    Args:
        at: whose boxes are right. "gold" takes those of the gold slice whatever slice was named, as the
            released code: the right place in the plane is paid on a slice that does not show the target.
            "predicted" takes those of the named slice, as the code's older variant.

    Source:
        Wang et al. 2026, MedVol-R1, arXiv:2605.26621; github AdvancingEther/MedVol-R1 @051b20f.
    """

    judges = frozenset({"evidence"})
    declared = LENIENT

    def __init__(self, *, at: Literal["gold", "predicted"] = "gold") -> None:
        self.at = at

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Scores:
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score | Unscored:
        target = rollout.prompt.reference.get("target") or {}
        if "boxes" not in target:
            return not_asked(rollout)
        said = rollout.answer.evidence
        if said is None or not said.boxes:
            return Score(value=0.0, reason=rollout.answer.malformed or "no box is named")
        z = int(target["slice"]) if self.at == "gold" else said.boxes[0].z
        right = boxes_on(target, z)
        if not right:
            return Score(value=0.0, reason=f"slice {z} does not show the target, so it has no box there")
        value = matched_iou([dataclasses.replace(box, z=z) for box in said.boxes], right)
        return Score(
            value=value,
            parts={"boxes": float(len(said.boxes)), "right_boxes": float(len(right))},
            reason=f"{len(said.boxes)} boxes for {len(right)} on slice {z}, IoU {value:.2f}",
        )


def not_asked(rollout: Rollout) -> Unscored:
    """Return the verdict on an answer to another task."""
    reason = f"prompt {rollout.prompt.id!r} asks for no segmentation, or nobody knows the answer"
    return Unscored(kind="not-applicable", reason=reason)


def boxes_on(target: Mapping[str, Any], z: int) -> list[Box]:
    """Return the right boxes of a shown slice."""
    return [Box(**box) for box in target["boxes"].get(str(z), ())]
