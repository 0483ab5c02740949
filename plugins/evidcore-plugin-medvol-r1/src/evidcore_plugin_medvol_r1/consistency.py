"""Reward `volume-consistency`: does what grows out of the boxes agree with the target, slice after slice?"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import Ge

from evidcore.api import DataError, Prompt, Reward, Rollout, Score, Segmenter, Unscored, VolumeRef, read
from evidcore.case import Verdict
from evidcore.data import Mask, Volume
from evidcore_plugin_medvol_r1.masks import masks_of, request, target_mask
from evidcore_plugin_medvol_r1.overlap import mask_overlap
from evidcore_plugin_medvol_r1.rewards import LENIENT, not_asked


class VolumeConsistency(Reward):
    """Dice of the segmenter's mask with the target, within some slices of the named one: R_c of MedVol-R1.

    All rollouts of a volume are asked for in one call, equal boxes once. An answer without slice or box earns
    0. What cannot be judged (no segmenter, a failed or half propagation, an unreadable mask) is unscored and
    moves no advantage.

    Args:
        segmenter: the service that makes masks of boxes. Without one the reward judges nothing and the other
            rewards carry the weight, as in the released recipe for KiTS23.
        delta: slices to either side that are looked at.
        around: whose slice is in the middle, the "predicted" one, as the released code, or the "gold" one,
            where no choice of the slice makes the target smaller.
        empty: what is earned where neither target nor mask shows there: "nothing", or "full" as in the
            released code, which pays 1 for a box far from the target that nothing grows out of.

    Source:
        Wang et al. 2026, MedVol-R1, arXiv:2605.26621; github AdvancingEther/MedVol-R1 @051b20f,
        reward_function/ctorg.py.
    """

    judges = frozenset({"evidence"})
    declared = LENIENT

    def __init__(
        self,
        *,
        segmenter: Segmenter | None = None,
        delta: Annotated[int, Ge(0)] = 5,
        around: Literal["predicted", "gold"] = "predicted",
        empty: Literal["nothing", "full"] = "nothing",
    ) -> None:
        self.segmenter = segmenter
        self.audit_exemption = segmenter.audit_exemption if segmenter is not None else ""
        self.delta, self.around, self.empty = delta, around, empty

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        verdicts: dict[int, Score | Unscored] = {}
        by_volume: dict[VolumeRef, list[int]] = {}
        for place, rollout in enumerate(rollouts):
            early = self._without_segmenting(rollout)
            if early is not None:
                verdicts[place] = early
            else:
                by_volume.setdefault(rollout.prompt.case.volumes[0], []).append(place)
        for ref, places in by_volume.items():
            result = self._judge_volume(ref, [rollouts[place] for place in places])
            verdicts |= zip(places, result, strict=True)
        return [verdicts[place] for place in range(len(rollouts))]

    def _without_segmenting(self, rollout: Rollout) -> Score | Unscored | None:
        """Return the verdict on an answer that need not be segmented, None on others."""
        if "boxes" not in (rollout.prompt.reference.get("target") or {}):
            return not_asked(rollout)
        if self.segmenter is None:
            return Unscored(kind="failed", reason="no segmenter: name a service, segmenter = 'segmenter'")
        said = rollout.answer.evidence
        if said is None or not said.boxes:
            return Score(value=0.0, reason=rollout.answer.malformed or "no box is named")
        return None

    def _judge_volume(self, ref: VolumeRef, rollouts: Sequence[Rollout]) -> list[Score | Unscored]:
        assert self.segmenter is not None  # asked for before
        try:
            volume = read(ref)
            session = self.segmenter.session(ref)
        except Exception as cause:  # whatever is wrong with one volume, others are judged
            return [_failed(f"{ref.path} cannot be segmented: {_told(cause)}")] * len(rollouts)
        windows, wanted = [], []
        for rollout in rollouts:
            assert rollout.answer.evidence is not None  # it has boxes
            boxes = rollout.answer.evidence.boxes
            z, gold = boxes[0].z, int(rollout.prompt.reference["target"]["slice"])
            middle = z if self.around == "predicted" else gold
            start, stop = max(0, middle - self.delta), min(volume.shape_zyx[0], middle + self.delta + 1)
            windows.append((start, stop))
            wanted.append(request(boxes, (min(start, z), max(stop, z + 1))))  # the boxes must lie within
        made = masks_of(session, wanted, volume.shape_zyx)
        prompts = {rollout.prompt.id: rollout.prompt for rollout in rollouts}
        targets = {name: _target_or_reason(prompt, volume) for name, prompt in prompts.items()}
        return [
            self._judge(mask, targets[rollout.prompt.id], window)
            for rollout, mask, window in zip(rollouts, made, windows, strict=True)
        ]

    def _judge(
        self, mask: Mask | Exception, target: Mask | DataError, window: tuple[int, int]
    ) -> Score | Unscored:
        if isinstance(target, DataError):
            return _failed(f"the target cannot be read: {target}")
        if isinstance(mask, Exception):
            return _failed(f"the segmenter failed: {_told(mask)}")
        start, stop = window
        overlap = mask_overlap(mask[start:stop], target[start:stop])
        where = f"on slices {start} to {stop - 1}"
        if overlap is None:
            value = 1.0 if self.empty == "full" else 0.0
            return Score(value=value, reason=f"neither mask nor target shows {where}")
        dice, iou = overlap
        return Score(value=dice, parts={"iou": iou}, reason=f"Dice {dice:.2f} {where}")


def _target_or_reason(prompt: Prompt, volume: Volume) -> Mask | DataError:
    try:
        return target_mask(prompt, volume)
    except DataError as cause:
        return cause


def _failed(reason: str) -> Unscored:
    return Unscored(kind="failed", reason=reason)


def _told(cause: Exception) -> str:
    return f"{type(cause).__name__}: {cause}"
