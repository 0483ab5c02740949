"""Masks on the grid of their volume."""

import numpy as np

from evidcore.case import MaskRef, VolumeRef
from evidcore.data.files import ALLOWED, format_of
from evidcore.data.format import Format
from evidcore.data.grid import SAME_GRID_VOXELS, Array, Geometry, Mask, Volume
from evidcore.data.placement import TILT_LIMIT_DEGREES, resample, tilt_degrees, turn_to_body
from evidcore.data.stored import Stored, memory_named, refuse_substitute
from evidcore.errors import DataError
from evidcore.registry import blame
from evidcore.registry.factory import offer_of

LEAST_GAPS = 2  # of a mask that leaves slices out; one may lie between two parts


def read_mask(ref: MaskRef, like: Volume) -> Mask:
    """Read a mask, shape (z, y, x) on the grid of `like`.

    A label map of any volume format is turned to body axes like its volume; `label` picks a value, without it
    every value above 0 counts. A label that does not occur gives an empty mask: the object is out of the
    field of view. The arrays of an `.npz` or `.npy` are (z, y, x) in body axes unless `axes` says otherwise;
    `key` names one. What `key` and `label` pick of a file of objects, its format says.

    A mask lies on the grid that its volume's file states, or on a part of it; with the volume it gets the
    spacing that the reference gave, and is resampled where the volume was.

    Raises:
        DataError: if the file cannot be used, or lies on another grid; names both grids.
        ContractError: if its format fails in another way; names its package.
    """
    reader = format_of(ref.path)
    refuse_substitute(ref.path)
    with blame(offer_of(reader), f"reading the mask {ref.path}"), memory_named(ref.path):
        return mask_by(reader, ref, like)


def mask_by(reader: Format, ref: MaskRef, like: Volume) -> Mask:
    """Read a mask by a format, which may leave a label map to the core."""
    mask = reader.mask(ref, like)
    if mask is None:
        mask = label_mask(reader.open(VolumeRef(path=ref.path, intensity="arbitrary")), ref, like)
    return mask


def label_mask(stored: Stored, ref: MaskRef, like: Volume) -> Mask:
    """Return the voxels of `ref.label`, or of every label above 0, on the grid of `like`.

    The grid of the label map is that of the volume's file, or a part of it.
    """
    for name, text in ALLOWED.items():
        if (given := getattr(ref, name)) is not None:
            raise DataError(f"{ref.path}: {text.format(given, 'map of labels by number')}")
    turn = turn_to_body(stored.grid, ref.path)
    step = float(np.max(np.abs(stored.slope)))
    slack = step / 2 if step < 1 else 0.0  # nibabel stores labels of type float as uint8 with such a slope
    inside = turn.apply(picked(stored.values(exact=True), ref.label, ref.path, slack))
    target = np.zeros(like.file_geometry.shape_zyx, dtype=np.bool_)
    place_into(target, inside, turn.geometry, like.file_geometry, ref.path)
    return resample_mask(target, like)


def resample_mask(mask: Mask, like: Volume) -> Mask:
    """Return a mask on `like.file_geometry` on the grid of `like`: resampled where the volume was."""
    if like.source is None or tilt_degrees(like.source.meant) <= TILT_LIMIT_DEGREES:
        return mask
    nearest = resample(mask.astype(np.uint8), like.source.meant, like.geometry, order=0, outside=0.0)
    return nearest.astype(np.bool_)


def picked(values: Array, label: int | None, path: str, slack: float = 0.0) -> Mask:
    """Return where an array holds a label, without one any above 0; `slack` is what a label may be off."""
    if values.dtype.kind == "f":  # above 0 would be taken as inside
        whole = np.round(values)
        odd = values[~np.isclose(values, whole, rtol=0, atol=slack) | ~np.isfinite(values)]
        if odd.size:
            raise DataError(
                f"{path}: a mask holds whole numbers, got {float(odd[0])!r} in {odd.size} voxels. "
                f"Threshold probabilities first; save labels as whole numbers, with slope 1."
            )
        values = whole
        if label is not None and label > 2 ** (np.finfo(values.dtype).nmant + 1):
            raise DataError(
                f"{path}: label {label} is none that {values.dtype} tells from its neighbours. Save the mask "
                f"as whole numbers of 32 bits, with slope 1 and intercept 0."
            )
    mask: Mask = values > 0 if label is None else values == label
    return mask


def place_into(target: Mask, mask: Mask, geometry: Geometry, onto: Geometry, path: str) -> None:
    """Add a mask to `target` on its volume's grid `onto`, a part of which is its own."""
    moved = np.linalg.inv(onto.affine) @ geometry.affine
    offset = np.round(moved[:3, 3]).astype(int)
    last = np.array(geometry.shape_zyx) - 1
    corners = np.array([[*(last * pick), 1] for pick in np.ndindex(2, 2, 2)]).T
    off = (moved @ corners)[:3] - corners[:3] - offset[:, None]
    if np.abs(off).max() > SAME_GRID_VOXELS:  # resampling would move the mask's edge
        raise DataError(
            f"{path}: the mask lies on another grid than its volume: mask {geometry}, volume {onto}. "
            f"Resample the mask onto the volume's grid with nearest neighbours, or, if its header was lost, "
            f"give it the volume's (SimpleITK: CopyInformation)."
        )
    start = np.clip(offset, 0, onto.shape_zyx)
    stop = np.clip(offset + geometry.shape_zyx, 0, onto.shape_zyx)
    inside = mask[tuple(slice(a, b) for a, b in zip(start - offset, stop - offset, strict=True))]
    whole, inner = int(mask.sum()), int(inside.sum())
    if inner < whole:  # most often it is another volume's mask
        raise DataError(
            f"{path}: {whole - inner} of {whole} voxels of the mask lie outside its volume: mask {geometry}, "
            f"volume {onto}. Name the whole volume, or cut the mask as the volume was cut."
        )
    target[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] |= inside


def left_out(mask: Mask, axis: int) -> int:
    """Return how many slices along an axis lie empty between most slices of a mask; 0 where it goes on.

    The slices on both sides overlap by a quarter of the smaller: those of parts that lie apart do not.
    """
    planes = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1)
    filled = np.flatnonzero(planes.any(axis=1))
    steps, sizes = np.diff(filled), planes[filled].sum(axis=1)
    shared = (planes[filled[1:]] & planes[filled[:-1]]).sum(axis=1)
    gaps = steps[(steps > 1) & (4 * shared >= np.minimum(sizes[1:], sizes[:-1]))] - 1
    return int(np.median(gaps)) if len(gaps) >= max(LEAST_GAPS, len(steps) / 2) else 0


def dice(mask: Mask, other: Mask) -> float:
    """Return twice the overlap over the sum of sizes; one of the masks must not be empty."""
    return float(2 * (mask & other).sum() / (mask.sum() + other.sum()))
