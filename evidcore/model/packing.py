"""Answers to one prompt in one row: the prompt is computed once, each answer sees it and itself alone."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from evidcore.model.vlm import VolumeVLM


@dataclasses.dataclass(frozen=True)
class Packed:
    """Rows `[prompt but its last token | last, answer 1 but its last | last, answer 2 but its last | ...]`.

    So each place after the prompt predicts one token; `labels` has those, -100 where there is none. The first
    `skip` positions predict nothing.
    """

    input_ids: Int[Tensor, "prompt position"]
    attention_mask: Tensor  # (prompt, 1, position, position)
    position_ids: Int[Tensor, "prompt position"]
    labels: Int[Tensor, "prompt scored"]
    skip: int


def can_pack(model: VolumeVLM) -> bool:
    """Tell whether the language model takes a mask of its own and attends to everything before a token."""
    config = model.config.text_config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return model.config._attn_implementation in ("sdpa", "eager") and kinds == {"full_attention"}


def pack(
    prompt_ids: Int[Tensor, "prompt before"],
    prompt_mask: Int[Tensor, "prompt before"],
    answer_ids: Int[Tensor, "prompt answer after"],
    answer_mask: Int[Tensor, "prompt answer after"],
    *,
    additive: torch.dtype | None = None,
) -> Packed:
    """Lay left-padded prompts and their right-padded answers out in rows.

    Args:
        prompt_ids: left-padded.
        prompt_mask: 1 on tokens.
        answer_ids: right-padded.
        answer_mask: 1 on tokens.
        additive: give the mask as numbers of this type to add (eager attention); None: as booleans.
    """
    prompts, answers, length = answer_ids.shape
    skip = prompt_ids.shape[1] - 1
    last = prompt_ids[:, None, -1:].expand(-1, answers, -1)
    shifted = torch.cat([last, answer_ids[:, :, :-1]], dim=2)
    input_ids = torch.cat([prompt_ids[:, :-1], shifted.reshape(prompts, -1)], dim=1)
    # an answer's first place holds the prompt's last token; the place after answer token t is there if token
    # t is
    there = torch.cat([torch.ones_like(answer_mask[:, :, :1]), answer_mask[:, :, :-1]], dim=2)
    valid = torch.cat([prompt_mask[:, :-1], there.reshape(prompts, -1)], dim=1).bool()
    first = prompt_mask.sum(1, keepdim=True) - 1
    places = torch.arange(length, device=input_ids.device).repeat(answers)
    position_ids = torch.cat(
        [(prompt_mask[:, :-1].cumsum(1) - 1).clamp(min=0), first + places[None]],
        dim=1,
    )
    allowed = _visible(skip, answers, length, input_ids.device)[None] & valid[:, None, :]
    allowed |= torch.eye(input_ids.shape[1], dtype=torch.bool, device=input_ids.device)  # no row may be empty
    mask = allowed[:, None]
    if additive is not None:
        mask = torch.zeros(mask.shape, dtype=additive, device=mask.device).masked_fill(
            ~mask, torch.finfo(additive).min
        )
    labels = answer_ids.masked_fill(answer_mask == 0, -100).reshape(prompts, -1)
    return Packed(input_ids, mask, position_ids, labels, skip)


def _visible(skip: int, answers: int, length: int, device: torch.device) -> Bool[Tensor, "position position"]:
    """Return which place sees which: the prompt, and what came before in the same answer."""
    segment = torch.cat([torch.zeros(skip), torch.arange(1, answers + 1).repeat_interleave(length)]).to(
        device
    )
    place = torch.arange(len(segment), device=device)
    same = (segment[None, :] == 0) | (segment[None, :] == segment[:, None])
    return same & (place[None, :] <= place[:, None])


def answer_log_probs(
    model: VolumeVLM, packed: Packed, pixel_values: Tensor | None, answers: int
) -> Float[Tensor, "prompt answer after"]:
    """Return the log-probability in nats of each answer token, 0 where there is none."""
    logits = model(
        input_ids=packed.input_ids,
        attention_mask=packed.attention_mask,
        position_ids=packed.position_ids,
        pixel_values=pixel_values,
        skip_positions=packed.skip,
        use_cache=False,
    ).logits.float()
    chosen = packed.labels.clamp(min=0).unsqueeze(-1)
    log_probs = logits.gather(-1, chosen).squeeze(-1) - logits.logsumexp(-1)
    scored: Tensor = log_probs.masked_fill(packed.labels < 0, 0.0)
    return scored.reshape(len(scored), answers, -1)
