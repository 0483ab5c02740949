"""The model that the KL penalty is measured from: a copy of the policy as the stage starts."""

from __future__ import annotations

import copy
from typing import Any

from trl import GRPOConfig
from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

from evidcore.model.vlm import VolumeVLM


def reference_of(model: VolumeVLM, args: GRPOConfig) -> VolumeVLM:
    """Copy the model as it is now, ready for trl to score with; frozen parts are shared, not copied."""
    parts = [model.model.encoder, model.model.bridge, model.model.language_model, model.lm_head]
    frozen = [part for part in parts if not any(weight.requires_grad for weight in part.parameters())]
    memo: dict[int, Any] = {id(part): part for part in frozen}
    forward = model.__dict__.pop("forward", None)  # trl's, bound to the model that is trained
    reference = copy.deepcopy(model, memo)
    if forward is not None:
        model.__dict__["forward"] = forward
    own = {id(weight) for weight in model.parameters()}
    for weight in reference.parameters():
        if id(weight) not in own:
            weight.requires_grad_(False)
    if args.disable_dropout:
        disable_dropout_in_model(reference)
    add_fused_lm_head(reference, temperature=args.temperature, cast_lm_head_to_fp32=args.cast_lm_head_to_fp32)
    reference.eval()
    return reference
