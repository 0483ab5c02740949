"""A recipe's model without weights, and what memory depends on in its language model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from evidcore.contracts import Grid
from evidcore.model import parts
from evidcore.model.processor import VolumeProcessor
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import weightless_processor
from evidcore.runs.dry_run import Parts, meta_parts

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
        keys = int(getattr(config, "num_key_value_heads", None) or heads)
        return cls(
            layers=int(config.num_hidden_layers),
            width=int(config.hidden_size),
            query_width=heads * head,
            key_width=keys * head,
            inner_width=int(config.intermediate_size),
            vocabulary=int(config.vocab_size),
        )

    def matrices(self) -> Matrices:
        """Return the (in, out) of a layer's seven matrices."""
        h, q, k, f = self.width, self.query_width, self.key_width, self.inner_width
        return ((h, q), (h, k), (h, k), (q, h), (h, f), (h, f), (f, h))

    @property
    def layer_matrices(self) -> int:
        """Return the parameters of a layer's matrices."""
        return sum(before * after for before, after in self.matrices())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes(Parts):
    """A model on the meta device, with what a plan asks of it."""

    in_bfloat16: Mapping[str, int]  # of a part's parameters, where the recipe keeps it so
    in_4bit: int = 0  # of these
    processor: VolumeProcessor | None = None  # writes the prompts; None where the tokenizer is not here

    @functools.cached_property
    def text(self) -> TextShape | None:
        """The language model's numbers; None: only a download would tell."""
        return None if self.config is None else TextShape.of(self.config)

    @property
    def patch_grid_zyx(self) -> Grid:
        """The patches of one usual input."""
        return self.encoder.grid(self.encoder.input.size_zyx)

    @property
    def visual_tokens(self) -> int:
        """The visual tokens of one usual input."""
        return self.bridge.tokens(self.patch_grid_zyx)


def shapes(assembly: Assembly) -> Shapes:
    """Build a recipe's model without weights. A counted vocabulary needs the data."""
    made, model = meta_parts(assembly), assembly.recipe.model
    by_name = {"encoder": made.encoder, "bridge": made.bridge, "language": made.language}
    packed = parts.packable(made.language[:1]).values() if model.load_in_4bit else ()  # the head is whole
    tokenizer = assembly.language.tokenizer(assembly.corpus)
    return Shapes(
        **{item.name: getattr(made, item.name) for item in dataclasses.fields(made)},
        in_bfloat16={part: parts.keep_in_bfloat16(part, by_name[part]) for part in model.bfloat16},
        in_4bit=sum(layer.weight.numel() for layer in packed),
        processor=None if tokenizer is None else weightless_processor(assembly, tokenizer, made.encoder),
    )
