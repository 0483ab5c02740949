"""Attention in rows `[prompt | answer 1 | … | answer G]`: an answer sees the prompt and itself, nothing else.

Under "sdpa" a row is taken apart: the prompt attends to itself, and all answers, as a batch, to the prompt's
keys and their own. So no answer is multiplied with another one only for a mask to throw the product away.
Under "flex_attention" the same is said by a block mask.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "evidcore_packed"
# by model_type of the language model: rotary positions that are given, no soft cap, no sinks
PLAIN = ("llama", "mistral", "qwen2", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where prompt and answers lie in a batch of packed rows."""

    prompt_valid: Bool[Tensor, "prompt skip"]  # tokens among the places before the answers
    answers: int  # of each prompt
    length: int  # places of each answer

    @property
    def skip(self) -> int:
        """Return the number of places before the answers."""
        return self.prompt_valid.shape[1]

    @functools.cached_property
    def is_padded(self) -> bool:
        """Tell whether prompts of different lengths stand together."""
        return not bool(self.prompt_valid.all())

    @functools.cached_property
    def prompt_mask(self) -> Bool[Tensor, "prompt one skip skip"] | None:
        """Return which place of a prompt sees which; None: all that came before."""
        if not self.is_padded:
            return None
        before = torch.ones(self.skip, self.skip, dtype=torch.bool, device=self.prompt_valid.device).tril()
        seen = before & self.prompt_valid[:, None, None]
        return seen | torch.eye(self.skip, dtype=torch.bool, device=seen.device)  # padding sees itself

    @functools.cached_property
    def answer_mask(self) -> Bool[Tensor, "row one length place"]:
        """Return which places of the prompt, then of its own, each place of an answer sees.

        One row for all answers where nothing is padded, else one for each.
        """
        valid = self.prompt_valid.repeat_interleave(self.answers, 0) if self.is_padded else None
        own = torch.ones(self.length, self.length, dtype=torch.bool, device=self.prompt_valid.device).tril()
        prompt = own.new_ones(1, self.skip) if valid is None else valid
        rows = prompt.shape[0]
        return torch.cat(
            [
                prompt[:, None, None].expand(rows, 1, self.length, self.skip),
                own.expand(rows, 1, self.length, self.length),
            ],
            dim=-1,
        )

    def block_mask(self) -> BlockMask:
        """Return the whole of it for flex attention."""
        device = self.prompt_valid.device
        after = self.answers * self.length
        segment = torch.zeros(self.skip + after, dtype=torch.long, device=device)
        segment[self.skip :] = torch.arange(1, self.answers + 1, device=device).repeat_interleave(self.length)
        valid = torch.nn.functional.pad(self.prompt_valid, (0, after), value=True)
        size = len(segment)
        return create_block_mask(
            lambda row, head, place, other: (
                ((segment[other] == 0) | (segment[other] == segment[place]))
                & (other <= place)
                & valid[row, other]
            )
            | (other == place),
            len(valid), None, size, size, device=str(device),
        )  # fmt: skip


def unusual(config: Any) -> str:
    """Return in what a language model does not attend plainly to all that came before; empty if it does."""
    if config.model_type not in PLAIN:
        return f"language models of type {config.model_type!r} are not among {', '.join(PLAIN)}"
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and set(kinds) != {"full_attention"}:
        return f"its layers attend by {', '.join(sorted(set(kinds)))}"
    if kinds is None and getattr(config, "sliding_window", None) is not None:
        return f"its layers attend within a window of {config.sliding_window} tokens"
    return ""


def obstacle(model: Any) -> str:
    """Return why rows cannot be packed for a transformers model, empty where they can."""
    config = model.get_decoder().config
    why_not = unusual(config)
    if not why_not and config._attn_implementation not in ("sdpa", "flex_attention", NAME):
        return f"its attention is {config._attn_implementation!r}, neither 'sdpa' nor 'flex_attention'"
    return why_not


def attention_inputs(model: Any, layout: Layout) -> dict[str, Any]:
    """Return what a model takes to attend in packed rows, by name.

    A model under "sdpa" is left with an implementation that also knows packed rows: gradient checkpointing
    attends again during the backward pass.
    """
    decoder = model.get_decoder()
    if decoder.config._attn_implementation == "flex_attention":
        return {"attention_mask": layout.block_mask()}
    if decoder.config._attn_implementation != NAME:
        decoder.set_attn_implementation(NAME)
    # transformers makes no mask of its own where it is given one of four dimensions
    return {"attention_mask": layout.answer_mask, "packed": layout}


def attend(
    module: Any,
    query: Float[Tensor, "row head place size"],
    key: Float[Tensor, "row kept place size"],
    value: Float[Tensor, "row kept place size"],
    attention_mask: Tensor | None,
    *,
    packed: Layout | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "row place head size"], None]:
    """Attend as "sdpa" does; in packed rows where `packed` says how they are laid out."""
    if packed is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    skip, answers = packed.skip, packed.answers

    def own(states: Tensor) -> Tensor:
        """Bring (prompt, head, place, size) to (prompt and answer, head, place of the answer, size)."""
        prompts, heads, _, size = states.shape
        by_answer = states[:, :, skip:].reshape(prompts, heads, answers, packed.length, size)
        return by_answer.transpose(1, 2).flatten(0, 1)

    def with_prompt(states: Tensor) -> Tensor:
        """Put the prompt's keys or values before those of each answer."""
        prompt = states[:, None, :, :skip].expand(-1, answers, -1, -1, -1).flatten(0, 1)
        return torch.cat([prompt, own(states)], dim=2)

    of_answers, _ = sdpa_attention_forward(
        module, own(query), with_prompt(key), with_prompt(value), packed.answer_mask, **kwargs
    )
    outputs = [of_answers.reshape(len(query), answers * packed.length, *of_answers.shape[2:])]
    if skip:
        of_prompt, _ = sdpa_attention_forward(
            module, *(states[:, :, :skip] for states in (query, key, value)), packed.prompt_mask, **kwargs
        )
        outputs.insert(0, of_prompt)
    return torch.cat(outputs, dim=1), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
