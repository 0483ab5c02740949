"""Condition `blurred`: the same slices without what only a closer look shows."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from evidcore.api import Cache, Condition, Dataset, Prompt, VolumeRef, read
from evidcore.data import Array, file_hash, read_geometry, save_volume
from evidcore.data.content import volume_key
from evidcore.data.pictures import colours, save_picture


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
        """Return every question over blurred volumes."""
        return [
            prompt.showing([
                dataclasses.replace(crop, volume=_blurred(crop.volume, self.times)) for crop in prompt.crops()
            ])
            for prompt in prompts
        ]


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


@functools.lru_cache(maxsize=4096)
def _blurred(ref: VolumeRef, times: int) -> VolumeRef:
    """Return a volume in the cache."""
    is_picture = read_geometry(ref).shape_zyx[0] == 1  # which NIfTI cannot hold

    def write(path: Path) -> None:
        volume = read(ref)
        if is_picture:
            shown = colours(ref.path)  # (y, x, colour)
            planes = volume.array if shown is None else np.moveaxis(shown, -1, 0)
            filled = squares(planes, times)
            save_picture(filled[0] if shown is None else np.moveaxis(filled, 0, -1), path)
        else:
            save_volume(dataclasses.replace(volume, array=squares(volume.array, times)), path)

    key = [file_hash(__file__), volume_key(ref), times]
    path = Cache("blurred").file(key, ".png" if is_picture else ".nii.gz", write)
    return VolumeRef(path=str(path), intensity=ref.intensity)
