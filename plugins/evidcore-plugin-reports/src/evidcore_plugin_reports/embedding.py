"""Scorer `embedding`: how alike an encoder takes two texts to be."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from evidcore.api import Scorer
from evidcore_plugin_reports.text_cache import TextCache
from evidcore_plugin_reports.text_models import Pretrained, Tokens, encoder, fits, states

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

    detects_negation = False
    audit_exemption = "a language model reads every text"

    def __init__(
        self,
        recipe_folder: Path,
        *,
        model: Pretrained,
        pooling: Literal["mean", "cls"] = "mean",
        zero_at: Annotated[float, Ge(-1), Lt(1)] = -1.0,
    ) -> None:
        self.encoder = encoder(model, recipe_folder, f"scorer 'embedding' ({model})")
        self.pooling, self.zero_at = pooling, zero_at
        self._cache: TextCache[Vector | None] = TextCache()  # by text

    def ready(self) -> None:
        """Look at the model's configuration and tokenizer; fetch them where they come from the Hub."""
        _ = self.encoder.settings

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Return the agreement per pair; None where one says nothing, or is too long and the recipe says so.

        Raises:
            DataError: if the model cannot be used, or a text is too long.
        """
        vectors = self._cache.get([*candidates, *references], self._embed)
        pairs = zip(vectors[: len(candidates)], vectors[len(candidates) :], strict=True)
        return [self._score(item, other) for item, other in pairs]

    def _score(self, one: Vector | None, other: Vector | None) -> float | None:
        if one is None or other is None:
            return None
        cosine = min(1.0, float(one @ other))
        return max(0.0, (cosine - self.zero_at) / (1.0 - self.zero_at))

    def _embed(self, texts: list[str]) -> list[Vector | None]:
        """Return each text's embedding of length 1, None for white space."""
        tokenizer, most, named = self.encoder.tokenizer, self.encoder.most_tokens, self.encoder.named
        places = [place for place, text in enumerate(texts) if text.strip()]
        tokens: list[Tokens] = [tokenizer(texts[place])["input_ids"] for place in places]
        read: list[tuple[int, Tokens]] = []
        short = fits(tokens, most, named, self.encoder.who)
        for place, ids, is_short in zip(places, tokens, short, strict=True):
            if is_short:
                read.append((place, ids))
            elif named.too_long == "cut":
                read.append((place, tokenizer(texts[place], truncation=True, max_length=most)["input_ids"]))
        vectors: list[Vector | None] = [None] * len(texts)
        for item, hidden in states(self.encoder, [ids for _, ids in read]):
            pooled = hidden[0] if self.pooling == "cls" else hidden.mean(dim=0)
            vectors[read[item][0]] = functional.normalize(pooled.double(), dim=-1)
        return vectors
