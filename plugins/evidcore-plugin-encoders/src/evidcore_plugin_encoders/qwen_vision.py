"""The vision towers of Qwen2.5-VL and Qwen3-VL, taken apart: the tower, and the mergers after it."""

import copy
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModel
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from evidcore.contracts import Grid
from evidcore.errors import RecipeError

# mean and spread of colours on 0..1 that each kind of tower was trained with
GREY = ([0.5] * 3, [0.5] * 3)
COLOURS = {"qwen2_5_vl": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD), "qwen3_vl": GREY, "qwen3_vl_moe": GREY}
USUAL_PIXELS = 256  # of a slice's side
BATCHED = "evidcore_pictures"


def qwen_config(vision: Mapping[str, Any] | None) -> Any | None:
    """Return the configuration of a tower that is known here, None of any other."""
    given = {key: value for key, value in (vision or {}).items() if key != "published"}
    kind = str(given.pop("model_type", "")).removesuffix("_vision")  # published as that of the whole model
    return AutoConfig.for_model(f"{kind}_vision", **given) if kind in COLOURS else None


class QwenTower(nn.Module):
    """The tower without its mergers; features of inner layers stand behind those of the last one."""

    def __init__(self, config: Any) -> None:
        """Build it without weights."""
        super().__init__()
        self.multiple_px = config.patch_size * config.spatial_merge_size
        has_windows = hasattr(config, "window_size")
        self.visual = AutoModel.from_config(
            config, dtype=torch.float32, attn_implementation="sdpa" if has_windows else BATCHED
        )
        in_square = config.spatial_merge_size**2
        unmerged = Rearrange("(square patch) width -> square (patch width)", patch=in_square)
        self.visual.merger = unmerged
        deep = getattr(self.visual, "deepstack_merger_list", ())
        if deep:
            self.visual.deepstack_merger_list = nn.ModuleList(unmerged for _ in deep)
        self.width = in_square * config.hidden_size * (1 + len(deep))
        colours = COLOURS[config.model_type.removesuffix("_vision")]
        # of each colour; no buffers: a model is built on the meta device too
        self.mean, self.spread = torch.tensor(colours, device="cpu").reshape(2, 3, 1, 1)

    def side(self, size: int | None) -> int:
        """Return the height and width of a slice in pixels."""
        multiple = self.multiple_px
        size = size or round(USUAL_PIXELS / multiple) * multiple
        if size % multiple:
            low = max(1, size // multiple) * multiple
            raise RecipeError(
                f"model.encoder.size: {size} pixels are no whole number of tokens, which are {multiple} "
                f"pixels wide in this model. Take {low} or {low + multiple}."
            )
        return int(size)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of squares of a picture."""
        if height % self.multiple_px or width % self.multiple_px:
            raise ValueError(
                f"the tower takes slices whose sides are multiples of {self.multiple_px} pixels (y, x), got "
                f"{(height, width)}"
            )
        return height // self.multiple_px, width // self.multiple_px

    def forward(self, pictures: Float[Tensor, "picture 3 y x"]) -> Float[Tensor, "picture square width"]:
        """Encode pictures on 0..1."""
        config, count = self.visual.config, len(pictures)
        sides = (pictures.shape[2] // config.patch_size, pictures.shape[3] // config.patch_size)
        patches = repeat(
            (pictures - self.mean.to(pictures)) / self.spread.to(pictures),
            "s c (y m p) (x n q) -> (s y x m n) (c t p q)",
            p=config.patch_size, q=config.patch_size, t=config.temporal_patch_size,
            m=config.spatial_merge_size, n=config.spatial_merge_size,
        )  # fmt: skip
        # as frames of one film: each attends to itself, and their places are worked out together
        given: dict[str, Any] = {"grid_thw": torch.tensor([[count, *sides]], device=patches.device)}
        if config._attn_implementation == BATCHED:
            given |= {"pictures": count, "cu_seqlens": torch.tensor([0, len(patches)], device="cpu")}
        output = self.visual(patches, **given)
        layers = [output.pooler_output, *(getattr(output, "deepstack_features", None) or [])]
        return torch.cat(layers, dim=-1).reshape(count, -1, self.width)

    def mismatches(self, published: Mapping[str, Any], sizes: Collection[Grid]) -> Iterator[str]:
        """Compare colours and sizes with what the processor of the published model makes of a picture."""
        for key, buffer in (("image_mean", self.mean), ("image_std", self.spread)):
            ours = buffer.flatten()
            given = published.get(key, ours.tolist())
            are_three = isinstance(given, list) and len(given) == len(ours) and _are_numbers(*given)
            if not are_three or not torch.allclose(ours.new_tensor(given), ours, atol=1e-3):
                yield (
                    f"model.encoder: the model's own processor has {key} = {given}, and published-vision "
                    f"takes {[round(item, 4) for item in ours.tolist()]}. Correct its "
                    "preprocessor_config.json, or take weights that were trained so."
                )
        size = published.get("size")
        size = size if isinstance(size, Mapping) else {}
        least = published.get("min_pixels") or size.get("shortest_edge", 0)
        most = published.get("max_pixels") or size.get("longest_edge", math.inf)
        for height, width in sorted({size[1:] for size in sizes}):
            if not _are_numbers(least, most) or not least <= height * width <= most:
                yield (
                    f"model.view: pictures are shown in {height} x {width} = {height * width} pixels, and "
                    f"the model's own processor gives it {least} to {most}. Change model.encoder.size, or "
                    "least_pixels and most_pixels of the view."
                )


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


class QwenMergers(nn.Module):
    """The layers that make embeddings of the tower's features, and what is added after the first layers."""

    def __init__(self, config: Any) -> None:
        """Build them without weights."""
        super().__init__()
        alone = copy.deepcopy(config)
        alone.depth = 1
        tower = AutoModel.from_config(alone, dtype=torch.float32)
        self.merger = tower.merger
        self.deepstack_merger_list = getattr(tower, "deepstack_merger_list", nn.ModuleList())
        self.patch_width, self.text_width = config.hidden_size, config.out_hidden_size
        self.deep_layers = len(self.deepstack_merger_list)
        self.width = self.patch_width * config.spatial_merge_size**2 * (1 + self.deep_layers)

    def forward(
        self, features: Float[Tensor, "volume square width"]
    ) -> Float[Tensor, "volume square layers"]:
        """Merge each square to an embedding, and to one for each of the first layers."""
        merged = [
            merger(layer.reshape(-1, self.patch_width))
            for merger, layer in zip(
                [self.merger, *self.deepstack_merger_list], features.chunk(1 + self.deep_layers, dim=-1),
                strict=True,
            )
        ]  # fmt: skip
        return torch.cat(merged, dim=-1).reshape(*features.shape[:2], -1)


def attend(
    module: Any, *states: Float[Tensor, "one head place size"], pictures: int, **kwargs: Any
) -> tuple[Float[Tensor, "one place head size"], None]:
    """Let each of several pictures of one size attend to itself, as a batch.

    transformers would call its attention for each apart, up to 1.7 times the time of a pass.
    """
    apart = (rearrange(item, "o h (n p) d -> (o n) h p d", n=pictures) for item in states)
    output, _ = sdpa_attention_forward(module, *apart, **kwargs)
    return rearrange(output, "(o n) p h d -> o (n p) h d", n=pictures), None


AttentionInterface.register(BATCHED, attend)
