"""The mask that answers a prompt, and the masks that a segmenter makes of boxes."""

from collections.abc import Sequence

import numpy as np

from evidcore.api import Box, DataError, Prompt, read_mask
from evidcore.contracts import BoxPrompt, MaskRequest, SegmenterSession
from evidcore.data import Mask, Volume
from evidcore_plugin_medvol_r1.target import require_masks


class HalfMask(Exception):
    """What a segmenter returned is no mask of the whole volume. Says what it is."""


def request(boxes: Sequence[Box], z_window: tuple[int, int] | None = None) -> MaskRequest:
    """Return the request for one mask of all boxes; their order does not matter."""
    ordered = sorted(boxes, key=lambda box: (box.z, box.y0, box.x0, box.y1, box.x1))
    return MaskRequest(prompts=tuple(BoxPrompt(box=box) for box in dict.fromkeys(ordered)), z_window=z_window)


def masks_of(
    session: SegmenterSession, requests: Sequence[MaskRequest], shape_zyx: tuple[int, int, int]
) -> list[Mask | Exception]:
    """Return a mask for each request, shape (z, y, x), or what kept it from being made.

    Everything is asked in one call, so that equal requests and slices are computed once. Where that call
    fails, each request is asked alone, and only the faulty ones are lost.
    """
    if not requests:
        return []
    try:
        result = [*session.masks(requests)]
    except Exception as cause:  # handed to the caller, who knows what a failure means
        if len(requests) == 1:
            return [cause]
        return [one for item in requests for one in masks_of(session, [item], shape_zyx)]
    if len(result) != len(requests):
        return [HalfMask(f"{len(result)} masks for {len(requests)} requests")] * len(requests)
    return [_whole(item, shape_zyx) for item in result]


def _whole(mask: Mask, shape_zyx: tuple[int, int, int]) -> Mask | Exception:
    if mask.shape != shape_zyx or mask.dtype != np.bool_:
        return HalfMask(f"a mask of {mask.dtype} {mask.shape} for a volume of {shape_zyx} (z, y, x)")
    return mask


def target_mask(prompt: Prompt, volume: Volume) -> Mask:
    """Return the masks that answer a prompt, OR-ed, shape (z, y, x); `reference["masks"]` names them."""
    return _together(prompt, prompt.reference["masks"], volume)


def other_mask(prompt: Prompt, volume: Volume) -> Mask | None:
    """Return the masks that a prompt's words could mean too, OR-ed; None where the words tell them apart."""
    others = [name for name in prompt.reference.get("among", ()) if name not in prompt.reference["masks"]]
    return _together(prompt, others, volume) if others else None


def _together(prompt: Prompt, names: Sequence[str], volume: Volume) -> Mask:
    """Return masks of a prompt's case, OR-ed, shape (z, y, x)."""
    case = prompt.case
    result = np.zeros(volume.shape_zyx, dtype=np.bool_)
    require_masks(case, names, f"prompt {prompt.id!r}")
    for name in names:
        try:
            result |= read_mask(case.masks[name], like=volume)
        except DataError as cause:
            raise DataError(f"{cause} (case {case.id!r}, mask {name!r})") from cause
    return result
