"""An encoder of transformers that gives hidden states of texts, loaded when the first text is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from evidcore.api import DataError
from evidcore_plugin_reports.text_models import (
    Pretrained,
    Tokens,
    load,
    look,
    most_tokens,
    padded,
    passes,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

States = Float[Tensor, "token width"]


class TextEncoder:
    """A pretrained encoder without a head.

    Args:
        named: what the recipe says of it.
        recipe_folder: where a relative folder starts.
        who: whom messages speak of, with the model.
    """

    def __init__(self, named: Pretrained, recipe_folder: Path, who: str) -> None:
        self.named, self.recipe_folder, self.who = named, recipe_folder, who
        self._seen: tuple[Any, PreTrainedTokenizerBase] | None = None
        self._loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None

    def look(self) -> tuple[Any, PreTrainedTokenizerBase]:
        """Return configuration and tokenizer, without the weights; read once.

        Raises:
            DataError: if there are none, or if it is no encoder.
            RunError: if its device is not there.
        """
        if self._seen is None:
            config, tokenizer = look(self.named, self.recipe_folder, self.who)
            if config.is_encoder_decoder:
                raise DataError(
                    f"{self.who}: is an encoder with a decoder ({config.model_type}). Name an encoder, such "
                    "as one of sentence-transformers."
                )
            self._seen = config, tokenizer
        return self._seen

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return what cuts texts into tokens."""
        return self._both()[1]

    @property
    def most_tokens(self) -> int:
        """Return how many tokens it reads at once, special ones among them."""
        return most_tokens(self.named, *self._both())

    def states(self, texts: Sequence[Tokens], layer: int = -1) -> Iterator[tuple[int, States]]:
        """Yield place and hidden states of each text, short ones first, on the CPU in 32 bits.

        Args:
            texts: token ids, with the special ones.
            layer: which hidden states, 0 for the embeddings below the first layer, -1 for the last.
        """
        model, tokenizer = self._both()
        for group in passes([len(text) for text in texts], self.named.tokens_per_pass):
            batch = padded([texts[place] for place in group], tokenizer.pad_token_id or 0, model.device)
            with torch.inference_mode():
                if layer == -1:
                    hidden = model(**batch).last_hidden_state
                else:
                    hidden = model(**batch, output_hidden_states=True).hidden_states[layer]
            for place, rows in zip(group, hidden.float().cpu(), strict=True):
                yield place, rows[: len(texts[place])]

    def _both(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        if self._loaded is None:
            _, tokenizer = self.look()
            # many encoders are published without the pooler, which is not used here
            model = load("AutoModel", self.named, self.recipe_folder, self.who, unused=["pooler."])
            self._loaded = model, tokenizer
        return self._loaded
