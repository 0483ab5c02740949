"""A model's parts: encoder and bridge of a table, the part of a weight, matrices, evaluation mode."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from evidcore.contracts import Bridge, Encoder
from evidcore.registry import factory

Table = Mapping[str, Any]


def build_encoder(
    table: Table, vision: Table | None, *, where: str = "model.encoder", **given: Any
) -> Encoder:
    """Build the encoder of a recipe table, with fresh weights.

    Args:
        table: with `use` and its options.
        vision: the language model's own vision configuration, if it has one.
        where: what messages call the table.
        given: what else the core gives.
    """
    built: Encoder = factory.build("encoder", table, given={**given, "vision": vision}, where=where)
    return built


def build_bridge(
    table: Table, encoder: Encoder, text_width: int, vision: Table | None, *, where: str = "model.bridge"
) -> Bridge:
    """Build the bridge of a recipe table between `encoder` and a language model, with fresh weights."""
    given = {
        "width": encoder.width,
        "text_width": text_width,
        "grid_zyx": encoder.grid(encoder.input.size_zyx),
        "vision": vision,
    }
    built: Bridge = factory.build("bridge", table, given=given, where=where)
    return built


def part_of(name: str) -> str:
    """Return the part that a weight belongs to, by its name, whatever is wrapped around the model.

    A part may hold a module called like another part: the first name below `model.` decides.
    """
    bare = re.sub(r"_\w+_wrapped_module\.|_orig_mod\.", "", name)
    found = re.search(r"(?:^|\.)model\.(encoder|bridge|language_model)\.", bare)
    return found[1].removesuffix("_model") if found else "language"


def matrices_of(model: nn.Module) -> set[torch.Tensor]:
    """Return the weights of linear layers, the one that gives logits left out, as embeddings are."""
    head = getattr(model, "lm_head", None)
    return {
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Linear) and (head is None or module.weight is not head.weight)
    }


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Hold the module in evaluation mode, and give it back in the mode it had."""
    was = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was)
