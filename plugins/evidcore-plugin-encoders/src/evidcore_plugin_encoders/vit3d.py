"""Encoder `vit3d`: a vision transformer over 3D patches, with MONAI's blocks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le, Len
from einops import rearrange
from jaxtyping import Float
from monai.networks.blocks import Convolution, PatchEmbeddingBlock, ResidualUnit, TransformerBlock
from torch import Tensor, nn
from torch.nn import functional

from evidcore.api import EncoderInput, InlineOptions, Patches
from evidcore.compute.loading import load_weights
from evidcore.contracts import FitData, Grid
from evidcore.errors import RecipeError
from evidcore_plugin_encoders.encoder_fit import EncoderFit, fit_encoder
from evidcore_plugin_encoders.patch_centres import PatchEncoder
from evidcore_plugin_encoders.weight_files import WEIGHTS

LUNG, MEDIASTINUM, BONE = (-1000.0, -200.0), (-160.0, 240.0), (150.0, 1850.0)  # low, high in HU
FIT = EncoderFit()
Count = Annotated[int, Ge(1)]
_BLOCK: dict[str, Any] = {"act": "RELU", "adn_ordering": "NA"}  # GELU costs as much as a convolution on a CPU


class ConvolutionStem(nn.Module):
    """Halve the volume until a voxel stands for a patch, from few channels to many.

    The last but one resolution also reaches the output, as its maximum per patch: small signs survive there.
    Where a patch is one slice high, no slice sees another.
    """

    def __init__(self, channels: int, patch_zyx: Grid, width: int) -> None:
        super().__init__()
        strides = halvings(patch_zyx)
        third, halved = width // 3, len(strides) - 1
        wide = [*(max(4, third >> (halved - 1 - step)) for step in range(halved)), width - third]
        kernel = (1 if patch_zyx[0] == 1 else 3, 3, 3)
        stages: list[nn.Module] = []
        for step, stride in enumerate(strides):
            into = channels if step == 0 else wide[step - 1]
            stage = [_convolution(into, wide[step], stride, kernel, norm="BATCH" if step else None)]
            if step == len(strides) - 1:
                sides = {"in_channels": wide[step], "out_channels": wide[step], "kernel_size": kernel}
                stage.append(ResidualUnit(3, **sides, subunits=1, norm="BATCH", bias=False, **_BLOCK))
            stages.append(nn.Sequential(*stage))
        self.stages = nn.ModuleList(stages)
        self.pool = nn.MaxPool3d(strides[-1], strides[-1])
        self.mix = _convolution(wide[-1] + (wide[-2] if len(strides) > 1 else channels), width, 1, 1)

    def forward(
        self, volumes: Float[Tensor, "volume channel z y x"]
    ) -> Float[Tensor, "volume width z2 y2 x2"]:
        fine = volumes.contiguous(memory_format=torch.channels_last_3d)
        for stage in self.stages[:-1]:
            fine = stage(fine)
        coarse = self.stages[-1](fine)
        return torch.as_tensor(self.mix(torch.cat([coarse, self.pool(fine)], dim=1)))


class FineConvolutions(nn.Module):
    """Three convolutions at full resolution, and what they see as the maximum of each patch.

    A sign of one or two voxels is told from noise here or nowhere: a stem that halves at once mixes it with
    its neighbours first.
    """

    def __init__(self, channels: int, fine_channels: int, patch_zyx: Grid, width: int) -> None:
        super().__init__()
        z = 1 if patch_zyx[0] == 1 else 3
        self.layers = nn.Sequential(
            _convolution(channels, fine_channels, 1, (z, 5, 5)),
            _convolution(fine_channels, fine_channels, 1, (z, 3, 3)),
            _convolution(fine_channels, fine_channels, 1, (z, 3, 3)),
        )
        self.pool = nn.MaxPool3d(patch_zyx, patch_zyx)
        self.mix = nn.Conv3d(fine_channels, width, 1)

    def forward(
        self, volumes: Float[Tensor, "volume channel z y x"]
    ) -> tuple[Float[Tensor, "volume fine z y x"], Float[Tensor, "volume width z2 y2 x2"]]:
        """Return the maps and what they add to each patch."""
        fine = self.layers(volumes.contiguous(memory_format=torch.channels_last_3d))
        return fine, self.mix(self.pool(fine))


def halvings(patch_zyx: Grid) -> list[Grid]:
    """Split a patch into strides of 1 or 2, spread evenly over the stages."""
    if any(side & (side - 1) for side in patch_zyx):
        raise RecipeError(
            f"vit3d: the convolution stem halves, so patch_zyx must be powers of two, got {patch_zyx}. "
            f'Change it, or set stem = "patch".'
        )
    halves = [side.bit_length() - 1 for side in patch_zyx]
    stages = max(1, *halves)
    chosen = [{round(index * (stages - 1) / max(1, count - 1)) for index in range(count)} for count in halves]
    return [
        (1 + (step in chosen[0]), 1 + (step in chosen[1]), 1 + (step in chosen[2])) for step in range(stages)
    ]


def _convolution(
    into: int, out: int, stride: Grid | int, kernel: Grid | int, norm: str | None = "BATCH"
) -> nn.Module:
    block: nn.Module = Convolution(
        3, into, out, strides=stride, kernel_size=kernel, norm=norm, bias=norm is None, **_BLOCK
    )
    return block


class ViT3D(PatchEncoder):
    """Patches of a volume through a stem and transformer layers.

    With patches one slice high it is slice-wise: each slice is encoded alone, and there may be any number.
    The defaults suit the generated phantoms and train in minutes on two CPU cores. Med3D-R1's encoder is
    `size_zyx = [112, 224, 224]`, `patch_zyx = [8, 16, 16]`, `width = 768`, `layers = 12`, `heads = 12`,
    `stem = "patch"`, `class_token = true`, `norm_eps = 1e-6`; `evid convert encoder` writes its weights.
    """

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        size_zyx: tuple[Count, Count, Count] = (32, 64, 64),
        patch_zyx: tuple[Count, Count, Count] = (4, 8, 8),
        spacing_mm_zyx: Annotated[tuple[float, ...], Len(0, 3)] = (),
        width: Annotated[int, Ge(6)] = 96,
        layers: Annotated[int, Ge(0), Le(1000)] = 0,
        heads: Annotated[int, Ge(1)] = 4,
        stem: Literal["patch", "convolution"] = "convolution",
        fine_channels: Annotated[int, Ge(0)] = 0,
        windows: tuple[tuple[float, float], ...] = (LUNG, MEDIASTINUM, BONE),
        class_token: bool = False,
        norm_eps: Annotated[float, Gt(0)] = 1e-5,
        pretrained: str = "",
    ) -> None:
        """Build the encoder with random weights; `load_pretrained` reads those that are named.

        Args:
            recipe_folder: where a relative `pretrained` starts.
            size_zyx: usual input size in voxels, a multiple of the patch.
            patch_zyx: voxels that one patch feature stands for; 1 along z makes the encoder slice-wise.
            spacing_mm_zyx: spacing that volumes are resampled to; empty: the whole field of view, resized.
            width: features per patch.
            layers: transformer layers after the stem.
            heads: attention heads, which divide the width.
            stem: "patch" projects each patch linearly, as in a plain ViT; "convolution" halves the volume
                step by step, which needs far fewer cases and minutes (Xiao et al. 2021, arXiv:2106.14881).
            fine_channels: of convolutions at full resolution before the stem, for signs of a voxel or two,
                which `supervision = ["voxels"]` teaches; 0: none, which takes a quarter of the time.
            windows: (low, high) in HU, one input channel each; empty: one channel, scaled by percentiles.
            class_token: let one more token pass through the layers and drop it at the end, as encoders do
                that were trained with one.
            norm_eps: added to the variance by the norms within the layers; timm's blocks add 1e-6.
            pretrained: a folder with `weights.safetensors`, as a `fit` stage or `evid convert encoder`
                writes it; "" for random ones.

        Raises:
            RecipeError: if the options do not fit each other.
        """
        if width % heads:
            raise RecipeError(f"vit3d: width must be a multiple of heads, got {width} and {heads}.")
        if len(spacing_mm_zyx) not in (0, 3):
            raise RecipeError(f"vit3d: spacing_mm_zyx must be empty or hold z, y, x, got {spacing_mm_zyx}.")
        spec = EncoderInput(
            size_zyx=size_zyx, spacing_mm_zyx=_triple(spacing_mm_zyx),
            windows=tuple((low, high) for low, high in windows), any_depth=patch_zyx[0] == 1,
        )  # fmt: skip
        super().__init__(spec, patch_zyx, width, recipe_folder / pretrained if pretrained else None)
        channels = max(1, len(windows))
        self.fine_channels = fine_channels
        self.fine = FineConvolutions(channels, fine_channels, patch_zyx, width) if fine_channels else None
        channels = fine_channels or channels
        self.stem: nn.Module
        if stem == "patch":
            block = PatchEmbeddingBlock(channels, size_zyx, patch_zyx, width, heads, pos_embed_type="none")
            self.stem = block.patch_embeddings
        else:
            self.stem = ConvolutionStem(channels, patch_zyx, width)
        z, y, x = self.grid(size_zyx)
        self.positions = nn.Parameter(torch.empty(1, width, 1 if self.input.any_depth else z, y, x))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if class_token else None
        self.layers = nn.ModuleList([_layer(width, heads, norm_eps) for _ in range(layers)])
        self.norm = nn.LayerNorm(width) if layers else nn.Identity()

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode prepared volumes; positions are interpolated for a size that is not the usual one."""
        z, y, x = volumes.shape[2:]
        return self.placed(self.maps(volumes)[0], (z, y, x))

    def maps(
        self, volumes: Float[Tensor, "volume channel z y x"]
    ) -> tuple[Float[Tensor, "volume patch width"], Float[Tensor, "volume fine z y x"]]:
        """Return the features of patches, and of voxels: of no channel without `fine_channels`."""
        count, _, *size = volumes.shape
        grid = self.grid((size[0], size[1], size[2]))
        if not self.input.any_depth:
            return self._maps(volumes, grid)
        features, fine = self._maps(rearrange(volumes, "v c z y x -> (v z) c 1 y x"), (1, *grid[1:]))
        return (
            rearrange(features, "(v z) p w -> v (z p) w", v=count),
            rearrange(fine, "(v z) c 1 y x -> v c z y x", v=count),
        )

    def _maps(
        self, volumes: Float[Tensor, "volume channel z y x"], grid: Grid
    ) -> tuple[Float[Tensor, "volume patch width"], Float[Tensor, "volume fine z y x"]]:
        if self.fine is None:
            fine, features = volumes[:, :0], self.stem(volumes)
        else:
            fine, added = self.fine(volumes)
            features = self.stem(fine) + added
        positions: Tensor = self.positions
        if grid != tuple(positions.shape[2:]):
            positions = functional.interpolate(positions, grid, mode="trilinear", align_corners=False)
        features = (features + positions).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            features = torch.cat([self.class_token.expand(len(features), 1, -1), features], dim=1)
        for layer in self.layers:
            features = layer(features)
        features = self.norm(features)
        if self.class_token is not None:
            features = features[:, 1:]
        return features, fine

    def fit(self, given: FitData, *, options: Annotated[EncoderFit, InlineOptions] = FIT) -> None:
        """Train the encoder on what is known about the cases, from the named weights if there are any."""
        self.load_pretrained()
        fit_encoder(self, given, options)

    def load(self, folder: Path) -> None:
        load_weights(self, folder / WEIGHTS, "Fit it anew, or give the encoder the options that it had then.")


def _layer(width: int, heads: int, norm_eps: float) -> nn.Module:
    block: nn.Module = TransformerBlock(width, 4 * width, heads, qkv_bias=True, use_flash_attention=True)
    # unused without cross-attention; its weights would never get a gradient
    block.norm_cross_attn = nn.Identity()
    block.norm1, block.norm2 = nn.LayerNorm(width, norm_eps), nn.LayerNorm(width, norm_eps)
    return block


def _triple(values: Sequence[float]) -> tuple[float, float, float] | None:
    return (values[0], values[1], values[2]) if values else None
