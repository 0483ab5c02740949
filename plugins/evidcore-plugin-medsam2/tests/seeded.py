"""Models with seeded weights, for tests and benchmarks: what they find means nothing, that it agrees does."""

import hashlib
import math
from pathlib import Path

import numpy as np
import torch
from evidcore_plugin_medsam2.checkpoint import ENTRY, original_names
from evidcore_plugin_medsam2.weights import bare_model
from transformers import Sam2VideoConfig

CALM = 0.2  # of the usual size: queries and keys whose products are so small that attention is spread
SURELY_THERE = 6.0  # logit; an object that is always there gives masks to compare on every slice


def seeded_model(config, *, is_calm=False):
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


def small_config():
    """Return the configuration of a model of 128 px that tracks in milliseconds."""
    return Sam2VideoConfig.from_json_file(Path(__file__).with_name("small_config.json"))


SMALL_PX = small_config().image_size


def original_tensors(model):
    """Return the tensors of a model under the names of SAM 2.1, as a checkpoint holds them."""
    mask_layers = len(model.memory_encoder.mask_downsampler.layers)
    tensors = {}
    for name, value in model.state_dict().items():
        names = original_names(name, mask_layers)
        parts = value.split(1) if len(names) > 1 else [value]
        tensors |= {item: part.clone() for item, part in zip(names, parts, strict=True)}
    return tensors


def write_checkpoint(model, file):
    """Write a model as SAM 2.1's own code does."""
    torch.save({ENTRY: original_tensors(model)}, file)


def _seeded(name, shape):
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
