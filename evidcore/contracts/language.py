"""The language model: where it comes from, and what is known of it without its weights."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts that a tokenizer's vocabulary may be counted in."""

    texts: Callable[[], list[str]] = list  # prompts and gold answers of the training cases
    phrases: tuple[str, ...] = ()  # names of findings


class Language(ABC):
    """A causal language model with its tokenizer and chat template.

    Core gives: `recipe_folder` (relative paths start there). A `[model] language` table without `use` is
    `pretrained`. A component that has a `fit` is trained by a `fit` stage of `model.language`; left of `*`
    that method may ask for `tasks` and `shares` (by name), `view`, `image_tokens` (embeddings a visual part)
    and `phrases`, beside what every `fit` is given. What it writes is read back as `pretrained`.
    """

    has_weights: ClassVar[bool] = True  # False: a shape alone, until a fit stage has trained it
    counts_words: ClassVar[bool] = False  # its vocabulary is counted in a Corpus

    @classmethod
    def problems(cls, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for what the options say against each other; key "" for the whole table."""
        yield from ()

    @abstractmethod
    def width(self) -> int | None:
        """Return the width of its embeddings; None where that needs a download."""

    @abstractmethod
    def config(self, corpus: Corpus) -> Any | None:
        """Return its transformers configuration, without weights; None where that needs a download."""

    @abstractmethod
    def tokenizer(self, corpus: Corpus) -> Any | None:
        """Return its tokenizer; None where that needs a download."""

    @abstractmethod
    def load(self, corpus: Corpus, seed: int) -> tuple[Any, Any]:
        """Return model and tokenizer; a vision-language model is returned whole.

        Raises:
            DataError: if it cannot be loaded; says what to check.
        """

    def vision(self) -> Any | None:
        """Return its transformers configuration if that may describe a vision model, else None."""
        return None

    def missing_weights(self) -> str:
        """Say which weights are not on this machine, and how to get them; else ""."""
        return ""
