"""Attention for sampling many answers to each of a few prompts: a prompt's keys are held and read once.

The answers of a prompt stand together, equally many for each. Each new token attends to its prompt's keys,
which its siblings read in the same multiplication, and to the keys of its own answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import AttentionInterface, DynamicCache

from evidcore.model.packed_attention import unusual
from evidcore.model.vlm import VolumeVLM

NAME = "evidcore_shared_prefix"


class SharedPrefix:
    """Keys and values of prompts, and of the answers written so far."""

    def __init__(
        self, cache: DynamicCache, mask: Bool[Tensor, "prompt before"], answers: int, length: int
    ) -> None:
        """Take the prompts' cache; make room for `answers` to each of `length` tokens."""
        self.prompts = [(layer.keys, layer.values) for layer in cache.layers]
        first = self.prompts[0][0]
        self.padding = torch.zeros(mask.shape, dtype=first.dtype, device=first.device)
        self.padding = self.padding.masked_fill(~mask, torch.finfo(first.dtype).min)[:, None, None]
        self.answers, self.step = answers, 0
        rows = len(mask) * answers
        self.own = [
            tuple(kind.new_zeros(rows, kind.shape[1], length, kind.shape[3]) for kind in (keys, values))
            for keys, values in self.prompts
        ]


def fits(model: VolumeVLM) -> bool:
    """Tell whether the language model's attention is one that this module computes."""
    return not unusual(model.get_decoder().config)


@contextlib.contextmanager
def using(model: VolumeVLM) -> Iterator[None]:
    """Let the language model attend by this module."""
    config = model.model.language_model.config
    was = config._attn_implementation
    config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = was


def attend(
    module: Any,
    query: Float[Tensor, "row head one size"],
    key: Float[Tensor, "row kept one size"],
    value: Float[Tensor, "row kept one size"],
    attention_mask: Tensor | None,
    *,
    scaling: float,
    shared: SharedPrefix,
    **kwargs: Any,
) -> tuple[Float[Tensor, "row one head size"], None]:
    """Attend from one new token of each row, and keep its key and value."""
    (before_keys, before_values), (keys, values) = (
        shared.prompts[module.layer_idx],
        shared.own[module.layer_idx],
    )
    keys[:, :, shared.step] = key[:, :, 0]
    values[:, :, shared.step] = value[:, :, 0]
    keys, values = keys[:, :, : shared.step + 1], values[:, :, : shared.step + 1]
    rows, kept, _, size = key.shape
    prompts, answers = rows // shared.answers, shared.answers
    repeats = query.shape[1] // kept  # query heads per key head
    query = query.reshape(rows, kept, repeats, size) * scaling

    def by_prompt(per_row: Tensor) -> Tensor:
        """Bring (row, kept, repeat, x) to (prompt, kept, answer and repeat, x)."""
        width = per_row.shape[-1]
        by_group = per_row.reshape(prompts, answers, kept, repeats, width).transpose(1, 2)
        return by_group.reshape(prompts, kept, answers * repeats, width)

    def by_row(per_prompt: Tensor) -> Tensor:
        """Bring it back."""
        width = per_prompt.shape[-1]
        by_answer = per_prompt.reshape(prompts, kept, answers, repeats, width).transpose(1, 2)
        return by_answer.reshape(rows, kept, repeats, width)

    to_prompt = by_prompt(query) @ before_keys.transpose(2, 3) + shared.padding
    to_own = by_prompt(query @ keys.transpose(2, 3))
    weights = torch.cat([to_prompt, to_own], dim=-1).softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    before = to_prompt.shape[-1]
    of_prompt, of_own = weights[..., :before], weights[..., before:]
    output = by_row(of_prompt @ before_values) + by_row(of_own) @ values
    return output.reshape(rows, 1, kept * repeats, size), None


AttentionInterface.register(NAME, attend)
