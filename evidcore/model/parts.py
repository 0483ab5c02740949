"""Encoder and bridge from the tables of a model's configuration."""

from __future__ import annotations

from evidcore.contracts import Bridge, Encoder
from evidcore.model.config import VolumeVLMConfig
from evidcore.plugins import factory


def build_encoder(config: VolumeVLMConfig) -> Encoder:
    """Build the encoder that `config` names, with fresh weights."""
    encoder: Encoder = factory.build("encoder", config.encoder or {}, given={}, where="model.encoder")
    return encoder


def build_bridge(config: VolumeVLMConfig, encoder: Encoder) -> Bridge:
    """Build the bridge that `config` names between `encoder` and the language model, with fresh weights."""
    given = {
        "width": encoder.width,
        "text_width": config.text_config.hidden_size,
        "grid_zyx": encoder.grid(encoder.input.size_zyx),
    }
    bridge: Bridge = factory.build("bridge", config.bridge or {}, given=given, where="model.bridge")
    return bridge
