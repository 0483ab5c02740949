"""Rotary positions of prompts: those of Qwen-VL count time, height and width where an image lies."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

MULTIMODAL = ("qwen2_5_vl", "qwen3_vl")  # by model_type of the whole model


def prompt_positions(
    model: Any,
    prompt_ids: Int[Tensor, "prompt before"],
    prompt_mask: Int[Tensor, "prompt before"],
    **grids: Tensor,
) -> Int[Tensor, "*axis prompt before"]:
    """Return the position of each token, (prompt, before), or (axis, prompt, before) for a Qwen-VL model.

    Args:
        model: a `VolumeVLM`, or a Qwen2.5-VL or Qwen3-VL model of transformers.
        prompt_ids: left-padded.
        prompt_mask: 1 on tokens.
        grids: as their processor gives them: `image_grid_thw` and `video_grid_thw` (patches in time, height
            and width), `second_per_grid_ts`.

    Raises:
        ValueError: if a prompt ends within an image, behind which a position is not the last one plus 1.
    """
    if model.config.model_type not in MULTIMODAL:
        return (prompt_mask.cumsum(1) - 1).clamp(min=0)
    kinds = torch.zeros_like(prompt_ids)  # 0 text, 1 image, 2 video
    kinds[prompt_ids == model.config.image_token_id] = 1
    kinds[prompt_ids == model.config.video_token_id] = 2
    for row, kind in enumerate(kinds[:, -1].tolist()):
        if kind:
            raise ValueError(
                f"prompt {row} ends with token {int(prompt_ids[row, -1])} of an image or video; let text "
                "follow, as chat templates do, so that answers can be laid behind it."
            )
    positions: Tensor
    positions, _ = model.model.get_rope_index(
        prompt_ids, mm_token_type_ids=kinds, attention_mask=prompt_mask, **grids
    )
    return positions
