"""A vision-language model that was taken apart, put together again as it was published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from evidcore.errors import RunError
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM


def as_published(model: VolumeVLM, processor: VolumeProcessor) -> PreTrainedModel:
    """Return the model as transformers' own class, with its weights as they are now.

    Raises:
        RunError: if the model has another encoder or bridge than the published one had.
    """
    encoder, bridge = model.model.encoder, model.model.bridge
    if not encoder.published_names or not bridge.published_names:
        raise RunError(
            "only a model whose encoder and bridge were published with its language model has a published "
            f"form; this one has encoder {model.config.encoder['use']!r} and bridge "
            f"{model.config.bridge['use']!r}. Export it without --format published."
        )
    begins = {
        **{f"model.encoder.{own}": theirs for own, theirs in encoder.published_names.items()},
        **{f"model.bridge.{own}": theirs for own, theirs in bridge.published_names.items()},
    }
    tokens = processor.tokenizer.convert_tokens_to_ids
    places: dict[str, Any] = {
        "image_token_id": model.config.image_token_id,
        "vision_start_token_id": tokens("<|vision_start|>"),
        "vision_end_token_id": tokens("<|vision_end|>"),
    }
    if "<|video_pad|>" in processor.tokenizer.get_vocab():
        places["video_token_id"] = tokens("<|video_pad|>")
    text = model.config.text_config
    config = AutoConfig.for_model(
        str(text.model_type).removesuffix("_text"),
        text_config=text.to_dict(),
        vision_config=model.config.vision,
        tie_word_embeddings=model.config.tie_word_embeddings,
        **places,
    )
    published: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=model.dtype)
    published.load_state_dict({
        _published_name(name, begins): weight for name, weight in model.state_dict().items()
    })
    published.generation_config = model.generation_config
    return published


def _published_name(name: str, begins: Mapping[str, str]) -> str:
    """Return what a weight is called in the published model."""
    for own, theirs in begins.items():
        if name.startswith(own):
            return theirs + name.removeprefix(own)
    return name
