"""What an answer points at, measured: voxels of the volume and of the original file, millimetres, a mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt

from evidcore.case import Box, Evidence, VolumeRef
from evidcore.data import Volume, read_mask, save_mask
from evidcore.errors import ContractError
from evidcore.registry import Offer
from evidcore.runs.folder import sha256

Mask = npt.NDArray[np.bool_]
MASK = "mask.nii.gz"
AXES = "z to superior, y to posterior, x to the patient's left (LPS); start included, stop excluded"
_LPS_ZYX_TO_RAS_XYZ = np.array([[0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=np.float64)


def mask_of(evidence: Evidence, volume: Volume, task: Offer) -> Mask | None:
    """Return the evidence's mask, shape (z, y, x): its own, else its boxes filled; None where it has neither.

    Raises:
        ContractError: if a slice or box lies outside the volume; names the task's package.
    """
    depth, height, width = volume.shape_zyx
    if evidence.slice is not None and not 0 <= evidence.slice < depth:
        raise ContractError(
            f"{task}: its evidence names slice {evidence.slice}, the volume has slices 0 to {depth - 1}."
        )
    for box in evidence.boxes:
        if not (0 <= box.z < depth and 0 <= box.y0 < box.y1 <= height and 0 <= box.x0 < box.x1 <= width):
            raise ContractError(
                f"{task}: its evidence names {box}, outside the volume of {depth}x{height}x{width} voxels."
            )
    if evidence.mask is not None:
        return read_mask(evidence.mask, like=volume)
    if not evidence.boxes:
        return None
    mask = np.zeros(volume.shape_zyx, dtype=np.bool_)
    for box in evidence.boxes:
        mask[box.z, box.y0 : box.y1, box.x0 : box.x1] = True
    return mask


def write_evidence(
    evidence: Evidence, mask: Mask | None, volume: Volume, ref: VolumeRef, folder: Path
) -> dict[str, Any]:
    """Write the mask beside the answer, on the original file's grid, and return what points where.

    `evidence` is in voxels of `volume`, and so is `mask`, shape (z, y, x).
    """
    result: dict[str, Any] | None = None
    if mask is not None:
        save_mask(mask, ref, folder / MASK)
        millilitres = float(mask.sum() * np.prod(volume.spacing_mm_zyx) / 1000)
        result = {"path": MASK, "sha256": sha256(folder / MASK), "voxels": int(mask.sum())}
        result["volume_ml"] = round(millilitres, 4)
    # the file's own index (i, j, k, 1) to mm (x, y, z, 1), RAS as in NIfTI, where a NIfTI says it
    niftis = (path for path in (folder / MASK, Path(ref.path)) if path.name.endswith((".nii", ".nii.gz")))
    file = next((path for path in niftis if path.is_file()), None)
    file_affine = None if file is None else np.asarray(nib.load(file).affine, dtype=np.float64)
    place = evidence.slice  # that the answer names, else where its mask is largest
    if place is None and mask is not None and mask.any():
        place = int(mask.sum(axis=(1, 2)).argmax())
    return {
        "axes": AXES,
        "slice": place,
        "slice_mm": None if place is None else _mm(volume, (place, 0, 0))[0],
        "slice_in_file": None if place is None else _slice_in_file(place, volume, file_affine),
        "boxes": [_box(box, volume, file_affine) for box in evidence.boxes],
        "mask": result,
        "file_voxel_to_mm_ras": None if file_affine is None else file_affine.tolist(),
    }


def _box(box: Box, volume: Volume, file_affine: npt.NDArray[np.float64] | None) -> dict[str, Any]:
    """Return a box in voxels of the volume, between its outer edges in mm, and in voxels of the file."""
    low, high = (box.z - 0.5, box.y0 - 0.5, box.x0 - 0.5), (box.z + 0.5, box.y1 - 0.5, box.x1 - 0.5)
    return {
        "z": box.z, "y0": box.y0, "y1": box.y1, "x0": box.x0, "x1": box.x1,
        "from_mm_zyx": _mm(volume, low), "to_mm_zyx": _mm(volume, high),
        "in_file": _in_file(low, high, volume, file_affine),
    }  # fmt: skip


def _mm(volume: Volume, index_zyx: tuple[float, float, float]) -> list[float]:
    """Return where an index lies, z, y, x in mm (LPS)."""
    return [round(float(place), 4) for place in (volume.affine @ [*index_zyx, 1.0])[:3]]


def _in_file(
    low: tuple[float, float, float],
    high: tuple[float, float, float],
    volume: Volume,
    file_affine: npt.NDArray[np.float64] | None,
) -> dict[str, list[int]] | None:
    """Return a box between two outer corners as file indices i, j, k; None where it is no box there."""
    if file_affine is None:
        return None
    to_file = np.linalg.inv(file_affine) @ _LPS_ZYX_TO_RAS_XYZ @ volume.affine
    ends = np.array([(to_file @ [*corner, 1.0])[:3] for corner in (low, high)]) + 0.5
    whole = ends.round()
    if np.abs(ends - whole).max() > 0.1:
        return None  # the volume was resampled: its slices are not the file's
    start, stop = whole.min(axis=0), whole.max(axis=0)
    return {"start_ijk": start.astype(int).tolist(), "stop_ijk": stop.astype(int).tolist()}


def _slice_in_file(
    place: int, volume: Volume, file_affine: npt.NDArray[np.float64] | None
) -> dict[str, Any] | None:
    """Return which axis of the file runs through the slices, and the slice's index on it."""
    _, height, width = volume.shape_zyx
    whole = _in_file((place - 0.5, -0.5, -0.5), (place + 0.5, height - 0.5, width - 0.5), volume, file_affine)
    if whole is None or file_affine is None:
        return None
    axis = int(np.abs(file_affine[2, :3]).argmax())  # the row of mm to superior
    return {"axis": "ijk"[axis], "index": whole["start_ijk"][axis]}
