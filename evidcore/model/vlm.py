"""A causal language model that sees volumes, as a transformers model: configuration, backbone, language head.

What TRL and `generate` demand of it, by example of what breaks without: `pixel_values` never has four
dimensions (TRL would split it into tiles); `get_image_features` gives a list (generation then encodes once
per prompt); `*_type_ids` are taken and not used (TRL sends them); parameters have at least one dimension
(FSDP2 shards them).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, no_type_check

import torch
import transformers
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.configuration_utils import SubConfigSpec
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    BaseModelOutputWithPooling,
    CausalLMOutputWithPast,
)

from evidcore.contracts import Bridge, Encoder, Grid, Patches
from evidcore.errors import ContractError, RunError
from evidcore.model.bank import FeatureBank
from evidcore.model.parts import AdaptedLinear, build_bridge, build_encoder
from evidcore.model.positions import counted, is_multimodal, multimodal


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
    bfloat16: list[str] | None = None  # parts whose weights are kept so
    load_in_4bit: bool = False  # the matrices of the language model's layers
    adapters: dict[str, int] | None = None  # rank of what they have learnt beside these, by layer
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Build the language model's configuration from its dictionary, and tie what it ties."""
        super().__post_init__(**kwargs)
        self.tie_word_embeddings = bool(getattr(self.text_config, "tie_word_embeddings", False))


class VolumeVLMPreTrained(PreTrainedModel):  # type: ignore[misc]
    """What both classes tell transformers."""

    config_class = VolumeVLMConfig
    base_model_prefix = "model"
    input_modalities = ("image", "text")
    supports_gradient_checkpointing = True
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def _init_weights(self, module: nn.Module) -> None:
        """Leave weights alone: encoder, bridge and language model initialise themselves."""

    def _move_missing_keys_from_meta_to_device(self, *args: Any, **kwargs: Any) -> None:
        """Keep buffers that are in no checkpoint and were built with real values: a component's may be.

        `from_pretrained` gives each such buffer new memory, for its own classes to fill again.
        """
        real = {name: item for name, item in self.named_non_persistent_buffers() if not item.is_meta}
        super()._move_missing_keys_from_meta_to_device(*args, **kwargs)
        for name, item in real.items():
            self.get_buffer(name).copy_(item)


class VolumeVLMModel(VolumeVLMPreTrained):
    """Encoder, bridge and the language model's backbone."""

    def __init__(
        self,
        config: VolumeVLMConfig,
        encoder: Encoder | None = None,
        bridge: Bridge | None = None,
        language_model: PreTrainedModel | None = None,
    ) -> None:
        """Take the parts, or build them from `config`."""
        super().__init__(config)
        # real weights even where transformers builds on the meta device: see the buffers above
        width = config.text_config.hidden_size
        with torch.device("cpu"):
            self.encoder = encoder or build_encoder(config.encoder or {}, config.vision)
            self.bridge = bridge or build_bridge(config.bridge or {}, self.encoder, width, config.vision)
        self.language_model = language_model or AutoModel.from_config(config.text_config)
        for name, rank in (config.adapters or {}).items() if language_model is None else ():
            layer: Any = self.get_submodule(name)
            empty = torch.empty(rank, layer.in_features), torch.empty(layer.out_features, rank)
            self.set_submodule(name, AdaptedLinear(layer, *empty))
        self.bank: FeatureBank | None = None
        # units of their own under FSDP: `generate` calls get_image_features outside of forward
        self._no_split_modules = [type(self.encoder).__name__, type(self.bridge).__name__]
        self.post_init()

    @property
    def encoder_is_frozen(self) -> bool:
        """Tell whether features of the encoder may be kept."""
        return not any(weight.requires_grad for weight in self.encoder.parameters())

    def train(self, mode: bool = True) -> VolumeVLMModel:
        """Switch to training; a frozen encoder stays in evaluation, so that its features are the bank's.

        So does batch normalisation: statistics of a pass would have each row depend on the others in it.
        """
        super().train(mode)
        if self.encoder_is_frozen:
            self.encoder.eval()
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self

    def get_image_features(
        self, pixel_values: Tensor, return_dict: bool = True, **kwargs: Any
    ) -> BaseModelOutputWithPooling:
        """Return the bridge's tokens, a list with (token, (1 + deep layers) * text_width) per volume.

        Args:
            pixel_values: prepared volumes (volume, channel, z, y, x), or the bank's handles (volume, 1) as
                int64.
            return_dict: what transformers passes; the answer is always an object.
            kwargs: not used.
        """
        if pixel_values.is_floating_point():
            wide = torch.promote_types(next(self.encoder.parameters()).dtype, torch.float32)
            patches = self.encoder(pixel_values.to(wide))
            return BaseModelOutputWithPooling(pooler_output=list(self._tokens(patches)))
        handles = pixel_values.reshape(-1).tolist()
        result: dict[int, Tensor] = {}
        unique = list(dict.fromkeys(handles))
        for group, patches in self._bank().patches(unique, self.encoder, live=not self.encoder_is_frozen):
            result.update(zip(group, self._tokens(patches), strict=True))
        return BaseModelOutputWithPooling(pooler_output=[result[handle] for handle in handles])

    def positions(
        self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor | None = None
    ) -> Tensor:
        """Return rotary positions of tokens: (row, place), or (axis, row, place) where they are multimodal.

        Tokens are left-padded; `pixel_values` are as `get_image_features` takes them, in the order of their
        tokens.
        """
        usual = self.encoder.grid(self.encoder.input.size_zyx)
        if not is_multimodal(self.config.text_config) or self.bridge.token_grid(usual) is None:
            return counted(attention_mask)
        each = [self.bridge.token_grid(grid) for grid in self._patch_grids(pixel_values)]
        grids = [grid for grid in each if grid is not None]
        return multimodal(input_ids, attention_mask, self.config.image_token_id, grids)

    def image_tokens(self, pixel_values: Tensor | None) -> list[int]:
        """Return the number of tokens of each image; `pixel_values` as `get_image_features` takes them."""
        return [self.bridge.tokens(grid) for grid in self._patch_grids(pixel_values)]

    def _patch_grids(self, pixel_values: Tensor | None) -> list[Grid]:
        if pixel_values is None:
            return []
        if pixel_values.is_floating_point():
            z, y, x = pixel_values.shape[2:]
            return [self.encoder.grid((z, y, x))] * len(pixel_values)
        handles = pixel_values.reshape(-1).tolist()
        return [self.encoder.grid(self._bank().size_zyx(handle)) for handle in handles]

    def _bank(self) -> FeatureBank:
        if self.bank is None:
            raise RunError(
                "the model was given image handles but has no feature bank; load both with "
                "evidcore.model.load, or let the processor return pixels."
            )
        return self.bank

    def _tokens(self, patches: Patches) -> Tensor:
        """Run the bridge; (volume, token, (1 + deep layers) * text_width)."""
        weight = next(self.bridge.parameters(), patches.features)
        # laid out as the bank keeps them: another layout may be summed in another order
        features = patches.features.to(weight.dtype).contiguous()
        tokens: Tensor = self.bridge(Patches(features, patches.grid_zyx, patches.centres_mm))
        expected = (
            patches.features.shape[0],
            self.bridge.tokens(patches.grid_zyx),
            self.config.text_config.hidden_size * (1 + self.bridge.deep_layers),
        )
        if tuple(tokens.shape) != expected:
            raise ContractError(
                f"bridge {self.config.bridge['use']!r} gave tokens of shape {tuple(tokens.shape)}; (volume, "
                f"token, text width) must be {expected} for a patch grid of {patches.grid_zyx} and "
                f"{self.bridge.deep_layers} deep layers."
            )
        return tokens

    def forward(
        self,
        input_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        mm_encoder_outputs: dict[str, Any] | None = None,
        token_type_ids: Tensor | None = None,
        mm_token_type_ids: Tensor | None = None,
        skip_positions: int = 0,
        targets: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Return hidden states behind the first `skip_positions`, or of these `targets` (row, place)."""
        if input_ids is not None:
            inputs_embeds, deep = self.embed(input_ids, pixel_values, mm_encoder_outputs, inputs_embeds)
            kwargs |= deep
        assert inputs_embeds is not None  # or input_ids
        if position_ids is None and past_key_values is None:
            mask = inputs_embeds.new_ones(inputs_embeds.shape[:2], dtype=torch.long)
            if attention_mask is not None and attention_mask.ndim == 2:  # (row, place): of padding
                mask = attention_mask
            ids = input_ids if input_ids is not None else torch.full_like(mask, -1)
            position_ids = self.positions(ids, mask, pixel_values)
        published = (self.config.vision or {}).get("published", {})
        if (kind := published.get("masks_by")) and input_ids is not None:  # its images attend both ways
            is_image = (input_ids == self.config.image_token_id).long()
            attention_mask = getattr(transformers, kind).create_masks_for_generate(
                config=self.language_model.config, inputs_embeds=inputs_embeds, attention_mask=attention_mask,
                past_key_values=past_key_values, position_ids=position_ids,
                token_type_ids=is_image, mm_token_type_ids=is_image,
            )  # fmt: skip
        output = self.language_model(
            attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values,
            inputs_embeds=inputs_embeds, **kwargs,
        )  # fmt: skip
        states = output.last_hidden_state[:, skip_positions:]
        output.last_hidden_state = states if targets is None else states.take_along_dim(targets[..., None], 1)
        return output

    def embed(
        self,
        input_ids: Tensor,
        pixel_values: Tensor | None = None,
        encoded: dict[str, Any] | None = None,
        embeds: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Embed tokens, the images' own where `input_ids` has image tokens.

        Returns:
            The embeddings, and what the language model is given for its first layers, if anything.

        Raises:
            RunError: if their numbers differ, images without tokens and tokens without images among them: a
                trainer that drops pixels must not go on as a text model.
        """
        if embeds is None:
            embeds = self.get_input_embeddings()(input_ids)
            embeds = embeds.float() if self.config.bfloat16 else embeds  # layers add to it in float32
        image = (encoded or {}).get("image")
        if image is None and pixel_values is not None:
            image = self.get_image_features(pixel_values)
        features = None if image is None else list(image.pooler_output)
        places = input_ids == self.config.image_token_id
        given, wanted = sum(len(item) for item in features or ()), int(places.sum())
        if given != wanted:
            raise RunError(
                f"{wanted} image tokens in the text but {given} from the images; an image or part of its "
                "tokens was lost on the way (a truncated prompt does that: raise the length limit)."
            )
        if not features:
            return embeds, {}
        first, *deep = torch.split(torch.cat(features).to(embeds), embeds.shape[-1], dim=-1)
        placed = embeds.masked_scatter(places.unsqueeze(-1), first)
        return placed, {"visual_pos_masks": places, "deepstack_visual_embeds": deep} if deep else {}


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

        The language model is a causal one, or a vision-language model, whose decoder is taken.
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
            ends, names = language.generation_config, ("bos_token_id", "eos_token_id", "pad_token_id")
            ids = {name: getattr(ends, name) for name in names}  # no penalty that training had not
            self.generation_config = transformers.GenerationConfig(**ids)

    def get_image_features(self, pixel_values: Tensor, **kwargs: Any) -> BaseModelOutputWithPooling:
        """Return the bridge's tokens per volume."""
        return self.model.get_image_features(pixel_values, **kwargs)

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: Any) -> Tensor:
        """Count along the axes of images before `generate` has encoded them."""
        ids, past = model_kwargs.get("input_ids", inputs_tensor), model_kwargs.get("past_key_values")
        is_new = past is None or past.get_seq_length() == 0
        if not is_new or ids.is_floating_point() or not is_multimodal(self.config.text_config):
            positions: Tensor = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
            return positions
        mask = model_kwargs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask
        return self.model.positions(ids, mask, model_kwargs.get("pixel_values"))

    def part(self, name: str) -> list[nn.Parameter]:
        """Return the weights of "encoder", "bridge" or "language"."""
        return [*dict.fromkeys(item for module in self.modules_of(name) for item in module.parameters())]

    def modules_of(self, part: str) -> list[nn.Module]:
        """Return what "encoder", "bridge" or "language" consists of."""
        language = [self.model.language_model, self.lm_head]
        return language if part == "language" else [getattr(self.model, part)]

    def train_only(self, parts: Collection[str]) -> None:
        """Let the named parts be trained and freeze the others."""
        for name in ("encoder", "bridge", "language"):
            for weight in self.part(name):
                weight.requires_grad_(name in parts and weight.is_floating_point())

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
            input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask,
            position_ids=position_ids, past_key_values=past_key_values, inputs_embeds=inputs_embeds,
            mm_encoder_outputs=mm_encoder_outputs, **kwargs,
        )  # fmt: skip
        window = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        text = self.config.text_config
        cap, scale = getattr(text, "final_logit_softcapping", None), getattr(text, "logit_scale", None)
        logits = shaped(self.lm_head(output.last_hidden_state[:, window]), scale, cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=text.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=output.past_key_values)


def shaped(logits: Tensor, scale: float | None, cap: float | None) -> Tensor:
    """Return what a language model makes of its head's product: a multiple, with a soft cap."""
    logits = logits if scale in (None, 1.0) else logits * scale
    return cap * torch.tanh(logits / cap) if cap else logits


AutoConfig.register(VolumeVLMConfig.model_type, VolumeVLMConfig, exist_ok=True)
AutoModel.register(VolumeVLMConfig, VolumeVLMModel, exist_ok=True)
transformers.AutoModelForCausalLM.register(VolumeVLMConfig, VolumeVLM, exist_ok=True)
transformers.AutoModelForImageTextToText.register(VolumeVLMConfig, VolumeVLM, exist_ok=True)
