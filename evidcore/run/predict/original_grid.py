"""Write a mask back onto the grid of the file that its volume was read from."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import numpy.typing as npt

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume import read_geometry

_LPS_ZYX_TO_RAS_XYZ = np.array([[0, 0, -1, 0], [0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]], dtype=np.float64)


def save_mask(mask: npt.NDArray[np.bool_], ref: VolumeRef, path: Path) -> None:
    """Write `mask` (z, y, x in body axes) as NIfTI on the grid of the file that `ref` names.

    Nothing but the grid is taken from that file: its header may hold names.

    Raises:
        DataError: if the file is no NIfTI.
    """
    if not ref.path.endswith((".nii", ".nii.gz")):
        raise DataError(f"{ref.path}: a mask can be written back onto NIfTI only. Convert the scan first.")
    source = nib.load(ref.path)
    to_file = np.linalg.inv(source.affine) @ _LPS_ZYX_TO_RAS_XYZ @ read_geometry(ref).affine
    turn = to_file[:3, :3].round().astype(int)  # column: body axis, row: file axis
    flips = tuple(slice(None, None, int(turn[:, body].sum())) for body in range(3))
    turned = mask[flips].transpose([int(np.abs(row).argmax()) for row in turn])
    image = nib.Nifti1Image(np.ascontiguousarray(turned.astype(np.uint8)), None)
    for kind in ("qform", "sform"):
        form, code = getattr(source.header, f"get_{kind}")(coded=True)
        getattr(image.header, f"set_{kind}")(form, int(code))
    image.header.set_xyzt_units("mm")
    nib.save(image, path)
