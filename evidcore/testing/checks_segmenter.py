"""The check of segmenters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evidcore.case import Box, VolumeRef
from evidcore.contracts import (
    BoxPrompt,
    MaskPrompt,
    PointPrompt,
    Segmenter,
    SegmenterPrompt,
    SegmenterSession,
)
from evidcore.testing.clauses import refusal, require
from evidcore.volume import read_geometry


def check_segmenter(
    segmenter: Segmenter,
    volume: VolumeRef,
    prompts: Sequence[SegmenterPrompt],
    *,
    truth: npt.NDArray[np.bool_] | None = None,
    least_dice: float = 0.5,
) -> None:
    """Assert the contract of a segmenter.

    The clauses:

    - a mask is boolean, on the volume's grid, and not empty for a prompt that can be used;
    - nothing lies outside the window;
    - equal prompts get equal masks, whatever was asked between;
    - a prompt that cannot be used raises a ValueError;
    - an easy object is found.

    Args:
        segmenter: the component under test.
        volume: what is segmented.
        prompts: prompts that can be used, one object each.
        truth: the mask of that object, shape (z, y, x), if all prompts are for the same one.
        least_dice: how well it must be found.
    """
    shape = read_geometry(volume).shape_zyx
    session = segmenter.session(volume)
    masks = [session.mask([prompt]) for prompt in prompts]
    for prompt, mask in zip(prompts, masks, strict=True):
        sound = mask.shape == shape and mask.dtype == np.bool_
        found = f"must be bool {shape}, got {mask.dtype} {mask.shape}"
        require(sound, segmenter, "a mask is boolean, on the volume's grid", found)
        clause = "a prompt that can be used gives no empty mask"
        require(bool(mask.any()), segmenter, clause, f"got one for {prompt}")
        z = prompt.box.z if isinstance(prompt, BoxPrompt) else prompt.z
        for window in ((z, z + 1), (max(0, z - 1), min(shape[0], z + 2))):
            inside = session.mask([prompt], window)
            beyond = int(inside[: window[0]].sum() + inside[window[1] :].sum())
            clause = "nothing lies outside the window"
            require(beyond == 0, segmenter, clause, f"{beyond} voxels beyond slices {window[0]}..{window[1]}")
        if truth is not None:
            dice = 2 * float((mask & truth).sum()) / float(mask.sum() + truth.sum())
            require(dice >= least_dice, segmenter, "an easy object is found", f"Dice {dice:.2f} for {prompt}")
    for prompt, mask in zip(prompts, masks, strict=True):
        apart = int(
            (session.mask([prompt]) != mask).sum() + (segmenter.session(volume).mask([prompt]) != mask).sum()
        )
        require(apart == 0, segmenter, "equal prompts get equal masks", f"{apart} voxels differ for {prompt}")
    clause = "a prompt that cannot be used raises a ValueError"
    for bad in _unusable(shape):
        refusal(segmenter, clause, f"{bad}", _not_segmented(session, bad))


def prompts_from(mask: npt.NDArray[np.bool_]) -> list[SegmenterPrompt]:
    """Give a box, a point and a mask prompt for an object, on the slice where it is largest.

    Args:
        mask: the object, shape (z, y, x), not empty.
    """
    z = int(mask.sum(axis=(1, 2)).argmax())
    places = np.argwhere(mask[z])
    (y0, x0), (y1, x1) = places.min(axis=0), places.max(axis=0) + 1
    inner = places[np.abs(places - places.mean(axis=0)).sum(axis=1).argmin()]  # the voxel nearest the middle
    return [
        BoxPrompt(box=Box(z=z, y0=int(y0), y1=int(y1), x0=int(x0), x1=int(x1))),
        PointPrompt(z=z, y=int(inner[0]), x=int(inner[1])),
        MaskPrompt(z=z, mask=mask[z]),
    ]


def _unusable(shape: tuple[int, int, int]) -> list[list[SegmenterPrompt]]:
    z, y, x = shape
    middle = (y // 2, x // 2)
    return [
        [],
        [BoxPrompt(box=Box(z=z, y0=0, y1=2, x0=0, x1=2))],
        [BoxPrompt(box=Box(z=-1, y0=0, y1=2, x0=0, x1=2))],
        [BoxPrompt(box=Box(z=0, y0=0, y1=y + 1, x0=0, x1=2))],
        [BoxPrompt(box=Box(z=0, y0=middle[0], y1=middle[0], x0=0, x1=2))],
        [PointPrompt(z=z, y=middle[0], x=middle[1])],
        [PointPrompt(z=0, y=-1, x=middle[1])],
        [MaskPrompt(z=0, mask=np.zeros((y, x), dtype=np.bool_))],
        [MaskPrompt(z=0, mask=np.ones((y + 1, x), dtype=np.bool_))],
    ]


def _not_segmented(session: SegmenterSession, prompts: Sequence[SegmenterPrompt]) -> Exception | None:
    try:
        session.mask(prompts)
    except Exception as error:
        return error
    return None
