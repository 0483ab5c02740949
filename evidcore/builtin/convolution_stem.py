"""A stem for encoders of volumes: convolutions that halve the volume until a voxel stands for a patch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from monai.networks.blocks import Convolution, ResidualUnit
from torch import Tensor, nn

from evidcore.contracts import Grid
from evidcore.errors import RecipeError


class ConvolutionStem(nn.Module):
    """Halve the volume until a voxel stands for a patch, from few channels to many.

    The last but one resolution also reaches the output, as its maximum per patch: small signs survive there.
    Where a patch is one slice high, no slice sees another.
    """

    def __init__(self, channels: int, patch_zyx: Grid, width: int) -> None:
        super().__init__()
        strides = halvings(patch_zyx)
        third = width // 3
        wide = [max(4, third >> (len(strides) - 2 - step)) for step in range(len(strides) - 1)] + [
            width - third
        ]
        kernel = (1 if patch_zyx[0] == 1 else 3, 3, 3)
        stages: list[nn.Module] = []
        for step, stride in enumerate(strides):
            into = channels if step == 0 else wide[step - 1]
            stage = [_convolution(into, wide[step], stride, kernel, norm="BATCH" if step else None)]
            if step == len(strides) - 1:
                stage.append(_residual(wide[step], kernel))
            stages.append(nn.Sequential(*stage))
        self.stages = nn.ModuleList(stages)
        self.pool = nn.MaxPool3d(strides[-1], strides[-1])
        self.mix = _convolution(wide[-1] + (wide[-2] if len(strides) > 1 else channels), width, 1, 1)

    def forward(
        self, volumes: Float[Tensor, "volume channel z y x"]
    ) -> Float[Tensor, "volume width z2 y2 x2"]:
        """Return one feature vector per patch."""
        fine = volumes.contiguous(memory_format=torch.channels_last_3d)
        for stage in self.stages[:-1]:
            fine = stage(fine)
        coarse = self.stages[-1](fine)
        return torch.as_tensor(self.mix(torch.cat([coarse, self.pool(fine)], dim=1)))


def halvings(patch_zyx: Grid) -> list[Grid]:
    """Split a patch into strides of 1 or 2, spread evenly over the stages.

    Raises:
        RecipeError: if a side of the patch is not a power of two.
    """
    if any(side & (side - 1) for side in patch_zyx):
        raise RecipeError(
            f"vit3d: the convolution stem halves, so patch_zyx must be powers of two, got {patch_zyx}. "
            f'Change it, or set stem = "patch".'
        )
    halves = [side.bit_length() - 1 for side in patch_zyx]
    stages = max(1, *halves)
    chosen = [{round(place * (stages - 1) / max(1, count - 1)) for place in range(count)} for count in halves]
    return [
        (1 + (step in chosen[0]), 1 + (step in chosen[1]), 1 + (step in chosen[2])) for step in range(stages)
    ]


def _convolution(
    into: int, out: int, stride: Grid | int, kernel: Grid | int, norm: str | None = "BATCH"
) -> nn.Module:
    block: nn.Module = Convolution(
        3,
        into,
        out,
        strides=stride,
        kernel_size=kernel,
        act="RELU",  # on a CPU, GELU on the first maps costs as much as their convolution
        norm=norm,
        bias=norm is None,
        adn_ordering="NA",
    )
    return block


def _residual(width: int, kernel: Grid) -> nn.Module:
    block: nn.Module = ResidualUnit(
        3,
        width,
        width,
        kernel_size=kernel,
        subunits=1,
        act="RELU",
        norm="BATCH",
        bias=False,
        adn_ordering="NA",
    )
    return block
