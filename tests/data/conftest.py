from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a (z, y, x) array in body axes as a NIfTI file and return its path."""

    def to_file(
        array_zyx: np.ndarray,
        name: str = "scan.nii.gz",
        spacing_mm_zyx: tuple[float, float, float] = (3.0, 2.0, 1.0),
        axes: str = "LPS",
    ) -> Path:
        dz, dy, dx = spacing_mm_zyx
        image = nibabel.Nifti1Image(array_zyx.transpose(2, 1, 0), np.diag([-dx, -dy, dz, 1.0]))
        turn = nibabel.orientations.ornt_transform(
            nibabel.io_orientation(image.affine), nibabel.orientations.axcodes2ornt(axes)
        )
        path = tmp_path / name
        nibabel.save(image.as_reoriented(turn), path)
        return path

    return to_file
