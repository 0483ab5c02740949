"""What the vision towers of Qwen-VL take beside the patches of pictures, where all have one size."""

from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

NAME = "evidcore_pictures"


class PicturePlaces:
    """Where the patches of pictures of one size lie, as the towers ask for it.

    transformers works this out from the pictures' sizes anew in each pass, on the device, and lets each
    picture attend to itself in a call of its own. Here it is known of one picture, and repeated for several;
    and where all of a picture attends to all of it, the pictures are a batch.
    """

    def __init__(self, config: Any, rows: int, columns: int) -> None:
        """Work it out for a picture of `rows` x `columns` patches."""
        merge = config.spatial_merge_size
        self.grid = [1, rows, columns]
        self.patches, self.squares = rows * columns, rows * columns // merge**2
        has_windows = config.model_type == "qwen2_5_vl_vision"
        self.attention = "sdpa" if has_windows else NAME
        with torch.device("cpu"):
            grid = torch.tensor([self.grid])
            self.rows = {"position_ids": get_vision_position_ids(grid, merge)}
            if has_windows:
                self.order, edges = get_vision_window_index(
                    grid,
                    spatial_merge_size=merge,
                    window_size=config.window_size,
                    patch_size=config.patch_size,
                )
                self.windows = edges.diff().tolist()
            else:
                self.rows["interp_indices"], self.rows["interp_weights"] = (
                    get_vision_interpolation_indices_and_weights(
                        grid,
                        num_grid_per_side=int(config.num_position_embeddings**0.5),
                        mode="bilinear",
                        align_corners=True,
                        spatial_merge_size=merge,
                    )
                )

    def inputs(self, count: int, device: torch.device) -> dict[str, Any]:
        """Return what a tower takes beside the patches of `count` pictures."""
        result: dict[str, Any] = {"grid_thw": torch.tensor([self.grid] * count, device=device)}
        for name, rows in self.rows.items():
            result[name] = rows.repeat(count, 1).to(device)
        if self.attention == NAME:
            return {**result, "cu_seqlens": _edges([count * self.patches]), "pictures": count}
        first = self.squares * torch.arange(count).repeat_interleave(self.squares)
        return {
            **result,
            "window_index": (self.order.repeat(count) + first).to(device),
            "cu_seqlens": _edges([self.patches] * count),
            "cu_window_seqlens": _edges(self.windows * count),
        }


def _edges(lengths: list[int]) -> Any:
    """Return where stretches begin and end, as numpy: each layer asks for them as numbers.

    From a tensor on an accelerator it would wait for them each time.
    """
    return np.cumsum([0, *lengths], dtype=np.int32)


def attend(
    module: Any,
    query: Float[Tensor, "one head place size"],
    key: Float[Tensor, "one head place size"],
    value: Float[Tensor, "one head place size"],
    attention_mask: None,
    *,
    pictures: int,
    **kwargs: Any,
) -> tuple[Float[Tensor, "one place head size"], None]:
    """Let each of several pictures of one size attend to itself, as a batch."""
    states = (rearrange(item, "o h (n p) d -> (o n) h p d", n=pictures) for item in (query, key, value))
    output, _ = sdpa_attention_forward(module, *states, None, **kwargs)
    return rearrange(output, "(o n) p h d -> o (n p) h d", n=pictures), None


AttentionInterface.register(NAME, attend)
