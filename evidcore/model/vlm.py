"""A causal language model that sees volumes, as a transformers model with its language head."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutputWithPast

from evidcore.contracts import Bridge, Encoder
from evidcore.model.backbone import VolumeVLMModel, VolumeVLMPreTrained
from evidcore.model.config import VolumeVLMConfig
from evidcore.model.positions import is_multimodal


class VolumeVLM(VolumeVLMPreTrained, GenerationMixin):  # type: ignore[misc]
    """The model with its language head."""

    def __init__(
        self,
        config: VolumeVLMConfig,
        encoder: Encoder | None = None,
        bridge: Bridge | None = None,
        language: PreTrainedModel | None = None,
    ) -> None:
        """Take the parts, or build them from `config`.

        Args:
            config: of the whole.
            encoder: with its weights.
            bridge: with its weights.
            language: a causal language model, or a vision-language model, whose decoder is taken.
        """
        super().__init__(config)
        backbone = None if language is None else language.get_decoder()
        self.model = VolumeVLMModel(config, encoder, bridge, backbone)
        if language is not None:
            self.lm_head = language.get_output_embeddings()
        else:
            text = config.text_config
            self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        embedding = self.model.language_model.get_input_embeddings()
        place = next(name for name, module in self.model.named_modules() if module is embedding)
        self._tied_weights_keys = {"lm_head.weight": f"model.{place}.weight"}
        self.post_init()
        if language is not None:
            self.generation_config = language.generation_config

    def get_output_embeddings(self) -> nn.Module:
        """Return the language head."""
        head: nn.Module = self.lm_head
        return head

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the language head."""
        self.lm_head = value

    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Return the bridge's tokens per volume."""
        return self.model.get_image_features(pixel_values, **kwargs)

    def positions(
        self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor | None = None
    ) -> Tensor:
        """Return rotary positions of tokens, as `VolumeVLMModel.positions` does."""
        return self.model.positions(input_ids, attention_mask, pixel_values)

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: Any) -> Tensor:
        """Count along the axes of images before `generate` has encoded them."""
        ids, past = model_kwargs.get("input_ids", inputs_tensor), model_kwargs.get("past_key_values")
        is_new = past is None or past.get_seq_length() == 0
        if not is_new or ids.is_floating_point() or not is_multimodal(self.config.text_config):
            positions: Tensor = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
            return positions
        mask = model_kwargs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        return self.positions(ids, mask, model_kwargs.get("pixel_values"))

    def part(self, name: str) -> list[nn.Parameter]:
        """Return the weights of "encoder", "bridge" or "language"."""
        modules: dict[str, list[nn.Module]] = {
            "encoder": [self.model.encoder],
            "bridge": [self.model.bridge],
            "language": [self.model.language_model, self.lm_head],
        }
        found = {id(weight): weight for module in modules[name] for weight in module.parameters()}
        return list(found.values())

    def train_only(self, parts: Collection[str]) -> None:
        """Let the named parts be trained and freeze the others."""
        for name in ("encoder", "bridge", "language"):
            for weight in self.part(name):
                weight.requires_grad_(name in parts)

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        mm_encoder_outputs: dict[str, Any] | None = None,
        token_type_ids: Tensor | None = None,
        mm_token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits at the last `logits_to_keep` positions (0: all) or those listed; loss with labels."""
        output = self.model(
            input_ids=input_ids,
            pixel_values=pixel_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            mm_encoder_outputs=mm_encoder_outputs,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            size = self.config.text_config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=output.past_key_values)


AutoConfig.register(VolumeVLMConfig.model_type, VolumeVLMConfig, exist_ok=True)
AutoModel.register(VolumeVLMConfig, VolumeVLMModel, exist_ok=True)
AutoModelForCausalLM.register(VolumeVLMConfig, VolumeVLM, exist_ok=True)
AutoModelForImageTextToText.register(VolumeVLMConfig, VolumeVLM, exist_ok=True)
