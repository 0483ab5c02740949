"""Scorer `embedding-f1`: tokens of two texts matched by the similarity of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from evidcore.contracts import Scorer
from evidcore.errors import RecipeError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

_MOST_TOKENS = 512  # of one pass; longer texts are read in pieces


class EmbeddingF1(Scorer):
    """F1 of greedily matched token embeddings (BERTScore), from an encoder in a folder or the Hub's cache.

    Each token of a text takes the most similar token of the other, by cosine. Precision is the mean over the
    candidate's tokens, recall over the reference's; F1 is cut off at 0 and not rescaled to a baseline. Tokens
    are not weighed by rarity. A text longer than the model reads is read in pieces, to its end.

    A finding and its denial differ in one token and score high: never the only judge of a report. Nothing
    is downloaded here; a model that is not at hand is an error which says what to type.

    Args:
        folder: of a transformers model with its tokenizer, from the recipe's folder; or
        id: of a model on the Hugging Face Hub, with
        revision: its commit.
        layer: which hidden states are compared, 0 for the embeddings below the first layer, -1 for the last.
        texts_per_pass: how many texts (pieces of them) pass together.

    Source:
        Zhang et al. 2020, BERTScore, ICLR, arXiv:1904.09675, section 3.
    """

    def __init__(
        self,
        recipe_folder: Path | None = None,
        *,
        folder: str = "",
        id: str = "",
        revision: str = "",
        layer: int = -1,
        texts_per_pass: Annotated[int, Ge(1)] = 16,
    ) -> None:
        if bool(folder) == bool(id):
            raise RecipeError(
                f"scorer embedding-f1: needs exactly one of folder and id, got {folder!r} and {id!r}. Name a "
                "transformers encoder: folder = '…', or id = '…' with its commit in revision."
            )
        if bool(id) != bool(revision):
            raise RecipeError(
                f"scorer embedding-f1: id and revision go together, got {id!r} and {revision!r}. Without a "
                "commit, the same recipe may score by another model tomorrow."
            )
        self.source = str((recipe_folder or Path()) / folder) if folder else id
        self.revision = revision or None
        self.layer = layer
        self.texts_per_pass = texts_per_pass
        self._loaded: tuple[Any, Any] | None = None

    def ready(self) -> None:
        """Look for the model's configuration on this machine.

        Raises:
            RecipeError: if it is not here; says what to type.
        """
        from transformers import AutoConfig

        try:
            config = AutoConfig.from_pretrained(self.source, revision=self.revision, local_files_only=True)
        except (OSError, ValueError) as cause:
            raise RecipeError(f"scorer embedding-f1: {self._missing()}") from cause
        count = getattr(config, "num_hidden_layers", None)
        if count is not None and not -count - 1 <= self.layer <= count:
            raise RecipeError(
                f"scorer embedding-f1, layer: {self.source} has hidden states 0 to {count}, got {self.layer}."
            )

    def __call__(
        self,
        candidates: Sequence[str],
        references: Sequence[str],
        questions: Sequence[str] | None = None,
    ) -> Sequence[float | None]:
        """Return F1 per pair; 0 where one text alone is empty, 1 where both are.

        Raises:
            RecipeError: if the model is not on this machine.
        """
        texts = list(dict.fromkeys([*candidates, *references]))
        embedded = dict(zip(texts, self._embedded(texts), strict=True))
        pairs = zip(candidates, references, strict=True)
        return [greedy_f1(embedded[ours], embedded[theirs]) for ours, theirs in pairs]

    def _embedded(self, texts: Sequence[str]) -> list[Float[Tensor, "token width"]]:
        """Return the unit-length embeddings of each text's tokens, special tokens left out."""
        import torch

        tokenizer, model = self._model()
        rows = tokenizer(
            list(texts), truncation=True, max_length=self._most_tokens(tokenizer, model), stride=0,
            return_overflowing_tokens=True, return_special_tokens_mask=True,
        )  # fmt: skip
        owners = rows["overflow_to_sample_mapping"]
        pieces: list[list[Tensor]] = [[] for _ in texts]
        for start in range(0, len(owners), self.texts_per_pass):
            stop = min(start + self.texts_per_pass, len(owners))
            ids = [rows["input_ids"][place] for place in range(start, stop)]
            width = max(map(len, ids))
            padded = torch.tensor([row + [tokenizer.pad_token_id or 0] * (width - len(row)) for row in ids])
            seen = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
            with torch.inference_mode():
                states = model(input_ids=padded, attention_mask=seen, output_hidden_states=True).hidden_states
            for place, hidden in zip(range(start, stop), states[self.layer].float(), strict=True):
                special = torch.tensor(rows["special_tokens_mask"][place], dtype=torch.bool)
                pieces[owners[place]].append(hidden[: len(special)][~special])
        return [torch.nn.functional.normalize(torch.cat(piece), dim=-1) for piece in pieces]

    @staticmethod
    def _most_tokens(tokenizer: Any, model: Any) -> int:
        places = getattr(model.config, "max_position_embeddings", _MOST_TOKENS)
        return int(min(tokenizer.model_max_length, places, _MOST_TOKENS))

    def _model(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            place: dict[str, Any] = {"revision": self.revision, "local_files_only": True}
            self.ready()
            try:
                tokenizer = AutoTokenizer.from_pretrained(self.source, **place)
                model, report = AutoModel.from_pretrained(self.source, output_loading_info=True, **place)
            except (OSError, ValueError) as cause:
                raise RecipeError(f"scorer embedding-f1: {self._missing()}") from cause
            lacking = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
            if lacking:
                raise RecipeError(
                    f"scorer embedding-f1: {self.source} lacks {len(lacking)} of the model's weights, such "
                    f"as {lacking[0]!r}. They would be random; name a folder or commit that holds them all."
                )
            self._loaded = tokenizer, model.eval()
        return self._loaded

    def _missing(self) -> str:
        if self.revision is None:
            return f"{self.source} holds no transformers model with its tokenizer. Name such a folder."
        return (
            f"{self.source} at {self.revision} is not on this machine, and scoring downloads nothing. "
            f"Type: hf download {self.source} --revision {self.revision}"
        )


def greedy_f1(ours: Float[Tensor, "token width"], theirs: Float[Tensor, "word width"]) -> float:
    """Return F1 of unit vectors, each matched to the most similar one of the other text, in 0..1."""
    if not len(ours) or not len(theirs):
        return float(len(ours) == len(theirs))
    cosines = ours @ theirs.T
    precision, recall = float(cosines.amax(1).mean()), float(cosines.amax(0).mean())
    if precision <= 0 or recall <= 0:
        return 0.0
    return min(1.0, 2 * precision * recall / (precision + recall))
