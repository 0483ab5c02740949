"""Masks on the grid of their volume."""

from __future__ import annotations

import numpy as np

from evidcore.case import MaskRef, VolumeRef
from evidcore.errors import DataError
from evidcore.volume.arrays import array_name, read_array, turned_to_body
from evidcore.volume.formats import Format, format_of, open_volume
from evidcore.volume.geometry import Array, Geometry, Volume, turn_to_body
from evidcore.volume.lattice import Mask, put
from evidcore.volume.masks_csr import is_sparse, read_row
from evidcore.volume.stored import refuse_type
from evidcore.volume.straight import TILT_LIMIT_DEGREES, lean_degrees, resample

__all__ = ["Mask", "read_mask"]


def read_mask(ref: MaskRef, like: Volume) -> Mask:
    """Read a mask, shape (z, y, x) on the grid of `like`.

    A label map of any volume format is turned to body axes like its volume; `label` picks a value, without it
    every value above 0 counts. A label that does not occur gives an empty mask: the object is out of the
    field of view. The arrays of an `.npz` or `.npy` are (z, y, x) in body axes unless `axes` says otherwise;
    `key` names one; an `.npz` that holds a sparse matrix is read by `masks_csr`. In a DICOM structure set or
    segmentation `key` is the name or number of one object and `label` its number; in a `.seg.nrrd` `key` is a
    segment's name and `label` its value.

    A mask lies on the grid that its volume's file states, or on a part of it; with the volume it gets the
    spacing that the reference gave, and is resampled where the volume was.

    Raises:
        DataError: if the file cannot be used, or lies on another grid; names both grids.
    """
    kind = format_of(ref.path)
    if kind == "array":
        return read_row(ref, like) if is_sparse(ref.path) else _of_array(ref, like)
    if ref.axes is not None:
        raise DataError(
            f"{ref.path}: axes {ref.axes!r} is for bare arrays; this file states its own. Leave axes out."
        )
    onto = like.geometry if like.source is None else like.source.stated
    mask = _on(ref, kind, onto)
    if like.source is not None and lean_degrees(like.source.meant) > TILT_LIMIT_DEGREES:
        nearest = resample(mask.astype(np.uint8), like.source.meant, like.geometry, order=0, outside=0.0)
        mask = nearest.astype(np.bool_)
    return mask


def _on(ref: MaskRef, kind: Format, onto: Geometry) -> Mask:
    """Return the mask on the grid that its volume's file states."""
    if kind == "dicom":
        from evidcore.volume.dicom.objects import read_object

        mask = read_object(ref, onto)
        if mask is not None:
            return mask
    label = ref.label
    if ref.path.lower().endswith(".seg.nrrd") and ref.key is not None:
        from evidcore.volume.nrrd import segment_value

        if label is not None:
            raise DataError(f"{ref.path}: key {ref.key!r} and label {label} both pick a segment. Give one.")
        label = segment_value(ref.path, ref.key)
    elif ref.key is not None and kind != "dicom":
        raise DataError(
            f"{ref.path}: key {ref.key!r} needs an .npz, a .seg.nrrd or a DICOM file; "
            f"pick from a label map with a label."
        )
    if kind == "picture":
        from evidcore.volume.pictures import open_labels

        stored = open_labels(ref.path)
    else:
        key = ref.key if kind == "dicom" else None
        stored = open_volume(VolumeRef(path=ref.path, intensity="arbitrary", key=key))
    turn = turn_to_body(stored.grid, ref.path)
    picked = _picked(stored.values(), label, ref.path)
    return put(turn.apply(picked), turn.geometry, onto, ref.path)


def _of_array(ref: MaskRef, like: Volume) -> Mask:
    values, key = read_array(ref.path, ref.key), array_name(ref.path, ref.key)
    name = "the array" if key is None else f"array {key!r}"
    if ref.axes is not None and values.ndim == 3:
        values = turned_to_body(values, ref.axes, ref.path)
        name += " in body axes"
    if values.shape != like.shape_zyx:
        raise DataError(
            f"{ref.path}: {name} has shape {values.shape}, its volume {like.shape_zyx} (z, y, x). "
            f"Write masks on the volume's grid, in body axes."
        )
    refuse_type(values.dtype, ref.path)
    return _picked(values, ref.label, ref.path)


def _picked(values: Array, label: int | None, path: str) -> Mask:
    _refuse_fractions(values, path)
    picked: Mask = values > 0 if label is None else values == label
    return picked


def _refuse_fractions(values: Array, path: str) -> None:
    """Stop at probabilities: above 0 would be taken as inside."""
    if values.dtype.kind != "f":
        return
    odd = values[(values != np.round(values)) | ~np.isfinite(values)]
    if odd.size:
        raise DataError(
            f"{path}: a mask holds whole numbers, got {float(odd[0])!r} in {odd.size} voxels. "
            f"Threshold the probabilities first."
        )
