"""The configuration of a `VolumeVLM`: its language model, and the tables of encoder and bridge."""

from __future__ import annotations

from typing import Any, ClassVar, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec


@no_type_check  # transformers checks the fields, and takes others than these
@strict
class VolumeVLMConfig(PreTrainedConfig):  # type: ignore[misc]
    """Tables as in a recipe: `{"use": "vit3d", ...}`; `text_config` is the language model's own."""

    model_type = "evidcore_volume_vlm"
    # TRL reads `config.auto_map` without a default; as a field it would be written to config.json
    auto_map: ClassVar[dict[str, str]] = {}
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "text_config": SubConfigSpec(config_class=AutoConfig, model_type="qwen2")
    }

    text_config: Any = None  # a dictionary until __post_init__
    vision: dict[str, Any] | None = None  # of the published model that the language model is part of
    encoder: dict[str, Any] | None = None
    bridge: dict[str, Any] | None = None
    image_token_id: int = 0
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the language model's configuration from its dictionary, and tie what it ties."""
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = bool(getattr(self.text_config, "tie_word_embeddings", False))
