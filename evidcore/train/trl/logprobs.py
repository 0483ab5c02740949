"""Scoring of sampled answers: groups share the computation of their prompt wherever that is exact."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evidcore.model.packing import can_pack, pack
from evidcore.model.vlm import VolumeVLM


def can_share(
    model: VolumeVLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    after: int,
    answers: int,
    num_images: list[int] | None,
) -> bool:
    """Tell whether rows are whole groups that differ in nothing before their last `after` tokens."""
    rows = input_ids.shape[0]
    if rows % answers or not can_pack(model):
        return False
    before = input_ids[:, :-after].unflatten(0, (-1, answers))
    seen = attention_mask[:, :-after].unflatten(0, (-1, answers))
    if not bool((before == before[:, :1]).all()) or not bool((seen == seen[:, :1]).all()):
        return False
    # a tool's images lie in the answers; their tokens would have to be dealt out place by place
    return not bool((input_ids[:, -after:] == model.config.image_token_id).any())


def shared_log_probs(
    model: Any,
    vlm: VolumeVLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    after: int,
    answers: int,
    pixel_values: Tensor | None,
    num_images: list[int] | None,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities and entropies (row, after), 0 where there is no token.

    Args:
        model: what is called, with trl's fused head: `vlm`, or what wraps it.
        vlm: the model itself.
        input_ids: left-padded prompt and right-padded answer of each row.
        attention_mask: 1 on tokens.
        after: how many of the last places belong to the answer.
        answers: rows per prompt.
        pixel_values: images of all rows, in order.
        num_images: images of each row.
    """
    shape = (-1, answers)
    additive = vlm.dtype if vlm.config._attn_implementation == "eager" else None
    packed = pack(
        input_ids[::answers, :-after],
        attention_mask[::answers, :-after],
        input_ids[:, -after:].unflatten(0, shape),
        attention_mask[:, -after:].unflatten(0, shape),
        additive=additive,
    )
    extra: dict[str, Tensor] = {}
    if pixel_values is not None and num_images is not None:
        ends = torch.tensor([0, *num_images]).cumsum(0).tolist()
        own = [pixel_values[ends[row] : ends[row + 1]] for row in range(0, len(num_images), answers)]
        extra["pixel_values"] = torch.cat(own)
    output = model(
        input_ids=packed.input_ids,
        attention_mask=packed.attention_mask,
        position_ids=packed.position_ids,
        labels=packed.labels,
        shift_labels=packed.labels,
        fused_lm_head=True,
        skip_positions=packed.skip,
        **extra,
    )
    log_probs = output.log_probs.reshape(-1, after)
    entropy = None if output.entropy is None else output.entropy.reshape(-1, after)
    return log_probs, entropy
