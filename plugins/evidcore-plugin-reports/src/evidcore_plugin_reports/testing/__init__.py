"""Stand-ins for what this package asks, real and tiny: a chat endpoint, a reward model, a text encoder."""

from evidcore_plugin_reports.testing.chat_server import ChatServer as ChatServer
from evidcore_plugin_reports.testing.chat_server import Reply as Reply
from evidcore_plugin_reports.testing.chat_server import chat_server as chat_server
from evidcore_plugin_reports.testing.tiny_models import tiny_reward_model as tiny_reward_model
from evidcore_plugin_reports.testing.tiny_models import tiny_text_encoder as tiny_text_encoder
