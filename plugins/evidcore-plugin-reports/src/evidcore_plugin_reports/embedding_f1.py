"""Scorer `embedding-f1`: tokens of two texts matched by the similarity of their embeddings."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from evidcore.api import Scorer
from evidcore.errors import RecipeError
from evidcore_plugin_reports.text_models import Pretrained, States, encoder, states

PAIRS_AT_ONCE = 64  # bounds the memory: 128 texts of 500 tokens, 1024 wide, are 260 MB
_UNBOUNDED = 2**31 - 1  # tokenizers write 10^30, which is more than their own truncation takes


class EmbeddingF1(Scorer):
    """F1 of greedily matched token embeddings (BERTScore).

    Each token of a text takes the most similar token of the other, by cosine. Precision is the mean over the
    candidate's tokens, recall over the reference's; F1 is cut off at 0 and not rescaled to a baseline. Tokens
    are not weighed by rarity. A text longer than the model reads is read in pieces, to its end.

    A finding and its denial differ in one token and score high: never the only judge of a report.

    Args:
        model: an encoder. `most_tokens` is the size of a piece, and no text is too long.
        layer: which hidden states are compared, 0 for the embeddings below the first layer, -1 for the last.

    Source:
        Zhang et al. 2020, BERTScore, ICLR, arXiv:1904.09675, section 3.
    """

    detects_negation = False
    audit_exemption = "a language model reads every text"

    def __init__(self, recipe_folder: Path, *, model: Pretrained, layer: int = -1) -> None:
        self.encoder = encoder(model, recipe_folder, f"scorer 'embedding-f1' ({model})")
        if model.too_long != "refuse":
            raise RecipeError(
                f"{self.encoder.who}: model.too_long = {model.too_long!r} has no meaning, as long texts are "
                "read in pieces to their end. Leave it out."
            )
        self.layer = layer

    def ready(self) -> None:
        """Look at the model's configuration and tokenizer; fetch them where they come from the Hub."""
        config, _ = self.encoder.settings
        count = config.get_text_config().num_hidden_layers
        if not -count - 1 <= self.layer <= count:
            raise RecipeError(
                f"{self.encoder.who}: layer must be from {-count - 1} to {count}, as it has {count} layers "
                f"above its embeddings, got {self.layer}."
            )

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Return F1 per pair; 0 where one text alone is empty, 1 where both are."""
        self.ready()
        pairs = list(zip(candidates, references, strict=True))
        scores: list[float | None] = []
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            chosen = pairs[start : start + PAIRS_AT_ONCE]
            texts = list(dict.fromkeys(text for pair in chosen for text in pair))
            embedded = dict(zip(texts, self._embedded(texts), strict=True))
            scores += [greedy_f1(embedded[ours], embedded[theirs]) for ours, theirs in chosen]
        return scores

    def _embedded(self, texts: Sequence[str]) -> list[States]:
        """Return the unit-length embeddings of each text's tokens, special tokens left out."""
        rows = self.encoder.tokenizer(
            list(texts), truncation=True, max_length=min(self.encoder.most_tokens, _UNBOUNDED), stride=0,
            return_overflowing_tokens=True, return_special_tokens_mask=True,
        )  # fmt: skip
        is_word = [torch.tensor(row) == 0 for row in rows["special_tokens_mask"]]
        read = dict(states(self.encoder, rows["input_ids"], self.layer))
        pieces: list[list[States]] = [[] for _ in texts]
        for index, owner in enumerate(rows["overflow_to_sample_mapping"]):
            pieces[owner].append(read[index][is_word[index]])
        return [torch.nn.functional.normalize(torch.cat(piece), dim=-1) for piece in pieces]


def greedy_f1(ours: Float[Tensor, "token width"], theirs: Float[Tensor, "word width"]) -> float:
    """Return F1 of unit vectors, each matched to the most similar one of the other text, in 0..1."""
    if not len(ours) or not len(theirs):
        return float(len(ours) == len(theirs))
    cosines = ours @ theirs.T
    precision, recall = float(cosines.amax(1).mean()), float(cosines.amax(0).mean())
    if precision <= 0 or recall <= 0:
        return 0.0
    return min(1.0, 2 * precision * recall / (precision + recall))
