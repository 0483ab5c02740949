"""Encoder `ctvit`: CT-CLIP's, a transformer within slabs of a CT, then one along them, then a codebook.

In order, as the released code computes it (transformer_maskgit/ctvit.py and attention.py of
github.com/ibrahimethemhamamci/CT-CLIP at a2a155c; vector-quantize-pytorch 1.1.2 for the codebook):

1. The volume is turned: the network's slabs follow each other to the head, its rows to the patient's left,
   its columns to the back. Ours are z to the head, y to the back, x to the left: y and x change places, no
   axis is reversed, and features are turned back. CT-CLIP reads arrays as they lie in CT-RATE's files; that
   they lie so was found by a user of it (CT-CLIP's issue 41) and is not in the code.
2. Patches are normed, projected and normed again.
3. In each slab tokens attend to each other, with a bias by their distance. Queries are of normed tokens, keys
   and values of the tokens themselves. There are no null keys in the released configuration.
4. At each place of the slabs tokens attend to each other along z. They lie there as (place, slab), and the
   convolution before reads them as if they lay as (slab, place): it mixes tokens that are no neighbours. The
   weights were trained so.
5. Each token becomes the vector of the codebook that is nearest by angle. CT-CLIP compares these with
   reports.
"""

from pathlib import Path
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from evidcore.api import EncoderInput, Patches
from evidcore.contracts import Grid
from evidcore_plugin_encoders.patch_centres import PatchEncoder

WINDOW = (-1000.0, 1000.0)  # HU; the loader clips to it and divides by 1000
SIMILARITY_SCALE = 8.0  # of a cosine before the softmax
SLOPE = 0.1  # of the leaky ReLU in the position bias
Count = Annotated[int, Ge(1)]
Spacing = Annotated[float, Gt(0)]
Tokens = Float[Tensor, "row token width"]
Bias = Float[Tensor, "head token token"]


class CosineAttention(nn.Module):
    """Attention by the angle between queries and keys, each axis of which then has a learnt scale."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, heads * head_width, bias=False)
        self.key_value = nn.Linear(width, 2 * heads * head_width, bias=False)
        self.query_scale = nn.Parameter(torch.ones(head_width))
        self.key_scale = nn.Parameter(torch.ones(head_width))
        self.out = nn.Linear(heads * head_width, width, bias=False)

    def forward(self, tokens: Tokens, bias: Bias | None) -> Tokens:
        """Return what each token gathers from its row."""
        parts = (self.query(self.norm(tokens)), *self.key_value(tokens).chunk(2, dim=-1))
        query, key, value = (rearrange(part, "r n (h w) -> r h n w", h=self.heads) for part in parts)
        query = functional.normalize(query, dim=-1) * self.query_scale
        key = functional.normalize(key, dim=-1) * self.key_scale
        seen = functional.scaled_dot_product_attention(query, key, value, bias, scale=SIMILARITY_SCALE)
        return torch.as_tensor(self.out(rearrange(seen, "r h n w -> r n (h w)")))


class Layer(nn.Module):
    """A convolution over neighbours, attention and a gated feed-forward; each is added to the tokens."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        inner = int(4 * (2 / 3) * width)
        self.neighbours = nn.Conv3d(width, width, 3, groups=width)
        self.attention = CosineAttention(width, heads, head_width)
        self.gated_norm = nn.LayerNorm(width)
        self.gated = nn.Linear(width, 2 * inner, bias=False)
        self.narrowed = nn.Linear(inner, width, bias=False)

    def forward(self, tokens: Tokens, grid: Grid, bias: Bias | None) -> Tokens:
        """Return the next tokens; `grid` is how the convolution reads them, the first axis causally."""
        maps = tokens.reshape(1, *grid, -1).movedim(-1, 1)
        maps = self.neighbours(functional.pad(maps, (1, 1, 1, 1, 2, 0)))
        tokens = tokens + maps.movedim(1, -1).reshape(tokens.shape)
        tokens = tokens + self.attention(tokens, bias)
        values, gate = self.gated(self.gated_norm(tokens)).chunk(2, dim=-1)
        return tokens + torch.as_tensor(self.narrowed(functional.gelu(gate) * values))


class Transformer(nn.Module):
    """Layers and a norm at the end."""

    def __init__(self, layers: int, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width, heads, head_width) for _ in range(layers)])
        self.norm_out = nn.LayerNorm(width)

    def forward(self, tokens: Tokens, grid: Grid, bias: Bias | None = None) -> Tokens:
        for layer in self.layers:
            tokens = layer(tokens, grid, bias)
        return torch.as_tensor(self.norm_out(tokens))


class CTViT(PatchEncoder):
    """CT-CLIP's image encoder (arXiv 2403.17834), built after GenerateCT's CT-ViT (arXiv 2305.16037).

    The defaults are CT-CLIP's; `evid convert encoder --as ctvit` writes its weights.
    """

    is_batch_invariant: ClassVar[bool] = True

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        size_zyx: tuple[Count, Count, Count] = (240, 480, 480),
        patch_zyx: tuple[Count, Count, Count] = (10, 20, 20),
        spacing_mm_zyx: tuple[Spacing, Spacing, Spacing] = (1.5, 0.75, 0.75),
        width: Count = 512,
        spatial_layers: Annotated[int, Ge(0), Le(1000)] = 4,
        temporal_layers: Annotated[int, Ge(0), Le(1000)] = 4,
        heads: Count = 8,
        head_width: Count = 32,
        codes: Count = 8192,
        quantised: bool = True,
        pretrained: str = "",
    ) -> None:
        """Build the encoder with random weights; `load_pretrained` reads those that are named.

        Args:
            recipe_folder: where a relative `pretrained` starts.
            size_zyx: usual input size in voxels, a multiple of the patch.
            patch_zyx: voxels that one patch feature stands for.
            spacing_mm_zyx: spacing that volumes are resampled to, before they are cut or filled with air
                around their centre.
            width: features per patch.
            spatial_layers: layers in which a patch sees its slab, and the two slabs below by convolution.
            temporal_layers: layers in which it sees those above and below it.
            heads: attention heads.
            head_width: features of a head.
            codes: vectors of the codebook.
            quantised: give a patch the nearest vector of the codebook, as CT-CLIP does; no gradient passes
                it, so an encoder that a stage trains takes false: the tokens before it.
            pretrained: a folder with `weights.safetensors`, as `evid convert encoder` writes it; "" for
                random ones.

        Raises:
            RecipeError: if the size is no multiple of the patch.
        """
        spec = EncoderInput(size_zyx=size_zyx, spacing_mm_zyx=spacing_mm_zyx, windows=(WINDOW,))
        super().__init__(spec, patch_zyx, width, recipe_folder / pretrained if pretrained else None)
        self.quantised = quantised
        voxels = patch_zyx[0] * patch_zyx[1] * patch_zyx[2]
        self.patches = nn.Sequential(nn.LayerNorm(voxels), nn.Linear(voxels, width), nn.LayerNorm(width))
        self.distances = nn.Sequential(
            nn.Linear(2, width), nn.LeakyReLU(SLOPE), nn.Linear(width, width), nn.LeakyReLU(SLOPE),
            nn.Linear(width, heads),
        )  # fmt: skip
        self.spatial = Transformer(spatial_layers, width, heads, head_width)
        self.temporal = Transformer(temporal_layers, width, heads, head_width)
        self.codebook: Tensor
        self.register_buffer("codebook", torch.randn(1, codes, width))

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode volume by volume: memory stays that of one, and no bit depends on the others."""
        z, y, x = volumes.shape[2:]
        return self.placed(torch.stack([self._features(volume) for volume in volumes]), (z, y, x))

    def _features(self, volume: Float[Tensor, "1 z y x"]) -> Float[Tensor, "patch width"]:
        z, y, x = self.patch_zyx
        cubes = rearrange(volume, "1 (s z) (c y) (r x) -> s r c (z x y)", z=z, y=y, x=x)
        grid = cubes.shape[:3]
        tokens = self.patches(cubes).flatten(1, 2)  # (slab, place, width)
        tokens = self.spatial(tokens, grid, self._bias(*grid[1:]))
        tokens = self.temporal(tokens.transpose(0, 1), grid)  # (place, slab, width): see 4. above
        if self.quantised:
            directions = functional.normalize(self.codebook[0], dim=-1)
            chosen = [(functional.normalize(row, dim=-1) @ directions.T).argmax(dim=-1) for row in tokens]
            tokens = self.codebook[0, torch.stack(chosen)]
        return torch.as_tensor(rearrange(tokens, "(r c) s w -> (s c r) w", r=grid[1]))

    def _bias(self, rows: int, columns: int) -> Bias:
        """Return what the distance between two places of a slab adds to their similarity."""
        device = next(self.distances.parameters()).device
        # worked out once for each distance that occurs: 2,209 of them between 331,776 pairs of places
        down, across = (torch.arange(1 - count, count, device=device) for count in (rows, columns))
        distances = torch.cartesian_prod(down, across).float()
        table: Tensor = self.distances(distances.sign() * (distances.abs() + 1).log())  # (distance, head)
        places = torch.cartesian_prod(torch.arange(rows, device=device), torch.arange(columns, device=device))
        apart = places[:, None] - places + torch.tensor([rows - 1, columns - 1], device=device)
        return table[apart[..., 0] * (2 * columns - 1) + apart[..., 1]].permute(2, 0, 1)
