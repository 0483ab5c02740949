"""Bridge `projection`: pool the patch grid by a strided convolution and project it to the text width."""

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from evidcore.contracts import Bridge, Grid, Patches

Count = Annotated[int, Ge(1), Le(1000)]
Pooling = Literal["linear", "max"]
START = 0.1  # size of the position embedding at the start; at 1 places outweighed what a token shows


class GridPooling(nn.Module):
    """Map each block of patches to one token; a grid that blocks do not fill is continued to fit.

    "linear" is a convolution whose kernel is its stride. "max" maps patches and keeps each channel's largest
    value: a small lesion is not drowned by the noise of the patches around it.
    """

    def __init__(self, width: int, out_width: int, pool_zyx: Grid, pooling: Pooling) -> None:
        super().__init__()
        self.pool_zyx, self.pooling = pool_zyx, pooling
        self.linear = nn.Linear(width * (math.prod(pool_zyx) if pooling == "linear" else 1), out_width)

    def grid(self, grid_zyx: Grid) -> Grid:
        z, y, x = (math.ceil(size / pool) for size, pool in zip(grid_zyx, self.pool_zyx, strict=True))
        return z, y, x

    def forward(
        self, features: Float[Tensor, "volume patch width"], grid_zyx: Grid
    ) -> Float[Tensor, "volume token out_width"]:
        """Return the pooled features, in `z, y, x` raster order."""
        volumes = features.transpose(1, 2).reshape(*features.shape[::2], *grid_zyx)
        short = [-size % pool for size, pool in zip(grid_zyx, self.pool_zyx, strict=True)]
        if any(short):
            volumes = functional.pad(volumes, (0, short[2], 0, short[1], 0, short[0]), mode="replicate")
        (count, width, z, y, x), (a, b, c) = volumes.shape, self.pool_zyx
        blocks = volumes.reshape(count, width, z // a, a, y // b, b, x // c, c)
        blocks = blocks.permute(0, 2, 4, 6, 3, 5, 7, 1).flatten(1, 3).flatten(2, 4)  # v (zyx) (abc) w
        pooled: Tensor = self.linear(blocks if self.pooling == "max" else blocks.flatten(2, 3))
        return pooled.amax(dim=2) if self.pooling == "max" else pooled  # a lesion fills 1 or 2 of 48 patches


class PooledProjection(nn.Module):
    """Normalise patches, pool them, project them to the text width and normalise the result.

    Encoders differ in the size of their features by orders of magnitude. Normalised before and after, what a
    token shows starts with a spread of 1, well above the position embedding that a bridge may add to it.
    """

    def __init__(self, width: int, text_width: int, pool_zyx: Grid, layers: int, pooling: Pooling) -> None:
        """Make it with `layers` linear layers after pooling, with GELU between them."""
        super().__init__()
        self.norm_in = nn.LayerNorm(width)
        self.pooling = GridPooling(width, text_width, pool_zyx, pooling)
        pairs = ((nn.GELU(), nn.Linear(text_width, text_width)) for _ in range(layers))
        self.linear = nn.Sequential(*(step for pair in pairs for step in pair))
        self.norm_out = nn.LayerNorm(text_width)

    def forward(
        self, features: Float[Tensor, "volume patch width"], grid_zyx: Grid
    ) -> Float[Tensor, "volume token text_width"]:
        """Return the tokens of the pooled grid, in `z, y, x` raster order."""
        tokens: Tensor = self.norm_out(self.linear(self.pooling(self.norm_in(features), grid_zyx)))
        return tokens


class GridPosition(nn.Module):
    """A learned position embedding over a grid, started as sines and cosines; stretched to other grids.

    It starts a tenth as large as what the tokens show, so that a token is first of all what is seen there.
    """

    def __init__(self, grid_zyx: Grid, width: int) -> None:
        super().__init__()
        self.grid_zyx = grid_zyx
        self.weight = nn.Parameter(START * sines_and_cosines(grid_zyx, width))

    def forward(self, grid_zyx: Grid) -> Float[Tensor, "token width"]:
        """Return the embedding of `grid_zyx`."""
        if tuple(grid_zyx) == tuple(self.grid_zyx):
            return self.weight
        volume = self.weight.T.reshape(1, -1, *self.grid_zyx)
        other = functional.interpolate(volume, size=tuple(grid_zyx), mode="trilinear", align_corners=False)
        return other[0].flatten(1).T


def sines_and_cosines(grid_zyx: Grid, width: int) -> Float[Tensor, "token width"]:
    """Return a fixed position embedding: a third of the width for each axis, what is left over stays 0."""
    places = torch.meshgrid(*(torch.arange(size, dtype=torch.float32) for size in grid_zyx), indexing="ij")
    pairs = width // 6
    speed = 1.0 / 10_000 ** (torch.arange(pairs, dtype=torch.float32) / max(pairs, 1))
    angles = [place.reshape(-1, 1) * speed for place in places]
    waves = torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)
    return functional.pad(waves, (0, width - waves.shape[1]))


class Projection(Bridge):
    """Pool, project, normalise, add positions; scaled to the spread of the language model's embeddings."""

    scale: Tensor

    def __init__(
        self,
        width: int,
        text_width: int,
        grid_zyx: Grid,
        *,
        pool_zyx: tuple[Count, Count, Count] = (2, 2, 2),
        pooling: Pooling = "linear",
        layers: Count = 2,
        position_embedding: bool = True,
        norm: bool = True,
        scaled: bool = True,
    ) -> None:
        """Make it with fresh weights.

        Args:
            width: of the encoder's patches.
            text_width: of the language model's embeddings.
            grid_zyx: the encoder's usual patch grid.
            pool_zyx: patches per token along each axis.
            pooling: "linear" weighs patches by place; "max" keeps each channel's largest value among them.
            layers: linear layers after pooling, with GELU between them.
            position_embedding: tell tokens of different places apart beyond what the encoder does.
            norm: normalise each token at the end.
            scaled: tokens start as large as words; without, they start with a spread of 1.
        """
        super().__init__()
        self.projection = PooledProjection(width, text_width, pool_zyx, layers, pooling)
        usual = self.projection.pooling.grid(grid_zyx)
        self.position = GridPosition(usual, text_width) if position_embedding else None
        self.norm = nn.LayerNorm(text_width) if norm else None
        self.scaled = scaled
        self.register_buffer("scale", torch.ones(1))

    def set_anchor(self, embeddings: Float[Tensor, "vocabulary text_width"]) -> None:
        """Take the spread of the embeddings, so that visual tokens start as large as words."""
        if self.scaled:
            self.scale.fill_(float(embeddings.detach().float().std()))

    def tokens(self, grid_zyx: Grid) -> int:
        return math.prod(self.projection.pooling.grid(grid_zyx))

    def forward(self, patches: Patches) -> Float[Tensor, "volume token text_width"]:
        tokens: Tensor = self.projection(patches.features, patches.grid_zyx)
        if self.position is not None:
            tokens = tokens + self.position(self.projection.pooling.grid(patches.grid_zyx))
        return (tokens if self.norm is None else self.norm(tokens)) * self.scale
