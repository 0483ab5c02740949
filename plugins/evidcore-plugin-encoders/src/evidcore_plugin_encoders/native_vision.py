"""Encoder `native-vision` and bridge `native-merger`: the eyes that a Qwen-VL model was published with.

Together with the language model of the same checkpoint they are that model: same weights, same arithmetic.
Apart, each is a component as any other: features of the frozen tower are kept, and another bridge may follow.

A *patch* here is what becomes one token: a square of 2 x 2 of the tower's own patches, side by side.
"""

import copy
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from evidcore.api import Bridge, Encoder, EncoderInput, Patches
from evidcore.contracts import Grid
from evidcore.errors import RecipeError, RunError
from evidcore_plugin_encoders.patch_centres import patch_centres
from evidcore_plugin_encoders.picture_places import PicturePlaces

Vision = Mapping[str, Any]
# mean and spread of colours on 0..1 that each kind of tower was trained with
COLOURS = {"qwen2_5_vl": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD), "qwen3_vl": ([0.5] * 3, [0.5] * 3)}
SOFT_TISSUE = ((-160.0, 240.0),)  # HU
COLOUR_CHANNELS = 3


class _Unmerged(nn.Module):
    """Stands where the tower's merger was: lays the patches of a square side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, patches: Float[Tensor, "patch width"]) -> Float[Tensor, "square squares_width"]:
        """Return the squares."""
        return patches.reshape(-1, self.width)


class NativeVision(Encoder):
    """The vision tower of the recipe's language model, applied to each axial slice.

    Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (arXiv 2511.21631), whose towers give features of some inner
    layers too.
    """

    published_names: ClassVar[Mapping[str, str]] = {"tower.": "model.visual."}
    mean: Tensor
    spread: Tensor

    def __init__(
        self,
        vision: Vision | None = None,
        *,
        size: Annotated[int, Ge(28)] = 256,
        slices: Annotated[int, Ge(1)] = 32,
        windows: tuple[tuple[float, float], ...] = SOFT_TISSUE,
    ) -> None:
        """Build the tower without weights; `load_from` takes them from the published model.

        Args:
            vision: the tower's configuration.
            size: height and width that a slice is resized to, in pixels: a multiple of 32 (Qwen3-VL) or 28
                (Qwen2.5-VL). 256 pixels are 64 tokens of Qwen3-VL. A view may choose other multiples, as
                `image` does to keep a picture's own aspect.
            slices: slices taken from a volume that is shown whole.
            windows: (low, high) in HU: one, shown in grey, or three, for red, green and blue; [] scales by
                percentiles, for any intensity, and takes photographs in their colours.
        """
        super().__init__()
        self.config = config = _config(vision, "model.encoder")
        self.side_pixels = config.patch_size * config.spatial_merge_size
        if size % self.side_pixels:
            low = max(1, size // self.side_pixels) * self.side_pixels
            raise RecipeError(
                f"model.encoder.size: {size} pixels are no whole number of tokens, which are "
                f"{self.side_pixels} pixels wide in this model. Take {low} or {low + self.side_pixels}."
            )
        if len(windows) not in (0, 1, COLOUR_CHANNELS):
            raise RecipeError(
                f"model.encoder.windows: {len(windows)} windows, and a picture has 3 channels. Name one "
                "window, shown in grey, or three, for red, green and blue."
            )
        self.input = EncoderInput(
            size_zyx=(slices, size, size),
            spacing_mm_zyx=None,
            windows=windows,
            any_depth=True,
            multiple_px=self.side_pixels,
            colours=not windows,
        )
        square_width = config.hidden_size * config.spatial_merge_size**2
        deep = len(_deep_layers(config))
        self.width = square_width * (1 + deep)
        self._places: dict[Grid, PicturePlaces] = {}  # by patch grid
        attention = self.places(self.grid((1, size, size))).attention
        self.tower = AutoModel.from_config(config, dtype=torch.float32, attn_implementation=attention)
        self.tower.merger = _Unmerged(square_width)
        if deep:
            self.tower.deepstack_merger_list = nn.ModuleList(_Unmerged(square_width) for _ in range(deep))
        mean, spread = COLOURS[_kind(config.model_type)]
        # not on the meta device, and in no checkpoint: the configuration says them
        cpu = torch.device("cpu")
        self.register_buffer("mean", torch.tensor(mean, device=cpu).reshape(3, 1, 1), persistent=False)
        self.register_buffer("spread", torch.tensor(spread, device=cpu).reshape(3, 1, 1), persistent=False)

    def grid(self, size_zyx: Grid) -> Grid:
        """Return one layer of squares per slice."""
        depth, height, width = size_zyx
        if height % self.side_pixels or width % self.side_pixels:
            raise ValueError(
                f"the tower takes slices whose sides are multiples of {self.side_pixels} pixels (y, x), got "
                f"{(height, width)}"
            )
        return (depth, height // self.side_pixels, width // self.side_pixels)

    def places(self, grid_zyx: Grid) -> PicturePlaces:
        """Return where the patches of one slice of a grid lie."""
        grid = (1, *grid_zyx[1:])
        if grid not in self._places:
            merge = self.config.spatial_merge_size
            self._places[grid] = PicturePlaces(self.config, merge * grid[1], merge * grid[2])
        return self._places[grid]

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode each slice; features of inner layers stand behind those of the last one."""
        count, _, depth, *_ = volumes.shape
        grid = self.grid((depth, volumes.shape[3], volumes.shape[4]))
        slices = rearrange(volumes, "v c z y x -> (v z) c y x").expand(-1, COLOUR_CHANNELS, -1, -1)
        pixels = ((slices + 1) / 2 - self.mean.to(slices)) / self.spread.to(slices)
        config = self.tower.config
        patches = repeat(
            pixels,
            "s c (y m p) (x n q) -> (s y x m n) (c t p q)",
            t=config.temporal_patch_size,
            p=config.patch_size,
            q=config.patch_size,
            m=config.spatial_merge_size,
            n=config.spatial_merge_size,
        )
        output = self.tower(patches, **self.places(grid).inputs(count * depth, patches.device))
        layers = [output.pooler_output, *(getattr(output, "deepstack_features", None) or [])]
        features = torch.cat(layers, dim=-1).reshape(count, math.prod(grid), self.width)
        step = (1.0, float(self.side_pixels), float(self.side_pixels))
        return Patches(features, grid, patch_centres(grid, step, features.device))

    def mismatches(self, published: Mapping[str, Any], sizes: Collection[Grid]) -> Iterator[str]:
        """Compare colours and sizes with what the processor of the published model makes of a picture."""
        for key, buffer in (("image_mean", self.mean), ("image_std", self.spread)):
            ours, given = buffer.flatten(), published.get(key)
            if given is not None and not torch.allclose(torch.tensor(given), ours, atol=1e-3):
                yield (
                    f"model.encoder: the model's own processor has {key} = {given}, and native-vision takes "
                    f"{[round(item, 4) for item in ours.tolist()]}. Correct its preprocessor_config.json, "
                    "or take weights that were trained so."
                )
        size = published.get("size") or {}
        least = published.get("min_pixels") or size.get("shortest_edge", 0)
        most = published.get("max_pixels") or size.get("longest_edge", math.inf)
        for height, width in sorted({size[1:] for size in sizes}):
            if not least <= height * width <= most:
                yield (
                    f"model.view: pictures are shown in {height} x {width} = {height * width} pixels, and "
                    f"the model's own processor gives it {least} to {most}. Change model.encoder.size, or "
                    "least_pixels and most_pixels of the view."
                )

    def load_from(self, published: nn.Module) -> None:
        """Take the tower's weights."""
        _copy(self.tower, _tower_of(published, "model.encoder"), "model.encoder")


class NativeMerger(Bridge):
    """The layers by which the recipe's language model takes in what its own tower sees.

    For the features of `native-vision` alone. Qwen3-VL's also make what is added after the first layers.
    """

    published_names: ClassVar[Mapping[str, str]] = {"": "model.visual."}

    def __init__(self, width: int, text_width: int, grid_zyx: Grid, vision: Vision | None = None) -> None:
        """Build the mergers without weights; `load_from` takes them from the published model."""
        super().__init__()
        config = copy.deepcopy(_config(vision, "model.bridge"))
        self.deep_layers = len(_deep_layers(config))
        self.patch_width = config.hidden_size
        self.square_width = config.hidden_size * config.spatial_merge_size**2
        if width != self.square_width * (1 + self.deep_layers):
            raise RecipeError(
                f"model.bridge: native-merger takes the {self.square_width * (1 + self.deep_layers)} "
                f"features of encoder 'native-vision', and this encoder gives {width}. Use that encoder, or "
                "another bridge."
            )
        if text_width != config.out_hidden_size:
            raise RecipeError(
                f"model.bridge: native-merger gives embeddings of {config.out_hidden_size} numbers, and the "
                f"language model's have {text_width}. Use the language model that it was published with."
            )
        config.depth = 1  # the mergers alone are kept
        tower = AutoModel.from_config(config, dtype=torch.float32)
        self.merger = tower.merger
        self.deepstack_merger_list = tower.deepstack_merger_list if self.deep_layers else nn.ModuleList()

    def tokens(self, grid_zyx: Grid) -> int:
        """Return a token for each square."""
        return math.prod(grid_zyx)

    def token_grid(self, grid_zyx: Grid) -> Grid | None:
        """Return the grid of squares."""
        return grid_zyx

    def forward(self, patches: Patches) -> Float[Tensor, "volume token layers_and_text_width"]:
        """Merge each square to an embedding, and to one for each of the first layers."""
        volumes, squares, _ = patches.features.shape
        layers = torch.split(patches.features, self.square_width, dim=-1)
        merged = [
            merger(features.reshape(-1, self.patch_width))
            for merger, features in zip((self.merger, *self.deepstack_merger_list), layers, strict=True)
        ]
        return torch.cat(merged, dim=-1).reshape(volumes, squares, -1)

    def load_from(self, published: nn.Module) -> None:
        """Take the mergers' weights."""
        _copy(self, _tower_of(published, "model.bridge"), "model.bridge")


def _deep_layers(config: Any) -> list[int]:
    """Return the inner layers whose features a tower gives too."""
    return list(getattr(config, "deepstack_visual_indexes", None) or [])


def _config(vision: Vision | None, where: str) -> Any:
    if vision is None:
        raise RecipeError(
            f"{where}: the language model has no eyes of its own, as far as is known on this machine. Name "
            'a vision-language model, as language = { id = "Qwen/Qwen3-VL-4B-Instruct", revision = "…" } '
            "(if it is one, `hf download ID config.json` lets it be known), or another encoder and bridge."
        )
    kind = _kind(str(vision["model_type"]))
    if kind not in COLOURS:
        raise RecipeError(
            f"{where}: towers of type {vision['model_type']!r} are not known here; known: "
            f"{', '.join(sorted(COLOURS))}. Take such a model, or another encoder and bridge."
        )
    return AutoConfig.for_model(
        f"{kind}_vision", **{key: value for key, value in vision.items() if key != "model_type"}
    )


def _kind(model_type: str) -> str:
    """Return the kind of the whole model; published configurations call its tower so too."""
    return model_type.removesuffix("_vision")


def _tower_of(published: nn.Module, where: str) -> nn.Module:
    tower = getattr(getattr(published, "base_model", published), "visual", None)
    if not isinstance(tower, nn.Module):
        raise RunError(f"{where}: {type(published).__name__} has no vision tower to take weights from.")
    return tower


def _copy(target: nn.Module, tower: nn.Module, where: str) -> None:
    """Copy the weights that both have."""
    given = tower.state_dict()
    for name, weight in target.state_dict().items():
        result = given.get(name)
        if result is None or result.shape != weight.shape:
            shape = "is missing" if result is None else f"has shape {tuple(result.shape)}"
            raise RunError(
                f"{where}: {name} {shape} in the published model, and must have {tuple(weight.shape)}."
            )
        weight.copy_(result)
