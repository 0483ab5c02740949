"""A mask back onto the grid of the file that its scan was read from."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import nibabel as nib
import numpy as np

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.formats import Array, Mask
from evidcore.volume.cache import write_atomically
from evidcore.volume.files import format_of
from evidcore.volume.nifti import Nifti, read_header
from evidcore.volume.reading import opened
from evidcore.volume.reorient import resample

# what a NIfTI header says of the grid; the rest may hold names
_GRID = (
    "dim", "pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d",
    "qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z",
)  # fmt: skip
SCANNER = 1  # NIfTI's code of an affine in the scanner's millimetres


def save_mask(mask: Mask, ref: VolumeRef, path: str | os.PathLike[str]) -> None:
    """Write a mask as NIfTI on the grid and axes of a scan's file, so that a viewer lays it over the file.

    A NIfTI scan's affines and codes are copied; the grid of another format is written as its affines. Where
    the scan's axes are oblique, each voxel takes the nearest of the mask; elsewhere `read_mask` gives the
    same back.

    Args:
        mask: (z, y, x), true inside, on the grid of `read(ref)`.
        ref: the scan.
        path: ends in .nii or .nii.gz; written in one move, replaced if there.

    Raises:
        DataError: if the mask has another type or shape, or the name another ending.
        RunError: if the disk is full or the folder may not be written to.
    """
    target = Path(path)
    stored, placement = opened(ref)
    if not target.name.endswith((".nii", ".nii.gz")):
        raise DataError(f"{path}: masks are saved as NIfTI. End the name in .nii.gz or .nii.")
    if mask.dtype != np.bool_ or mask.shape != placement.geometry.shape_zyx:
        raise DataError(
            f"{path}: a mask of {ref.path} is boolean with shape {placement.geometry.shape_zyx} (z, y, x), "
            f"got {mask.dtype} with shape {mask.shape}. Make it on the grid of read(ref)."
        )
    values: Array = mask.astype(np.uint8)
    if placement.is_resampled:
        values = resample(values, placement.geometry, placement.meant, order=0, outside=0.0)
    values = placement.turn.undo(values)
    content = _image(values, stored.grid.affine_ras, ref).to_bytes()
    if target.name.endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    write_atomically(target, content, or_else="name a file in another folder")


def _image(values: Array, affine_ras: Array, ref: VolumeRef) -> nib.Nifti1Image | nib.Nifti2Image:
    """Return the values (in file order) with the affines of their scan's file."""
    if not isinstance(format_of(ref.path), Nifti):
        image = nib.Nifti1Image(values, affine_ras)
        image.set_sform(affine_ras, SCANNER)
        image.set_qform(affine_ras, SCANNER)
        if not np.allclose(image.get_qform(), affine_ras, atol=1e-3):
            image.set_qform(None, 0)  # it cannot hold shear
        image.header.set_xyzt_units("mm")
        return image
    source = read_header(ref.path)
    kind = nib.Nifti2Image if isinstance(source, nib.Nifti2Header) else nib.Nifti1Image
    header = kind.header_class()
    header.set_data_dtype(np.uint8)
    header.set_data_shape(source.get_data_shape())
    for field in _GRID:
        header[field] = source[field]
    return kind(values.reshape(header.get_data_shape()), None, header)
