"""Reward `key-slice`: does the named slice show what is asked, and how much of it?

It opens no file and reads the truth from the prompt's reference, as `reasoning-segmentation` and
`report-evidence` write it: `shown`, the slices that were shown; `target`, whose `areas` are voxels by slice;
or `targets`, one for each finding of a report.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from annotated_types import Ge

from evidcore.api import Reward, Rollout, Score, Unscored
from evidcore.case import Verdict


class KeySlice(Reward):
    """The target's area on the named slice over the largest that could have been named: R_a of MedVol-R1.

    Where a report cites a slice for each finding, the mean over the findings that are there; one without a
    slice counts 0. A scan without a target has no key slice, and is not applicable.

    Args:
        over: the largest area "local", within `reach` slices of the named one, as the released code, where
            it is near 1 on any plateau and a slice at the target's tip is paid for by its neighbours;
            "global", on any slice of the volume, as the code's older variant; "shown", on the slices that
            were shown, so that 1 can always be reached.
        reach: slices to either side, with "local".
        needs: "slice"; or "boxes", as the released code, which pays for no slice that is named without a box.
            The slices of a report's findings need none.

    Source:
        Wang et al. 2026, MedVol-R1, arXiv:2605.26621; github AdvancingEther/MedVol-R1 @051b20f.
    """

    judges = frozenset({"evidence"})
    declared = MappingProxyType({"malformed": "reads the slice as far as its task can, as the released code"})

    def __init__(
        self,
        *,
        over: Literal["local", "global", "shown"] = "local",
        reach: Annotated[int, Ge(0)] = 5,
        needs: Literal["slice", "boxes"] = "slice",
    ) -> None:
        self.over, self.reach, self.needs = over, reach, needs

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score | Unscored:
        reference, said = rollout.prompt.reference, rollout.answer.evidence
        if targets := reference.get("targets"):
            cited = said.slices if said is not None else {}
            shares = {name: self._share(cited.get(name), item, reference) for name, item in targets.items()}
            told = "; ".join(f"{name}: {score.reason}" for name, score in shares.items())
            values = {name: score.value for name, score in shares.items()}
            return Score(value=sum(values.values()) / len(values), parts=values, reason=told)
        if reference.get("target") is None:
            reason = f"prompt {rollout.prompt.id!r} asks for no slice, or nobody knows the right one"
            return Unscored(kind="not-applicable", reason=reason)
        if said is None or said.slice is None or (self.needs == "boxes" and not said.boxes):
            missing = "slice" if said is None or said.slice is None else "box"
            return Score(value=0.0, reason=rollout.answer.malformed or f"no {missing} is named")
        return self._share(said.slice, reference["target"], reference)

    def _share(self, z: int | None, target: Mapping[str, Any], reference: Mapping[str, Any]) -> Score:
        if z is None:
            return Score(value=0.0, reason="no slice is named")
        areas = {int(at): int(area) for at, area in target["areas"].items()}
        near: Sequence[int] = range(z - self.reach, z + self.reach + 1)
        among = {"local": near, "global": [*areas]}.get(self.over, reference["shown"])
        largest, area = max((areas.get(at, 0) for at in among), default=0), areas.get(z, 0)
        if not area:
            return Score(value=0.0, reason=f"slice {z} does not show the target")
        wheres = {"local": f"within {self.reach} slices", "global": "on any slice"}
        where = wheres.get(self.over, f"of the {self.over} slices")
        parts = {"area_voxels": float(area), "largest_voxels": float(largest)}
        told = f"slice {z} shows {area} voxels of at most {largest} {where}"
        return Score(value=area / largest, parts=parts, reason=told)
