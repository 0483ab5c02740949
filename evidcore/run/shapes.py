"""The parts of a recipe's model without weights, what they weigh, and what each stage trains of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from evidcore.contracts import Bridge, Encoder, Grid
from evidcore.model.language import load_language
from evidcore.recipe import Fit, Grpo, Sft, Stage
from evidcore.run import model as models
from evidcore.run.model import UNKNOWN_TEXT_WIDTH, Standing
from evidcore.run.parts import Parts

# the matrices that LoRA is added to, each as (in, out)
Matrices = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextShape:
    """What memory depends on in a language model of the Llama kind."""

    layers: int
    width: int
    query_width: int  # heads times their width
    key_width: int  # of keys, and of values: fewer heads
    inner_width: int  # of the MLP
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> TextShape:
        """Read it from a transformers text configuration."""
        heads = int(config.num_attention_heads)
        head = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        return cls(
            layers=int(config.num_hidden_layers),
            width=int(config.hidden_size),
            query_width=heads * head,
            key_width=int(getattr(config, "num_key_value_heads", None) or heads) * head,
            inner_width=int(config.intermediate_size),
            vocabulary=int(config.vocab_size),
        )

    def matrices(self) -> Matrices:
        """Return the (in, out) of a layer's seven matrices."""
        h, q, k, f = self.width, self.query_width, self.key_width, self.inner_width
        return ((h, q), (h, k), (h, k), (q, h), (h, f), (h, f), (f, h))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes:
    """Encoder and bridge on the meta device; the language model's numbers where they are known."""

    encoder: Encoder
    bridge: Bridge
    text: TextShape | None  # None: only a download would tell
    parameters: Mapping[str, int | None]  # by part

    @property
    def patch_grid_zyx(self) -> Grid:
        """The patches of one usual input."""
        return self.encoder.grid(self.encoder.input.size_zyx)

    @property
    def visual_tokens(self) -> int:
        """The visual tokens of one usual input."""
        return self.bridge.tokens(self.patch_grid_zyx)

    def trained(self, stage: Stage) -> int | None:
        """Return how many parameters a stage trains; None where a part's size is not known."""
        if isinstance(stage, Fit):
            return self.parameters.get(stage.component.removeprefix("model."))
        if not isinstance(stage, Sft | Grpo):
            return 0
        counts = [self.parameters[part] for part in stage.train if part != "language" or stage.lora is None]
        if stage.lora is not None:
            counts.append(None if self.text is None else adapter_parameters(self.text, stage.lora.rank))
        return None if None in counts else sum(count or 0 for count in counts)

    def whole(self) -> int | None:
        """Return the parameters of the whole model."""
        counts = list(self.parameters.values())
        return None if None in counts else sum(count or 0 for count in counts)


def shapes(parts: Parts) -> Shapes:
    """Build a recipe's model without weights. A tiny language model's vocabulary needs the data."""
    source = models.language_source(parts, Standing())
    width = models.text_width(parts)
    text: TextShape | None = None
    language: int | None = None
    with torch.device("meta"):
        encoder = models.encoder(parts, Standing())
        bridge = models.bridge(parts, encoder, width or UNKNOWN_TEXT_WIDTH)
    if "config" in source:
        model, _ = load_language(source, texts=models.texts(parts), phrases=parts.findings)
        text, language = TextShape.of(model.config), size(model)
    elif width is not None:
        config = models.published_config(source)
        of_text = config.get_text_config()
        text = TextShape.of(of_text)
        with torch.device("meta"):
            language = size(AutoModel.from_config(of_text))
        if not config.tie_word_embeddings:
            language += text.vocabulary * text.width
    return Shapes(
        encoder=encoder,
        bridge=bridge,
        text=text,
        parameters={
            "encoder": size(encoder),
            "bridge": size(bridge) if width is not None else None,
            "language": language,
        },
    )


def size(module: nn.Module) -> int:
    """Return a module's parameters; tied ones count once."""
    return sum(weight.numel() for weight in module.parameters())


def adapter_parameters(text: TextShape, rank: int) -> int:
    """Return what LoRA adds: for each matrix a (rank, in) and an (out, rank)."""
    return text.layers * sum(rank * (before + after) for before, after in text.matrices())
