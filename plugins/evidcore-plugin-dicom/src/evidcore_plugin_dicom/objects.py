"""Masks of DICOM objects: a structure set's contours, a segmentation's segments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evidcore.api import DataError, MaskRef
from evidcore.data import Geometry, Mask
from evidcore.errors import did_you_mean
from evidcore_plugin_dicom.contours import read_contours
from evidcore_plugin_dicom.headers import SEGMENTATIONS, read_dataset
from evidcore_plugin_dicom.segments import read_segment

STRUCTURE_SET = "1.2.840.10008.5.1.4.1.1.481.3"
REGIONS = ("region", "StructureSetROISequence", "ROINumber", "ROIName", read_contours)
SEGMENTS = ("segment", "SegmentSequence", "SegmentNumber", "SegmentLabel", read_segment)


def read_object(ref: MaskRef, onto: Geometry) -> Mask | None:
    """Return the mask of a structure set or segmentation; None where the path is an image series.

    Args:
        ref: `key` is the name or number of one region or segment, `label` its number.
        onto: the grid that the volume's file states.

    Raises:
        DataError: if no object or more than one is meant, or it does not lie on the grid.
    """
    if Path(ref.path).is_dir():
        return None
    dataset = read_dataset(ref.path, only=("SOPClassUID", "SegmentSequence", "StructureSetROISequence"))
    kind = dataset.get("SOPClassUID")
    if kind != STRUCTURE_SET and kind not in SEGMENTATIONS:
        return None
    what, sequence, number, name, read = REGIONS if kind == STRUCTURE_SET else SEGMENTS
    names = {int(item[number].value): str(item.get(name, "")) for item in dataset.get(sequence) or ()}
    if what == "segment":
        names.pop(0, None)  # the background of a label map
    return read(ref.path, pick_one(names, ref, what), onto)


def pick_one(names: Mapping[int, str], ref: MaskRef, what: str) -> int:
    """Return the number of the object that a reference means.

    Args:
        names: name by number.
        ref: without key and label it means the only one.
        what: what such an object is called in errors.
    """
    listed = ", ".join(f"{number} {name!r}" for number, name in names.items()) or "nothing"
    if ref.key is not None and ref.label is not None:
        raise DataError(f"{ref.path}: key {ref.key!r} and label {ref.label} both pick a {what}. Give one.")
    if ref.key is None and ref.label is None:
        if len(names) == 1:
            return next(iter(names))
        raise DataError(
            f"{ref.path}: holds {len(names)} {what}s: {listed}. "
            f"Name one, for instance file.dcm#NAME in a table."
        )
    wanted = str(ref.label) if ref.key is None else ref.key
    result = [number for number, name in names.items() if ref.key is not None and name == ref.key]
    result = result or [number for number in names if str(number) == wanted]
    if len(result) != 1:
        wrong = f"{len(result)} {what}s are called" if result else f"holds no {what}"
        raise DataError(
            f"{ref.path}: {wrong} {wanted!r}.{did_you_mean(wanted, names.values()) if not result else ''} "
            f"It holds: {listed}. Name one by its number if names are not unique."
        )
    return result[0]
