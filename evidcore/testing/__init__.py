"""The kit for authors of components: a check per kind, and tiny models and cases that are real."""

from evidcore.testing.data import TinyDataset, volume_case
from evidcore.testing.models import CHAT_TEMPLATE, SPECIAL_TOKENS, TinyEncoder, tiny_language, tiny_tokenizer

__all__ = [
    "CHAT_TEMPLATE",
    "SPECIAL_TOKENS",
    "TinyDataset",
    "TinyEncoder",
    "tiny_language",
    "tiny_tokenizer",
    "volume_case",
]
