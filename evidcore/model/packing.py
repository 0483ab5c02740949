"""Answers to one prompt in one row: the prompt is computed once, each answer sees it and itself alone.

The prompts' positions come from the model (`VolumeVLM.positions`): where they are multimodal they have axes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from evidcore.model.packed_attention import Layout, attention_inputs


@dataclasses.dataclass(frozen=True)
class Packed:
    """Rows `[prompt but its last token | last, answer 1 but its last | last, answer 2 but its last | …]`.

    So each place after the prompt predicts one token; `labels` has those, -100 where there is none. The first
    `skip` places predict nothing.
    """

    input_ids: Int[Tensor, "prompt place"]
    position_ids: Int[Tensor, "*axis prompt place"]
    labels: Int[Tensor, "prompt scored"]
    layout: Layout

    @property
    def skip(self) -> int:
        """Return the number of places that predict nothing."""
        return self.layout.skip

    def inputs(self, model: Any) -> dict[str, Any]:
        """Return what `model` takes, but for what it is shown."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "use_cache": False,
            **attention_inputs(model, self.layout),
        }


def pack(
    prompt_ids: Int[Tensor, "prompt before"],
    prompt_mask: Int[Tensor, "prompt before"],
    answer_ids: Int[Tensor, "prompt answer after"],
    answer_mask: Int[Tensor, "prompt answer after"],
    positions: Int[Tensor, "*axis prompt before"],
) -> Packed:
    """Lay prompts and their answers out in rows.

    Args:
        prompt_ids: left-padded.
        prompt_mask: 1 on tokens.
        answer_ids: right-padded.
        answer_mask: 1 on tokens.
        positions: of the prompts' tokens. Answers continue from the last one.
    """
    prompts, answers, length = answer_ids.shape
    # an answer's first place holds the prompt's last token
    last = prompt_ids[:, None, -1:].expand(-1, answers, -1)
    shifted = torch.cat([last, answer_ids[:, :, :-1]], dim=2)
    steps = torch.arange(length, device=positions.device).repeat(answers)
    return Packed(
        torch.cat([prompt_ids[:, :-1], shifted.reshape(prompts, -1)], dim=1),
        torch.cat([positions[..., :-1], positions[..., -1:] + steps], dim=-1),
        answer_ids.masked_fill(answer_mask == 0, -100).reshape(prompts, -1),
        Layout(prompt_mask[:, :-1].bool(), answers, length),
    )


def answer_log_probs(
    model: Any, packed: Packed, pixel_values: Tensor | None = None, **shown: Tensor
) -> Float[Tensor, "prompt answer after"]:
    """Return the log-probability in nats of each answer token, 0 where there is none.

    Args:
        model: a `VolumeVLM`, or another causal language model of transformers that can be packed.
        packed: rows.
        pixel_values: what the prompts show, each prompt's once, in order.
        shown: further inputs of that kind, such as `image_grid_thw`.
    """
    if pixel_values is not None:
        shown["pixel_values"] = pixel_values
    kept = packed.labels.shape[1]
    logits = model(**packed.inputs(model), logits_to_keep=kept, **shown).logits.float()
    chosen = packed.labels.clamp(min=0).unsqueeze(-1)
    log_probs = logits.gather(-1, chosen).squeeze(-1) - logits.logsumexp(-1)
    scored: Tensor = log_probs.masked_fill(packed.labels < 0, 0.0)
    return scored.reshape(len(scored), packed.layout.answers, -1)
