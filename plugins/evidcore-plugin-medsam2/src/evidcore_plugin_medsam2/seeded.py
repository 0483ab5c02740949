"""Models with seeded weights, for tests and benchmarks: what they find means nothing, that it agrees does."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from evidcore_plugin_medsam2.checkpoint import ENTRY, original_names
from evidcore_plugin_medsam2.weights import bare_model

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Sam2VideoConfig, Sam2VideoModel

SMALL_PX = 128
CALM = 0.2  # of the usual size: queries and keys whose products are so small that attention is spread
SURELY_THERE = 6.0  # logit; an object that is always there gives masks to compare on every slice


def seeded_model(config: Sam2VideoConfig, *, is_calm: bool = False) -> Sam2VideoModel:
    """Return a model of which each weight depends on its name and shape alone.

    In a calm one queries and keys are small, so that attention is no switch which a rounding flips.
    """
    model = bare_model(config)
    state = {name: _seeded(name, tuple(held.shape)) for name, held in model.state_dict().items()}
    for name, weight in state.items() if is_calm else ():
        if weight.dim() > 1 and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight *= CALM
        elif weight.dim() > 1 and name.endswith("qkv.weight"):
            weight[: 2 * len(weight) // 3] *= CALM
    twice = "prompt_encoder.shared_embedding.positional_embedding"
    state["shared_image_embedding.positional_embedding"] = state[twice]
    state["mask_decoder.pred_obj_score_head.proj_out.bias"] = torch.full((1,), SURELY_THERE)
    model.load_state_dict(state)
    return model


def small_config() -> Sam2VideoConfig:
    """Return the configuration of a model of 128 px that tracks in milliseconds."""
    from transformers import (
        Sam2HieraDetConfig,
        Sam2VideoConfig,
        Sam2VideoMaskDecoderConfig,
        Sam2VideoPromptEncoderConfig,
        Sam2VisionConfig,
    )

    width = 128
    backbone = Sam2HieraDetConfig(
        image_size=[SMALL_PX, SMALL_PX],
        hidden_size=16,
        blocks_per_stage=[1, 1, 2, 1],
        embed_dim_per_stage=[16, 32, 64, 128],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        window_size_per_stage=[8, 4, 4, 4],
        global_attention_blocks=[3],
    )
    vision = Sam2VisionConfig(
        backbone_config=backbone,
        backbone_channel_list=[128, 64, 32, 16],
        backbone_feature_sizes=[[SMALL_PX // stride] * 2 for stride in (4, 8, 16)],
        fpn_hidden_size=width,
    )
    return Sam2VideoConfig(
        vision_config=vision,
        prompt_encoder_config=Sam2VideoPromptEncoderConfig(image_size=SMALL_PX, hidden_size=width),
        mask_decoder_config=Sam2VideoMaskDecoderConfig(
            hidden_size=width, mlp_dim=width, iou_head_hidden_dim=width
        ),
        image_size=SMALL_PX,
        memory_attention_hidden_size=width,
        memory_attention_num_layers=2,
        memory_attention_feed_forward_hidden_size=width,
        memory_attention_rope_feat_sizes=[SMALL_PX // 16] * 2,
        memory_encoder_hidden_size=width,
        mask_downsampler_embed_dim=width,
        memory_fuser_embed_dim=width,
        memory_fuser_intermediate_dim=width,
    )


def original_tensors(model: Sam2VideoModel) -> dict[str, Tensor]:
    """Return the tensors of a model under the names of SAM 2.1, as a checkpoint holds them."""
    mask_layers = len(model.memory_encoder.mask_downsampler.layers)
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        names = original_names(name, mask_layers)
        parts = value.split(1) if len(names) > 1 else [value]
        tensors |= {item: part.clone() for item, part in zip(names, parts, strict=True)}
    return tensors


def write_checkpoint(model: Sam2VideoModel, file: Path) -> None:
    """Write a model as SAM 2.1's own code does."""
    torch.save({ENTRY: original_tensors(model)}, file)


def _seeded(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a weight of about the size that training gives to its kind."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    drawn = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    if name.endswith(".scale"):
        return torch.from_numpy(0.3 + 0.05 * drawn)  # of a residual block
    if name.endswith("bias"):
        return torch.from_numpy(0.02 * drawn)
    if len(shape) == 1:
        return torch.from_numpy(1 + 0.05 * drawn)  # of a norm
    if any(part in name for part in ("embed", "token", "no_", "memory_temporal", "occlusion")):
        return torch.from_numpy((1.0 if "positional_embedding" in name else 0.5) * drawn)
    inputs = shape[0] if "upscale_conv" in name else math.prod(shape[1:])
    return torch.from_numpy(drawn / math.sqrt(inputs))
