"""The weights of a model that are matrices: those that Muon trains."""

from __future__ import annotations

import torch
from torch import nn


def matrices_of(model: nn.Module) -> set[torch.Tensor]:
    """Return the weights of linear layers, the one that gives logits left out, as embeddings are."""
    head = getattr(model, "lm_head", None)
    return {
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Linear) and (head is None or module.weight is not head.weight)
    }
