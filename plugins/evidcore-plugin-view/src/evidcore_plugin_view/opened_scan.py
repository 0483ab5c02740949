"""Scans in memory: slices of three planes as PNG, NIfTI of the whole, masks on its grid, single values."""

import hashlib
import io
import threading
from typing import Any

import nibabel as nib
import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages.gallery import AXES, SIDES, WINDOWS_HU, cut, full_range, window_of
from PIL import Image

from evidcore.api import MaskRef, VolumeRef, read, read_mask
from evidcore.data import Volume
from evidcore.data.grid import LPS_RAS
from evidcore_plugin_view.overlay import Mask, Plane

_LUNG_SHARE = 0.12  # of the middle of a volume: chest CT has 15 to 50 %, an abdomen with lung bases less
_LUNG_AROUND = 0.25  # of the box around a mask
_AROUND = 3  # voxels that the box is wider on each side


class Scan:
    """A volume that was read, its masks as they are asked for."""

    def __init__(self, ref: VolumeRef) -> None:
        """Read the volume.

        Raises:
            DataError: if its file cannot be used; names it, the value and what to do.
        """
        self.volume: Volume = read(ref)
        self.name = hashlib.blake2b(repr(ref).encode(), digest_size=8).hexdigest()
        self._masks: dict[MaskRef, Mask] = {}
        self._lock = threading.Lock()

    def mask(self, ref: MaskRef) -> Mask:
        """Return a mask, shape (z, y, x) on the volume's grid.

        Raises:
            DataError: if its file cannot be used, or lies on another grid.
        """
        with self._lock:
            if ref not in self._masks:
                self._masks[ref] = read_mask(ref, self.volume)
            return self._masks[ref]

    def windows(self) -> dict[str, tuple[float, float]]:
        """Return display windows as (lowest, highest value), the one that fits the content first."""
        if self.volume.intensity != "hu":
            return full_range(self.volume.array)
        _, y, x = self.volume.shape_zyx
        middle = self.volume.array[:, y // 5 : y - y // 5, x // 5 : x - x // 5]  # without air around the body
        best = window_of(middle, _LUNG_SHARE)
        return {best: WINDOWS_HU[best], **{name: edges for name, edges in WINDOWS_HU.items() if name != best}}

    def window_around(self, mask: Mask) -> str | None:
        """Return the window that shows what lies around a mask; None where it is empty or nothing is HU."""
        if self.volume.intensity != "hu" or not mask.any():
            return None
        spans = [np.flatnonzero(mask.any(axis=others)) for others in ((1, 2), (0, 2), (0, 1))]
        around = tuple(slice(max(0, span[0] - _AROUND), span[-1] + 1 + _AROUND) for span in spans)
        return window_of(self.volume.array[around], _LUNG_AROUND)

    def plane(self, plane: Plane) -> dict[str, Any]:
        """Return what a viewer must know of a plane: slices, pixels, width / height in mm, body sides."""
        axis = AXES[plane]
        shape, spacing = self.volume.shape_zyx, self.volume.spacing_mm_zyx
        rows, columns = (other for other in range(3) if other != axis)
        return {
            "count": shape[axis],
            "height": shape[rows],
            "width": shape[columns],
            "aspect": shape[columns] * spacing[columns] / (shape[rows] * spacing[rows]),
            "step_mm": spacing[axis],
            "sides": dict(SIDES[plane]),
        }

    def png(self, plane: Plane, index: int, low: float, high: float) -> bytes:
        """Return a slice as an 8-bit grey PNG, a pixel a voxel, black at `low` and white at `high`.

        Raises:
            ValueError: if there is no such slice or the window is empty.
        """
        self._refuse(plane, index)
        if not high > low:
            raise ValueError(f"a window must rise, got {low} to {high}")
        values = cut(self.volume.array, plane, index).astype(np.float32)
        grey = np.clip((values - low) * (255.0 / (high - low)), 0, 255).astype(np.uint8)
        picture = io.BytesIO()
        Image.fromarray(grey).save(picture, format="PNG", compress_level=1)  # fast: it stays on this machine
        return picture.getvalue()

    def nifti(self, drawn: Mask | npt.NDArray[np.uint8] | None = None) -> bytes:
        """Return the volume, or what is drawn over it, as a NIfTI file of voxels and their grid alone.

        Axes run to the right, to anterior and to superior, so voxel 0 lies last in y and x of the volume.
        A mask that is drawn, or strengths of 0 to 255, has shape (z, y, x).
        """
        values = self.volume.array if drawn is None else drawn.astype(np.uint8)
        turn = np.eye(4)[[2, 1, 0, 3]]  # z, y, x to x, y, z, of indices and of places alike
        image = nib.Nifti1Image(values.transpose(2, 1, 0), LPS_RAS @ turn @ self.volume.affine @ turn)
        image.header.set_xyzt_units("mm")
        return bytes(nib.as_closest_canonical(image).to_bytes())

    def value(self, z: int, y: int, x: int) -> dict[str, Any]:
        """Return the value of a voxel and its place in the body, in mm from the scanner's origin, LPS.

        Raises:
            ValueError: if it lies outside the volume.
        """
        for plane, index in zip(AXES, (z, y, x), strict=True):
            self._refuse(plane, index)
        place = self.volume.affine @ np.array([z, y, x, 1.0])
        mm_zyx = [round(float(mm), 1) for mm in place[:3]]
        return {"value": float(self.volume.array[z, y, x]), "mm_zyx": mm_zyx}

    def _refuse(self, plane: str, index: int) -> None:
        count = self.volume.shape_zyx[AXES[plane]]
        if not 0 <= index < count:
            raise ValueError(f"{plane} slices are 0 to {count - 1}, got {index}")
