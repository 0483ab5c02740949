"""Reward `zoom-consensus`: an answer is paid for looking where its successful siblings looked."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Lt

from evidcore.api import Reward, Rollout, Score, Unscored
from evidcore.case import Verdict

Place = tuple[str, int]  # volume and slice
Boxes = Mapping[Place, Sequence[tuple[int, int, int, int]]]  # y0, y1, x0, x1 in voxels, stop excluded
Looks = Mapping[Place, npt.NDArray[np.bool_]]  # by cell: whether a box covers it


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
    ) -> None:
        self.success, self.eta, self.count_blind, self.fewest = success, eta, count_blind, fewest
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
            looks, areas = _on_cells({number: _boxes(rollouts[number]) for number in group})
            right = {number: earlier[self.success][number] for number in group}
            won = [number for number, it in right.items() if isinstance(it, Score) and it.value > 0]
            counted = [number for number in won if looks[number] or self.count_blind]
            agreed = _consensus([looks[number] for number in counted])
            for number, verdict in right.items():
                if isinstance(verdict, Unscored):
                    verdicts[number] = verdict
                else:
                    iou = _iou(looks[number], agreed, areas)
                    verdicts[number] = self._judge(number in won, bool(looks[number]), iou, len(counted))
        return [verdicts[number] for number in range(len(rollouts))]

    def _judge(self, is_right: bool, has_looked: bool, iou: float, counted: int) -> Score:
        if not is_right:
            return Score(value=0.0, reason=f"{self.success} pays nothing")
        if not has_looked and not self.count_blind:
            return Score(value=0.0, reason="did not look")
        if counted < self.fewest:
            reason = f"{counted} successful answers that looked, {self.fewest} are needed"
            return Score(value=0.5, parts={"iou": iou}, reason=reason)
        return Score(value=1.0 if iou > self.eta else 0.5, parts={"iou": iou})


def _boxes(rollout: Rollout) -> Boxes:
    """Return what an answer looked at."""
    result: dict[Place, list[tuple[int, int, int, int]]] = defaultdict(list)
    for crop in rollout.crops:
        if crop.box_zyx is not None:
            z0, z1, *sides = crop.box_zyx
            for z in range(z0, z1):
                result[crop.volume.path, z].append((sides[0], sides[1], sides[2], sides[3]))
    return result


def _on_cells(boxes: Mapping[int, Boxes]) -> tuple[dict[int, Looks], Mapping[Place, npt.NDArray[np.int64]]]:
    """Return what each answer looked at as cells between edges of boxes, and the areas in voxels."""
    looks: dict[int, dict[Place, npt.NDArray[np.bool_]]] = {number: {} for number in boxes}
    areas = {}
    for place in {place for item in boxes.values() for place in item}:
        every = np.array([box for item in boxes.values() for box in item.get(place, ())])
        rows, columns = np.unique(every[:, :2]), np.unique(every[:, 2:])
        areas[place] = np.outer(np.diff(rows), np.diff(columns))
        for number, item in boxes.items():
            if place in item:
                looks[number][place] = np.zeros(areas[place].shape, np.bool_)
            for y0, y1, x0, x1 in item.get(place, ()):
                across = slice(*np.searchsorted(columns, (x0, x1)))
                looks[number][place][slice(*np.searchsorted(rows, (y0, y1))), across] = True
    return dict(looks), areas


def _consensus(looks: Sequence[Looks]) -> Looks:
    places = {place for item in looks for place in item}
    counts = {place: [item[place] for item in looks if place in item] for place in places}
    return {place: np.sum(seen, axis=0) > len(looks) / 2 for place, seen in counts.items()}


def _iou(own: Looks, agreed: Looks, areas: Mapping[Place, npt.NDArray[np.int64]]) -> float:
    """Return the share of voxels that either holds which both hold, over all slices; 0 of none."""
    both = either = 0
    for place in {*own, *agreed}:
        item, other = (some.get(place, np.zeros_like(areas[place], np.bool_)) for some in (own, agreed))
        both += int(areas[place][item & other].sum())
        either += int(areas[place][item | other].sum())
    return both / either if either else 0.0
