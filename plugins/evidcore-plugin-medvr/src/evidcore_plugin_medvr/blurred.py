"""Condition `blurred`: the same slices without what only a closer look shows."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge

from evidcore.api import Cache, Condition, Dataset, Prompt, VolumeRef
from evidcore.data import Array, changed_copy, file_hash
from evidcore.data.content import volume_key


class Blurred(Condition):
    """Show slices whose squares of pixels are each filled with their mean: zooming in shows nothing more.

    An overview that is reduced as many times is what it was. A policy that answers by what it sees in a crop
    must lose there; one that answers by the overview, or by knowing, does not. Each volume is written once
    into the cache folder.

    Args:
        times: pixels of a square, each way.
    """

    says = "own slices without what only a closer look shows"
    role = "removed"

    def __init__(self, *, times: Annotated[int, Ge(2)] = 8) -> None:
        self.times = times

    def show(self, prompts: Sequence[Prompt], *, seed: int, dataset: Dataset | None) -> list[Prompt | None]:
        own = {crop.volume for prompt in prompts for crop in prompt.crops()}
        shown = {ref: self._blurred(ref) for ref in own}
        return [
            prompt.showing([dataclasses.replace(crop, volume=shown[crop.volume]) for crop in prompt.crops()])
            for prompt in prompts
        ]

    def _blurred(self, ref: VolumeRef) -> VolumeRef:
        key = [file_hash(__file__), volume_key(ref), self.times]
        return changed_copy(ref, Cache("blurred"), key, lambda _: lambda own: squares(own.array, self.times))


def squares(voxels: Array, times: int) -> Array:
    """Return voxels (z, y, x) with each square of a slice filled with its mean, in the same type.

    Squares at the lower and right edges are as large as what is left.
    """
    filled = voxels.astype(np.float64)
    for axis in (1, 2):
        starts = np.arange(0, voxels.shape[axis], times)
        sizes = np.diff([*starts, voxels.shape[axis]])
        sums = np.add.reduceat(filled, starts, axis=axis)
        means = sums / np.expand_dims(sizes, [other for other in range(3) if other != axis])
        filled = np.repeat(means, sizes, axis=axis)
    return (filled if np.issubdtype(voxels.dtype, np.floating) else filled.round()).astype(voxels.dtype)
