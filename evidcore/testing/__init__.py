"""The kit for authors of components: a check per kind, and tiny models and cases that are real."""

from evidcore.testing.checks_model import check_bridge, check_encoder
from evidcore.testing.checks_reward import answer_group, check_reward
from evidcore.testing.checks_text import check_labeler, check_reweighter, check_scorer
from evidcore.testing.data import TinyDataset, volume_case
from evidcore.testing.models import CHAT_TEMPLATE, SPECIAL_TOKENS, TinyEncoder, tiny_language, tiny_tokenizer

__all__ = [
    "CHAT_TEMPLATE",
    "SPECIAL_TOKENS",
    "TinyDataset",
    "TinyEncoder",
    "answer_group",
    "check_bridge",
    "check_encoder",
    "check_labeler",
    "check_reward",
    "check_reweighter",
    "check_scorer",
    "tiny_language",
    "tiny_tokenizer",
    "volume_case",
]
