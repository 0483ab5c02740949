"""Bridge `residual-alignment`: visual tokens drawn towards the mean of the language model's vocabulary."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from evidcore.contracts import Bridge, Grid, Patches

_POSITION_START = 0.1  # of the tokens' own spread, so that content outweighs position when training starts


class ResidualAlignment(Bridge):
    """Pool patches by a strided convolution, then mix each token with a fixed text anchor through a gate.

    With pooled token x, anchor t and gate g = sigmoid(W2 relu(W1 [x; t])): z = g·t + (1 - g)·x, then a
    position embedding and a norm. Tokens leave with the spread s of the language model's embeddings, so that
    a small model can read them from the first step; the gate reads [x; t] / s, which only rescales W1.

    Differences from the paper, both in the released code too: the gate is a vector ("channel"; the paper's
    text reads as one number per token), and a position embedding and a norm follow it.

    Args:
        width: features per patch.
        text_width: width of the language model's embeddings.
        grid_zyx: the encoder's usual patch grid.
        stride: patches pooled into one token along each axis; edge patches that fill no stride are padded.
        gate: "channel" has one gate per channel, "token" one per token.
        gate_start: value of the gate before training; near 0 lets the pixels through, near 1 closes them off.
        position: add a learnable position embedding.
        norm: normalise each token at the end.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200, eq. 1-3, and github laihaoran/Med3D-R1 @17ea522.
    """

    anchor: Tensor
    text_scale: Tensor
    anchor_taken: Tensor

    def __init__(
        self,
        width: int,
        text_width: int,
        grid_zyx: Grid,
        *,
        stride: Annotated[int, Ge(1)] = 2,
        gate: Literal["channel", "token"] = "channel",
        gate_start: Annotated[float, Gt(0), Lt(1)] = 0.5,
        position: bool = True,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.pool = nn.Conv3d(width, text_width, kernel_size=stride, stride=stride)
        self.project = nn.Linear(text_width, text_width)
        self.project_norm = nn.LayerNorm(text_width)
        self.gate_hidden = nn.Linear(2 * text_width, text_width)
        self.gate_out = nn.Linear(text_width, text_width if gate == "channel" else 1)
        nn.init.constant_(self.gate_out.bias, math.log(gate_start / (1.0 - gate_start)))
        self.pooled_grid_zyx = self._pooled(grid_zyx)
        self.position = (
            nn.Parameter(_POSITION_START * waves(self.pooled_grid_zyx, text_width)) if position else None
        )
        self.norm = nn.LayerNorm(text_width) if norm else None
        # Buffers, not views of the embeddings: those may be sharded or trained later. No 0-d tensors: FSDP2
        # refuses them.
        self.register_buffer("anchor", torch.zeros(text_width))
        self.register_buffer("text_scale", torch.ones(1))
        self.register_buffer("anchor_taken", torch.zeros(1, dtype=torch.uint8))

    def set_anchor(self, embeddings: Float[Tensor, "vocabulary text_width"]) -> None:
        """Keep the mean embedding and the embeddings' spread.

        The first call counts. Later ones change nothing, so that a model trained in full keeps its anchor.
        """
        if self.anchor_taken.item():
            return
        rows = embeddings.detach().float()
        self.anchor.copy_(rows.mean(dim=0))
        self.text_scale.fill_(rows.std(dim=0).square().mean().sqrt().item())
        self.anchor_taken.fill_(1)

    def _pooled(self, grid_zyx: Grid) -> Grid:
        z, y, x = (math.ceil(count / self.stride) for count in grid_zyx)
        return z, y, x

    def tokens(self, grid_zyx: Grid) -> int:
        """Return how many embeddings a patch grid becomes."""
        return math.prod(self._pooled(grid_zyx))

    def forward(self, patches: Patches) -> Float[Tensor, "volume token text_width"]:
        """Pool, mix with the anchor, place and normalise."""
        tokens = self.mix(self._pool(patches))
        scale = self.text_scale
        if self.position is not None:
            tokens = tokens + scale * self._resized(self.position, self._pooled(patches.grid_zyx))
        if self.norm is not None:
            tokens = scale * self.norm(tokens / scale)
        return tokens

    def mix(
        self, tokens: Float[Tensor, "volume token text_width"]
    ) -> Float[Tensor, "volume token text_width"]:
        """Return g·anchor + (1 − g)·token."""
        anchor = self.anchor.expand_as(tokens)
        hidden = functional.relu(self.gate_hidden(torch.cat([tokens, anchor], dim=-1) / self.text_scale))
        gate = torch.sigmoid(self.gate_out(hidden))
        return gate * anchor + (1.0 - gate) * tokens

    def _pool(self, patches: Patches) -> Tensor:
        volumes, _, width = patches.features.shape
        grid = patches.features.transpose(1, 2).reshape(volumes, width, *patches.grid_zyx)
        short = [-count % self.stride for count in patches.grid_zyx]
        padded = functional.pad(grid, (0, short[2], 0, short[1], 0, short[0]), mode="replicate")
        pooled = self.pool(padded).flatten(2).transpose(1, 2)
        return self.text_scale * self.project_norm(self.project(pooled))  # type: ignore[no-any-return]

    def _resized(self, position: Tensor, grid_zyx: Grid) -> Tensor:
        if grid_zyx == self.pooled_grid_zyx:
            return position
        usual = position.T.reshape(1, -1, *self.pooled_grid_zyx)
        resized = functional.interpolate(usual, size=grid_zyx, mode="trilinear", align_corners=False)
        return resized.squeeze(0).flatten(1).T


def waves(grid_zyx: Grid, width: int) -> Float[Tensor, "token width"]:
    """Return sine and cosine position codes, a third of the channels per axis; channels left over are 0."""
    pairs = width // 6
    if pairs == 0:
        raise ValueError(f"text_width must be at least 6 for position codes, got {width}")
    rates = 10_000.0 ** -(torch.arange(pairs) / pairs)
    places = torch.meshgrid(*(torch.arange(count).float() for count in grid_zyx), indexing="ij")
    codes = torch.zeros(math.prod(grid_zyx), width)
    for axis, place in enumerate(places):
        angles = place.flatten()[:, None] * rates  # (token, pair)
        first = 2 * pairs * axis
        codes[:, first : first + pairs] = angles.sin()
        codes[:, first + pairs : first + 2 * pairs] = angles.cos()
    return codes
