"""The figures of one segmentation: overlaps of masks, the area on the named slice, overlap of boxes."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from evidcore.case import Evidence
from evidcore.data import Mask
from evidcore_plugin_medvol_r1.overlap import mask_overlap, matched_iou

UNITS = {
    "dsc": "score", "iou": "score", "oracle_dsc": "score", "oracle_iou": "score", "unparsable_rate": "rate",
    "unusable_rate": "rate", "key_slice_area": "score", "key_slice_off_mm": "plain", "box_iou": "score",
    "repeated_boxes": "plain", "right_mask": "rate",
}  # fmt: skip
BY_PART = ("dsc", "iou", "oracle_dsc", "unparsable_rate", "right_mask")  # told by organ and kind of query too


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskFigures:
    """The figures of one answer, why others are missing, and why the segmenter refused its boxes."""

    figures: Mapping[str, float]
    missing: Mapping[str, str]
    refused: str | None


def mask_figures(
    said: Evidence | None,
    gold: Evidence,
    target: Mask,
    own: Mask | Exception | None,
    best: Mask | Exception,
    spacing_z_mm: float,
    others: Mask | None = None,
) -> MaskFigures:
    """Measure an answer; one without boxes, or whose boxes were refused, overlaps by 0.

    Args:
        said: slice and boxes of the answer, None where none could be read.
        gold: slice and boxes that are right.
        target: the mask that is right, shape (z, y, x).
        own: what the segmenter made of `said`, or why it made nothing.
        best: the same of `gold`.
        spacing_z_mm: distance of two slices.
        others: the masks that the words could mean too; None where the words tell what is meant.
    """
    figures = {"unparsable_rate": float(said is None), "unusable_rate": float(isinstance(own, Exception))}
    missing: dict[str, str] = {}
    for start, mask in (("", own), ("oracle_", best)):
        names = (f"{start}dsc", f"{start}iou")
        if isinstance(mask, Exception) and start:
            missing |= dict.fromkeys(names, f"the segmenter cannot use the gold boxes: {mask}")
        elif mask is None or isinstance(mask, Exception):
            figures |= dict.fromkeys(names, 0.0)
        elif (overlap := mask_overlap(mask, target)) is not None:
            figures |= dict(zip(names, overlap, strict=True))
        else:
            missing |= dict.fromkeys(names, "the target's mask is empty, and so is the segmenter's")
    if others is not None:
        made = own if isinstance(own, np.ndarray) else np.zeros_like(target)
        figures["right_mask"] = float((made & target).sum() > (made & others).sum())
    areas = target.sum(axis=(1, 2))
    if said is None:
        figures |= {"key_slice_area": 0.0, "box_iou": 0.0}
        missing |= {
            "key_slice_off_mm": "the answer names no slice", "repeated_boxes": "the answer names no box",
        }  # fmt: skip
    else:
        z, gold_z = said.boxes[0].z, gold.boxes[0].z
        moved = [dataclasses.replace(box, z=gold_z) for box in said.boxes]
        figures["key_slice_area"] = float(areas[z] / areas.max()) if areas.any() else 0.0
        figures["key_slice_off_mm"] = abs(z - gold_z) * spacing_z_mm
        figures["box_iou"] = matched_iou(moved, gold.boxes)
        figures["repeated_boxes"] = float(len(moved) - len(set(moved)))
    refused = str(own) if isinstance(own, Exception) else None
    return MaskFigures(figures=figures, missing=missing, refused=refused)
