"""Scorer `embedding`: how alike an encoder takes two texts to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Lt
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from evidcore.builtin.text_models import (
    Kept,
    Pretrained,
    Tokens,
    fits,
    load,
    look,
    most_tokens,
    padded,
    passes,
)
from evidcore.contracts import Scorer
from evidcore.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Vector = Float[Tensor, " width"]


class Embedding(Scorer):
    """Cosine c of two texts' embeddings, mapped to 0..1: (c - zero_at) / (1 - zero_at), never below 0.

    Encoders hardly tell a finding from its denial, and take any two reports to be alike: the cosine of
    unrelated ones may be 0.8. Measure it, and give it as `zero_at`; never let this be the only judge.

    Args:
        model: an encoder, such as sentence-transformers/all-MiniLM-L6-v2.
        pooling: a text's embedding is the "mean" over its tokens or that of its first token, "cls". Take what
            the encoder was trained for.
        zero_at: the cosine that counts as 0. At -1 texts that have nothing in common (c = 0) score 0.5.
    """

    def __init__(
        self,
        recipe_folder: Path,
        *,
        model: Pretrained,
        pooling: Literal["mean", "cls"] = "mean",
        zero_at: Annotated[float, Ge(-1), Lt(1)] = -1.0,
    ) -> None:
        self.who = f"scorer 'embedding' ({model})"
        self.named, self.recipe_folder, self.pooling, self.zero_at = model, recipe_folder, pooling, zero_at
        self._loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None
        self._kept: Kept[Vector | None] = Kept()  # by text

    def ready(self) -> None:
        """Look at the model's configuration and tokenizer; fetch them where they come from the Hub.

        Raises:
            DataError: if it cannot be used.
            RunError: if its device is not there.
        """
        self._tokenizer()

    def __call__(
        self,
        candidates: Sequence[str],
        references: Sequence[str],
        questions: Sequence[str] | None = None,
    ) -> Sequence[float | None]:
        """Return the agreement per pair; None where one says nothing, or is too long and the recipe says so.

        Raises:
            DataError: if the model cannot be used, or a text is too long.
        """
        vectors = self._kept.of([*candidates, *references], self._embed)
        pairs = zip(vectors[: len(candidates)], vectors[len(candidates) :], strict=True)
        return [self._score(one, other) for one, other in pairs]

    def _score(self, one: Vector | None, other: Vector | None) -> float | None:
        if one is None or other is None:
            return None
        cosine = min(1.0, float(one @ other))
        return max(0.0, (cosine - self.zero_at) / (1.0 - self.zero_at))

    def _embed(self, texts: list[str]) -> list[Vector | None]:
        """Return each text's embedding of length 1, None for white space."""
        model, tokenizer = self._model()
        most = most_tokens(self.named, model, tokenizer)
        places = [place for place, text in enumerate(texts) if text.strip()]
        tokens: list[Tokens] = [tokenizer(texts[place])["input_ids"] for place in places]
        read: list[tuple[int, Tokens]] = []
        for place, ids, is_short in zip(
            places, tokens, fits(tokens, most, self.named, self.who), strict=True
        ):
            if is_short:
                read.append((place, ids))
            elif self.named.too_long == "cut":
                read.append((place, tokenizer(texts[place], truncation=True, max_length=most)["input_ids"]))
        vectors: list[Vector | None] = [None] * len(texts)
        for group in passes([len(ids) for _, ids in read], self.named.tokens_per_pass):
            pooled = self._pooled(model, [read[one][1] for one in group], tokenizer.pad_token_id or 0)
            for one, vector in zip(group, pooled, strict=True):
                vectors[read[one][0]] = vector
        return vectors

    def _pooled(
        self, model: PreTrainedModel, texts: Sequence[Tokens], pad: int
    ) -> Float[Tensor, "text width"]:
        batch = padded(texts, pad, model.device)
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state.float()
        if self.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            counts = batch["attention_mask"][..., None]
            pooled = (hidden * counts).sum(dim=1) / counts.sum(dim=1)
        return functional.normalize(pooled.double(), dim=-1).cpu()

    def _model(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """Return model and tokenizer, loaded when first asked for."""
        if self._loaded is None:
            tokenizer = self._tokenizer()
            # many encoders are published without the pooler, which is not used here
            model = load("AutoModel", self.named, self.recipe_folder, self.who, unused=["pooler."])
            self._loaded = model, tokenizer
        return self._loaded

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        config, tokenizer = look(self.named, self.recipe_folder, self.who)
        if config.is_encoder_decoder:
            raise DataError(
                f"{self.who}: is an encoder with a decoder ({config.model_type}). Name an encoder, such as "
                "one of sentence-transformers."
            )
        return tokenizer
