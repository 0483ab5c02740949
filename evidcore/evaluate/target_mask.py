"""The mask that a segmentation is held against."""

from __future__ import annotations

import numpy as np

from evidcore.case import Prompt
from evidcore.errors import DataError
from evidcore.geometry.overlap import Mask
from evidcore.volume import Volume, read_mask


def target_mask(prompt: Prompt, volume: Volume) -> Mask:
    """Return the masks that answer a prompt, OR-ed, shape (z, y, x).

    Args:
        prompt: `reference["masks"]` names masks of its case.
        volume: the case's first.

    Raises:
        DataError: if the case has no such mask, or its file cannot be used; names the case.
    """
    case = prompt.case
    found = np.zeros(volume.shape_zyx, dtype=np.bool_)
    for name in prompt.reference["masks"]:
        if name not in case.masks:
            listing = ", ".join(sorted(case.masks)) or "none"
            raise DataError(
                f"case {case.id!r}: prompt {prompt.id!r} is answered by mask {name!r}, which the case lacks. "
                f"It has: {listing}. Correct the data set."
            )
        try:
            found |= read_mask(case.masks[name], like=volume)
        except DataError as cause:
            raise DataError(f"{cause} (case {case.id!r}, mask {name!r})") from cause
    return found
