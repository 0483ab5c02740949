"""Shapes of published models that come with this package, to build them before a download."""

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "architectures"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What is known of a published model without having it."""

    id: str  # on the Hugging Face Hub
    folder: Path  # holds config.json, as transformers reads it; no tokenizer, which has a licence
    page: str
    licence: str
    weights_bytes: int  # of the published files
    characters_per_token: float | None = None  # of English text in the model's vocabulary; None: not a writer
    chat_tokens: int | None = None  # what its chat template puts around one user turn

    def text_tokens(self, text: str) -> int:
        """Estimate how many tokens a text has, without the tokenizer."""
        if self.characters_per_token is None:
            raise ValueError(f"nothing is known of the vocabulary of {self.id}")
        return -int(-len(text) // self.characters_per_token)


@functools.cache
def families() -> Mapping[str, Mapping[str, Any]]:
    """Return what is known of how published models were trained, by their `model_type` in transformers."""
    return tomllib.loads((FOLDER / "families.toml").read_text(encoding="utf-8"))


@functools.cache
def shipped() -> Mapping[str, Architecture]:
    """Return the architectures by their model's id."""
    result = {}
    for file in sorted(FOLDER.glob("*/source.toml")):
        facts = tomllib.loads(file.read_text(encoding="utf-8"))
        result[str(facts["id"])] = Architecture(folder=file.parent, **facts)
    return result
