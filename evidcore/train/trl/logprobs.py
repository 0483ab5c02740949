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
    pixel_values: Tensor | None = None,
    num_images: list[int] | None = None,
) -> bool:
    """Tell whether rows are whole groups that differ in nothing before their last `after` tokens.

    Args:
        model: whose attention computes a prompt for several answers.
        input_ids: prompt and answer of each row.
        attention_mask: 1 on tokens.
        after: how many of the last places belong to the answer.
        answers: rows per prompt.
        pixel_values: images of all rows, in order; equal texts may be asked about different volumes.
        num_images: images of each row.
    """
    rows = input_ids.shape[0]
    if rows % answers or not can_pack(model):
        return False
    before = input_ids[:, :-after].reshape(rows // answers, answers, -1)
    seen = attention_mask[:, :-after].reshape(rows // answers, answers, -1)
    if not bool((before == before[:, :1]).all()) or not bool((seen == seen[:, :1]).all()):
        return False
    if pixel_values is not None and num_images is not None:
        images = torch.split(pixel_values, num_images)
        if not all(torch.equal(one, images[row - row % answers]) for row, one in enumerate(images)):
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
    shape = (-1, answers, after)
    additive = vlm.dtype if vlm.config._attn_implementation == "eager" else None
    packed = pack(
        input_ids[::answers, :-after],
        attention_mask[::answers, :-after],
        input_ids[:, -after:].reshape(shape),
        attention_mask[:, -after:].reshape(shape),
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


def shared_scores(
    accelerator: Any,
    model: Any,
    vlm: VolumeVLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    after: int,
    answers: int,
    *,
    rows_per_pass: int | None,
    compute_entropy: bool,
    pixel_values: Tensor | None,
    num_images: list[int] | None,
) -> tuple[Tensor, Tensor | None, None]:
    """Return what trl's method does, a few whole groups at a time."""
    rows = input_ids.shape[0]
    step = max((rows_per_pass or rows) // answers, 1) * answers
    ends = [0] if num_images is None else torch.tensor([0, *num_images]).cumsum(0).tolist()
    log_probs, entropies = [], []
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        counts = None if num_images is None else num_images[start:stop]
        images = None if pixel_values is None else pixel_values[ends[start] : ends[stop]]
        with accelerator.autocast():
            found, entropy = shared_log_probs(
                model, vlm, input_ids[start:stop], attention_mask[start:stop], after, answers, images, counts
            )
        log_probs.append(found)
        if compute_entropy and entropy is not None:
            entropies.append(entropy)
    return torch.cat(log_probs), torch.cat(entropies) if entropies else None, None
