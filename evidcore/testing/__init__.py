"""The kit for authors of components: a check per kind, and tiny models and cases that are real."""

from evidcore.testing.chat_server import ChatServer, Reply, chat_server
from evidcore.testing.checks_construction import check_construction
from evidcore.testing.checks_dataset import check_dataset
from evidcore.testing.checks_fit import check_fit
from evidcore.testing.checks_format import check_format
from evidcore.testing.checks_metric import check_metric, written_texts
from evidcore.testing.checks_model import check_bridge, check_encoder
from evidcore.testing.checks_reader import check_reader
from evidcore.testing.checks_reward import answer_group, check_reward
from evidcore.testing.checks_rollout import check_rollout
from evidcore.testing.checks_segmenter import check_segmenter, prompts_from
from evidcore.testing.checks_task import check_task
from evidcore.testing.checks_text import REPORT, TEXTS, check_labeler, check_reweighter, check_scorer
from evidcore.testing.checks_tool import check_tool
from evidcore.testing.checks_view import check_view
from evidcore.testing.data import TinyDataset, volume_case
from evidcore.testing.models import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    TinyEncoder,
    tiny_language,
    tiny_text_encoder,
    tiny_tokenizer,
    tiny_vision,
    tiny_vision_language,
)
from evidcore.testing.reward_models import tiny_reward_model
from evidcore.testing.sampler import TinySampler

__all__ = [
    "CHAT_TEMPLATE",
    "REPORT",
    "SPECIAL_TOKENS",
    "TEXTS",
    "ChatServer",
    "Reply",
    "TinyDataset",
    "TinyEncoder",
    "TinySampler",
    "answer_group",
    "chat_server",
    "check_bridge",
    "check_construction",
    "check_dataset",
    "check_encoder",
    "check_fit",
    "check_format",
    "check_labeler",
    "check_metric",
    "check_reader",
    "check_reward",
    "check_reweighter",
    "check_rollout",
    "check_scorer",
    "check_segmenter",
    "check_task",
    "check_tool",
    "check_view",
    "prompts_from",
    "tiny_language",
    "tiny_reward_model",
    "tiny_text_encoder",
    "tiny_tokenizer",
    "tiny_vision",
    "tiny_vision_language",
    "volume_case",
    "written_texts",
]
