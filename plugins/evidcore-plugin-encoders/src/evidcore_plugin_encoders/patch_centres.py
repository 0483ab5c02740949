"""Where patches lie: a regular grid, and its centres."""

import torch
from jaxtyping import Float
from torch import Tensor

from evidcore.contracts import Grid


def patch_grid(size_zyx: Grid, patch_zyx: Grid) -> Grid:
    """Return the grid of patches that fill a volume.

    Raises:
        ValueError: if they do not.
    """
    if any(size % patch or size < patch for size, patch in zip(size_zyx, patch_zyx, strict=True)):
        raise ValueError(f"the input must be a multiple of the patch {patch_zyx}, got {size_zyx}")
    z, y, x = (size // patch for size, patch in zip(size_zyx, patch_zyx, strict=True))
    return z, y, x


def patch_centres(
    grid_zyx: Grid, step_zyx: tuple[float, float, float], device: torch.device | None = None
) -> Float[Tensor, "patch 3"]:
    """Return patch centres from the grid's middle, in `z, y, x` raster order.

    They are in the unit of `step_zyx`, mm or voxels.
    """
    axes = [
        (torch.arange(count, device=device, dtype=torch.float32) - (count - 1) / 2) * step
        for count, step in zip(grid_zyx, step_zyx, strict=True)
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)
