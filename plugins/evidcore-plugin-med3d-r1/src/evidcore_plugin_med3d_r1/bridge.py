"""Bridge `residual-alignment`: visual tokens drawn towards the mean of the language model's vocabulary."""

import math
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Lt
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from evidcore.api import Bridge, Patches
from evidcore.builtin.projection import Count, GridPosition, PooledProjection, Pooling
from evidcore.contracts import Grid


class ResidualAlignment(Bridge):
    """Pool patches by a strided convolution, then mix each token with a fixed text anchor through a gate.

    With pooled and projected token x, anchor t and gate g = sigmoid(W2 relu(W1 [x; t])): z = g·t + (1 - g)·x,
    then a position embedding and a norm. Where g is 0 it is the builtin bridge `projection` of the same
    options, weight for weight, so that the two differ in the gate alone.

    Inside, everything is in units of the embeddings' spread s (t / s stands for t, the result is multiplied
    by s): visual tokens start as large as words, whatever the language model. `scaled = false` takes s = 1.

    Differences from the paper, all in the released code too: the gate is a vector ("channel"; the paper's
    text reads as one number per token), and a position embedding and a norm follow it. Of neither are the
    units (both take s = 1), the norm before pooling, and GELU before each linear layer.

    Source:
        Lai et al. 2026, Med3D-R1, arXiv:2602.01200, eq. 1-3, and github laihaoran/Med3D-R1 @17ea522,
        stage1_sft/LaMed/src/model/multimodal_projector/spatial_conv_view_projector.py.
    """

    anchor: Tensor
    scale: Tensor
    anchor_taken: Tensor

    def __init__(
        self,
        width: int,
        text_width: int,
        grid_zyx: Grid,
        *,
        pool_zyx: tuple[Count, Count, Count] = (2, 2, 2),
        pooling: Pooling = "linear",
        layers: Count = 2,
        gate: Literal["channel", "token"] = "channel",
        gate_start: Annotated[float, Gt(0), Lt(1)] = 0.5,
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
            pooling: "linear", as in the paper, or "max", the largest value of each channel among the patches.
            layers: linear layers after pooling, with GELU between them.
            gate: "channel" has one gate per channel, "token" one per token.
            gate_start: the gate before training; near 0 lets the pixels through, near 1 shuts them off.
            position_embedding: tell tokens of different places apart beyond what the encoder does.
            norm: normalise each token at the end.
            scaled: tokens start as large as words; without, they start with a spread of 1.
        """
        super().__init__()
        self.projection = PooledProjection(width, text_width, pool_zyx, layers, pooling)
        self.gate_hidden = nn.Linear(2 * text_width, text_width)
        self.gate_out = nn.Linear(text_width, text_width if gate == "channel" else 1)
        nn.init.constant_(self.gate_out.bias, math.log(gate_start / (1.0 - gate_start)))
        usual = self.projection.pooling.grid(grid_zyx)
        self.position = GridPosition(usual, text_width) if position_embedding else None
        self.norm = nn.LayerNorm(text_width) if norm else None
        self.scaled = scaled
        # Buffers, not views of the embeddings, which may be sharded or trained later. None is 0-d, for FSDP2.
        self.register_buffer("anchor", torch.zeros(text_width))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("anchor_taken", torch.zeros(1, dtype=torch.uint8))

    def set_anchor(self, embeddings: Float[Tensor, "vocabulary text_width"]) -> None:
        """Keep the mean embedding and the embeddings' spread.

        The first call counts. Later ones change nothing, so that a model trained in full keeps its anchor.
        """
        if self.anchor_taken.item():
            return
        rows = embeddings.detach().float()
        with torch.no_grad():
            self.anchor.copy_(rows.mean(dim=0))
            if self.scaled:
                self.scale.fill_(float(rows.std()))
            self.anchor_taken.fill_(1)

    def tokens(self, grid_zyx: Grid) -> int:
        return math.prod(self.projection.pooling.grid(grid_zyx))

    def forward(self, patches: Patches) -> Float[Tensor, "volume token text_width"]:
        tokens = self.mix(self.projection(patches.features, patches.grid_zyx))
        if self.position is not None:
            tokens = tokens + self.position(self.projection.pooling.grid(patches.grid_zyx))
        if self.norm is not None:
            tokens = self.norm(tokens)
        return tokens * self.scale

    def mix(
        self, tokens: Float[Tensor, "volume token text_width"]
    ) -> Float[Tensor, "volume token text_width"]:
        """Return g·anchor + (1 - g)·token, in units of the embeddings' spread."""
        anchor = (self.anchor / self.scale).expand_as(tokens)
        hidden = functional.relu(self.gate_hidden(torch.cat([tokens, anchor], dim=-1)))
        gate = torch.sigmoid(self.gate_out(hidden))
        return gate * anchor + (1.0 - gate) * tokens
