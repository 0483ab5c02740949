"""Where the body lies in a CT: its outline, and the plane between left and right."""

import numpy as np

from evidcore.data.grid import Geometry, Mask, Volume

OUTLINE_HU = -300.0  # between fat (-100) and the air around
COARSE_MM = 2.0
TABLE_MM = 4.0  # what is thinner than twice this in an axial slice is a table, a tube or clothes
NARROWEST_MM = 200.0  # a narrower outline is a limb or a part of the body, whose middle is not the body's
CUT_SHARE = 0.15  # of the body's height in a slice; more of it on the grid's edge, and the body is cut there
FEWEST_SLICES = 0.5  # share of the slices with body that must show it whole


def coarse(volume: Volume, step_mm: float = COARSE_MM) -> Volume:
    """Return the means of whole blocks of voxels: less noise, less to compute.

    A block is as many voxels long as come nearest to `step_mm`; what does not fill a block at the far end is
    left out. The block with index b begins at voxel b * (voxels in a block).
    """
    factors = [
        max(1, min(round(step_mm / step), count))
        for step, count in zip(volume.spacing_mm_zyx, volume.shape_zyx, strict=True)
    ]
    blocks = tuple(count // factor for count, factor in zip(volume.shape_zyx, factors, strict=True))
    (bz, by, bx), (fz, fy, fx) = blocks, factors
    cropped = volume.array[: bz * fz, : by * fy, : bx * fx]
    means = cropped.reshape(bz, fz, by, fy, bx, fx).mean(axis=(1, 3, 5), dtype=np.float32)
    affine = volume.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ ((np.array(factors) - 1) / 2)
    affine[:3, :3] *= factors
    geometry = Geometry(shape_zyx=(bz, by, bx), affine=affine)
    return Volume(array=means, geometry=geometry, intensity=volume.intensity)


def outline(volume: Volume) -> Mask:
    """Return the largest connected body of tissue, shape (z, y, x); lungs and bowel gas stay holes."""
    from scipy import ndimage

    tissue = volume.array > OUTLINE_HU
    _, dy, dx = volume.spacing_mm_zyx
    steps = int(max(1, round(TABLE_MM / max(dy, dx))))
    plane = np.array([[[False, True, False], [True, True, True], [False, True, False]]])
    # beyond the grid counts as tissue: a body that reaches its edge is not worn away there
    worn = ndimage.binary_erosion(tissue, plane, iterations=steps, border_value=1)
    labels, _ = ndimage.label(worn)
    sizes = np.bincount(labels.reshape(-1))[1:]  # without what is outside
    largest = labels == sizes.argmax() + 1 if sizes.size else worn
    body: Mask = ndimage.binary_dilation(largest, plane, iterations=steps) & tissue
    return body


def midline_mm(volume: Volume, body: Mask | None = None) -> float | None:
    """Return the body's middle along x, in mm from the first voxel's centre; None where it cannot be told.

    It is the middle between the body's left and right edge, the median over slices. It cannot be told where
    the grid cuts the body off at a side, or what is seen is narrower than 200 mm. `body` is the outline of
    the CT's `coarse` blocks, where that is known already.
    """
    blocks = coarse(volume)
    step_mm, fine_mm = blocks.spacing_mm_zyx[2], volume.spacing_mm_zyx[2]
    middles, widths, slices = [], [], 0
    for plane in outline(blocks) if body is None else body:
        columns = plane.sum(axis=0)
        filled = np.flatnonzero(columns)
        if not filled.size:
            continue
        slices += 1
        if max(columns[0], columns[-1]) > CUT_SHARE * columns.max():
            continue
        middles.append((filled[0] + filled[-1]) / 2)
        widths.append((filled[-1] - filled[0] + 1) * step_mm)
    if len(middles) <= FEWEST_SLICES * slices or np.median(widths) < NARROWEST_MM:
        return None
    return float(np.median(middles)) * step_mm + (step_mm - fine_mm) / 2
