"""Where patches lie: their centres, and encoders whose patches fill the volume."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from evidcore.api import DataError, Encoder, EncoderInput, Patches
from evidcore.compute.loading import load_weights
from evidcore.contracts import Grid
from evidcore.data.stored import unreadable
from evidcore.errors import RecipeError
from evidcore_plugin_encoders.weight_files import WEIGHTS


class PatchEncoder(Encoder):
    """An encoder whose patches fill the volume, with weights that `evid convert encoder` may write."""

    def __init__(self, spec: EncoderInput, patch_zyx: Grid, width: int, pretrained: Path | None) -> None:
        """Declare input and output; `pretrained` is a folder of weights.

        Raises:
            RecipeError: if patches do not fill the input.
        """
        super().__init__()
        if any(size % patch for size, patch in zip(spec.size_zyx, patch_zyx, strict=True)):
            text = f"size_zyx must be a multiple of patch_zyx, got {spec.size_zyx} and {patch_zyx}"
            raise RecipeError(f"model.encoder: {text}.")
        self.input, self.patch_zyx, self.width = spec, patch_zyx, width
        self._pretrained = None if pretrained is None else pretrained / WEIGHTS

    def grid(self, size_zyx: Grid) -> Grid:
        sides = tuple(zip(size_zyx, self.patch_zyx, strict=True))
        if any(size % patch or size < patch for size, patch in sides):
            raise ValueError(f"the input must be a multiple of the patch {self.patch_zyx}, got {size_zyx}")
        z, y, x = (size // patch for size, patch in sides)
        return z, y, x

    def placed(self, features: Float[Tensor, "volume patch width"], size_zyx: Grid) -> Patches:
        """Return the features of volumes of a size with where their patches lie."""
        grid, spacing = self.grid(size_zyx), self.input.spacing_mm_zyx or (1.0, 1.0, 1.0)
        z, y, x = (patch * step for patch, step in zip(self.patch_zyx, spacing, strict=True))
        return Patches(features, grid, patch_centres(grid, (z, y, x), features.device))

    def missing_weights(self) -> str:
        """Say that the folder named by `pretrained` holds no weights."""
        if self._pretrained is None or self._pretrained.is_file():
            return ""
        remedy = "`evid convert encoder` writes an encoder's published weights there."
        return str(unreadable(self._pretrained, remedy=remedy))

    def load_pretrained(self) -> None:
        """Read the weights that `pretrained` names, if it names any.

        Raises:
            DataError: if they are missing, or are not those of the encoder.
        """
        if missing := self.missing_weights():
            raise DataError(f"model.encoder.pretrained: {missing}")
        if self._pretrained is not None:
            load_weights(
                self, self._pretrained,
                "Give the encoder the options that they were trained with; `evid convert encoder` translates "
                "published weights, and prints the options.",
            )  # fmt: skip


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
