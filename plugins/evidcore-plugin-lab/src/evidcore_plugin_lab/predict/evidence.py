"""What an answer points at, measured: voxels of the volume and of the original file, millimetres, a mask."""

import dataclasses
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt

from evidcore.api import VolumeRef, read_mask
from evidcore.case import Evidence
from evidcore.data import Volume, save_mask
from evidcore.errors import ContractError
from evidcore.registry import Offer
from evidcore.runs.folder import sha256

Mask = npt.NDArray[np.bool_]
Place = tuple[float, float, float]  # z, y, x in voxels of the volume
MASK = "mask.nii.gz"
AXES = "z to superior, y to posterior, x to the patient's left (LPS); start included, stop excluded"
_LPS_ZYX_TO_RAS_XYZ = np.array([[0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=np.float64)


def mask_of(evidence: Evidence, volume: Volume, task: Offer) -> Mask | None:
    """Return the evidence's mask, shape (z, y, x): its own, else its boxes filled; None: it has neither."""
    depth, height, width = volume.shape_zyx
    if evidence.slice is not None and not 0 <= evidence.slice < depth:
        what = f"its evidence names slice {evidence.slice}"
        raise ContractError(f"{task}: {what}, the volume has slices 0 to {depth - 1}.")
    for box in evidence.boxes:
        if not (0 <= box.z < depth and 0 <= box.y0 < box.y1 <= height and 0 <= box.x0 < box.x1 <= width):
            size = f"{depth}x{height}x{width} voxels"
            raise ContractError(f"{task}: its evidence names {box}, outside the volume of {size}.")
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

    def in_file(low: Place, high: Place) -> dict[str, list[int]] | None:
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

    place = evidence.slice  # that the answer names, else where its mask is largest
    if place is None and mask is not None and mask.any():
        place = int(mask.sum(axis=(1, 2)).argmax())
    slice_mm, slice_in_file = None, None
    if place is not None:
        slice_mm = _mm(volume, (place, 0, 0))[0]
        _, height, width = volume.shape_zyx
        whole = in_file((place - 0.5, -0.5, -0.5), (place + 0.5, height - 0.5, width - 0.5))
        if whole is not None and file_affine is not None:
            axis = int(np.abs(file_affine[2, :3]).argmax())  # the row of mm to superior
            slice_in_file = {"axis": "ijk"[axis], "index": whole["start_ijk"][axis]}
    boxes = []
    for box in evidence.boxes:  # in voxels of the volume, between its outer edges in mm, in those of the file
        low, high = (box.z - 0.5, box.y0 - 0.5, box.x0 - 0.5), (box.z + 0.5, box.y1 - 0.5, box.x1 - 0.5)
        ends = {"from_mm_zyx": _mm(volume, low), "to_mm_zyx": _mm(volume, high)}
        boxes.append({**dataclasses.asdict(box), **ends, "in_file": in_file(low, high)})
    return {
        "axes": AXES,
        "slice": place,
        "slice_mm": slice_mm,
        "slice_in_file": slice_in_file,
        "boxes": boxes,
        "mask": result,
        "file_voxel_to_mm_ras": None if file_affine is None else file_affine.tolist(),
    }


def _mm(volume: Volume, index_zyx: Place) -> list[float]:
    """Return where an index lies, z, y, x in mm (LPS)."""
    return [round(float(place), 4) for place in (volume.affine @ [*index_zyx, 1.0])[:3]]
