"""Metric `looks`: could calls be carried out, and did what they showed hold what is asked about?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from evidcore.api import Crop, Metric, read, read_mask
from evidcore.contracts import Measured, TextSample
from evidcore_plugin_medvr.pointing import square_around


class Looks(Metric):
    """Measure where answers looked, against the masks of the findings that are present.

    - `valid_calls`: 1 where the first turn was a call that was carried out.
    - `zoom_cover`: of the findings' pixels, on the shown slice that holds most, the share that was shown.
    - `zoom_iou`: intersection over union of what was shown there and the smallest square around them.

    What was shown is the union of the boxes of all calls; other slices are not counted. An answer that looked
    nowhere has 0 of both. Cases without a mask of a present finding have `valid_calls` alone.

    Args:
        cache_folder: keeps what was measured of masks.
        smallest_side: of the square, as a share of the shorter side of the slice; a tool that shows no
            smaller box cannot do better.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203, reports the mIoU of zooms; against which boxes is not
        published.
    """

    unit: ClassVar[Literal["rate", "score", "plain"]] = "rate"
    reads = frozenset({"turns"})

    def __init__(self, cache_folder: Path, *, smallest_side: Annotated[float, Gt(0), Le(1)] = 0.125) -> None:
        self._cache_folder, self.smallest_side = cache_folder, smallest_side

    def __call__(self, texts: Sequence[TextSample]) -> list[Measured]:
        return [self._measure(text) for text in texts]

    def _measure(self, text: TextSample) -> Measured:
        first = text.turns[0] if text.turns else None
        is_valid = first is not None and all(action.error is None for action in first.actions)
        figures = {"valid_calls": float(is_valid)}
        case = text.case
        names = [name for name in case.present() if name in case.masks]
        planes = {z for crop in text.shown if crop.box_zyx for z in range(*crop.box_zyx[:2])}
        box = square_around(case, names, planes, self.smallest_side, self._cache_folder)
        if box is not None:
            like = read(case.volumes[0])
            inside = np.any([read_mask(case.masks[name], like=like)[box.z] for name in names], axis=0)
            wanted = np.zeros_like(inside)
            wanted[box.y0 : box.y1, box.x0 : box.x1] = True
            shown = _shown([crop for turn in text.turns for crop in turn.crops], box.z, inside.shape)
            figures["zoom_cover"] = float((shown & inside).sum() / inside.sum())
            figures["zoom_iou"] = float((shown & wanted).sum() / (shown | wanted).sum())
        return Measured(figures=figures)


def _shown(crops: Sequence[Crop], z: int, shape_yx: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    shown = np.zeros(shape_yx, np.bool_)
    for crop in crops:
        if crop.box_zyx is not None:
            z0, z1, y0, y1, x0, x1 = crop.box_zyx
            shown[y0:y1, x0:x1] |= z0 <= z < z1
    return shown
