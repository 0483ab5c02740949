"""Reward `zoom-consensus`: an answer is paid for looking where its successful siblings looked."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Lt

from evidcore.api import Reward, Rollout, Score, Unscored
from evidcore.case import Verdict
from evidcore.data import read_geometry

Raster = npt.NDArray[np.bool_]
Place = tuple[str, int]  # volume and slice
Looks = Mapping[Place, Raster]


class ZoomConsensus(Reward):
    """1 for a right answer that looked where most right answers of its group looked, else 0.5.

    What an answer looked at is the union of its boxes on each slice. The consensus is what more than half
    of the successful answers of the group looked at:

        C = sum of M_i over the successful;    consensus = C > n / 2;    IoU(M_j, consensus) > eta pays 1

    An answer that is wrong, or did not look, is paid 0. Nobody's boxes are compared with anything else: it
    needs no annotation.

    Args:
        success: name of a reward above this one; an answer is successful where that is above 0.
        eta: how large the IoU must be.
        count_blind: successful answers that did not look count to the n too, and are paid 0.5: the paper's
            letter. Else a right answer that never looked dilutes no majority.
        fewest: with fewer successful answers that looked, nobody agrees and each is paid 0.5.
        cells: of the raster, along each side of what is shown.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203: consensus-based credit assignment, with eta 0.5.
    """

    judges = frozenset({"evidence"})
    compares_group = True

    def __init__(
        self,
        *,
        success: str,
        eta: Annotated[float, Ge(0), Lt(1)] = 0.5,
        count_blind: bool = False,
        fewest: Annotated[int, Ge(1)] = 1,
        cells: Annotated[int, Gt(0)] = 64,
    ) -> None:
        self.success, self.eta, self.count_blind = success, eta, count_blind
        self.fewest, self.cells = fewest, cells
        self.requires = (success,)

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> list[Score | Unscored]:
        """Judge each answer beside the successful ones of its group."""
        groups: dict[int, list[int]] = defaultdict(list)
        for number, rollout in enumerate(rollouts):
            groups[rollout.group].append(number)
        verdicts: dict[int, Score | Unscored] = {}
        for group in groups.values():
            looks = {number: self.looks(rollouts[number]) for number in group}
            right = {number: earlier[self.success][number] for number in group}
            won = [number for number, it in right.items() if isinstance(it, Score) and it.value > 0]
            counted = [number for number in won if looks[number] or self.count_blind]
            agreed = self._consensus([looks[number] for number in counted])
            for number, verdict in right.items():
                if isinstance(verdict, Unscored):
                    verdicts[number] = verdict
                else:
                    verdicts[number] = self._judge(number in won, looks[number], agreed, len(counted))
        return [verdicts[number] for number in range(len(rollouts))]

    def looks(self, rollout: Rollout) -> dict[Place, Raster]:
        """Return what an answer looked at, by volume and slice."""
        result: dict[Place, Raster] = {}
        for crop in rollout.crops:
            if crop.box_zyx is None:
                continue
            z0, z1, y0, y1, x0, x1 = crop.box_zyx
            _, height, width = read_geometry(crop.volume).shape_zyx
            for z in range(z0, z1):
                plane = result.setdefault((crop.volume.path, z), np.zeros((self.cells, self.cells), np.bool_))
                rows = slice(y0 * self.cells // height, -(-y1 * self.cells // height))
                plane[rows, x0 * self.cells // width : -(-x1 * self.cells // width)] = True
        return result

    def _consensus(self, looks: Sequence[Looks]) -> dict[Place, Raster]:
        places = {place for item in looks for place in item}
        counts = {place: [item[place] for item in looks if place in item] for place in places}
        return {place: np.sum(seen, axis=0) > len(looks) / 2 for place, seen in counts.items()}

    def _judge(self, is_right: bool, own: Looks, agreed: Looks, counted: int) -> Score:
        if not is_right:
            return Score(value=0.0, reason=f"{self.success} pays nothing")
        if not own and not self.count_blind:
            return Score(value=0.0, reason="did not look")
        nothing = np.zeros((self.cells, self.cells), np.bool_)
        pairs = [(own.get(place, nothing), agreed.get(place, nothing)) for place in {*own, *agreed}]
        either = sum(int((item | other).sum()) for item, other in pairs)
        iou = sum(int((item & other).sum()) for item, other in pairs) / either if either else 0.0
        if counted < self.fewest:
            reason = f"{counted} successful answers that looked, {self.fewest} are needed"
            return Score(value=0.5, parts={"iou": iou}, reason=reason)
        return Score(value=1.0 if iou > self.eta else 0.5, parts={"iou": iou})
