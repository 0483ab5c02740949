"""Put language model, encoder, bridge and view together; write the whole to a folder and read it back."""

import itertools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from evidcore.cache import plain_file
from evidcore.compute.loading import TELLING, refuse_random
from evidcore.contracts import Encoder, View
from evidcore.errors import RunError
from evidcore.model.bank import FeatureBank
from evidcore.model.parts import build_bridge, evaluating, keep_in_bfloat16, quantise, unpacked
from evidcore.model.policy import sampling_of
from evidcore.model.processor import VolumeImageProcessor, VolumeProcessor, add_image_tokens
from evidcore.model.vlm import VolumeVLM, VolumeVLMConfig, shaped
from evidcore.registry import factory

LOUD = 100.0  # largest product of the head while its shape is measured


def assemble(
    language: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    encoder: Encoder,
    *,
    encoder_table: Mapping[str, Any],
    bridge_table: Mapping[str, Any],
    view_table: Mapping[str, Any],
    bfloat16: Sequence[str] = (),
    load_in_4bit: bool = False,
    seed: int = 0,
    bank: Callable[..., FeatureBank] = FeatureBank,
    vision: Mapping[str, Any] | None = None,
) -> tuple[VolumeVLM, VolumeProcessor]:
    """Return a model with a fresh bridge, and its processor, sharing one feature bank.

    Of a vision-language model the decoder is taken. Image tokens are added where the tokenizer has none.
    `bfloat16` names parts whose matrices are kept so, `load_in_4bit` is of the language model's layers,
    `seed` of the bridge's first weights, `bank` makes, for the encoder's input, what keeps its features: by
    itself in memory alone; and `vision` is what encoder and bridge were given, of the language model's own
    configuration where it is left out.
    """
    vision = dict(vision or vision_of(language.config) or {}) or None
    image_token = add_image_tokens(tokenizer, vision)
    known = language.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > known:
        # transformers' own mean_resizing gives them the mean too, after a minute over the covariance of all
        language.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        for weight in {language.get_input_embeddings().weight, language.get_output_embeddings().weight}:
            weight.data[known:] = weight.data[:known].mean(0)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    text = language.config.get_text_config()
    _keep_shape_of_logits(language, text)
    attention = text._attn_implementation
    # a vision-language model says it of the whole
    text.tie_word_embeddings = bool(language.config.tie_word_embeddings)
    config = VolumeVLMConfig(
        text_config=text, vision=vision, encoder=dict(encoder_table), bridge=dict(bridge_table),
        image_token_id=tokenizer.convert_tokens_to_ids(image_token), bfloat16=list(bfloat16) or None,
        load_in_4bit=load_in_4bit,
    )  # fmt: skip
    config._attn_implementation = attention  # making it part of another configuration has unset it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bridge = build_bridge(bridge_table, encoder, text.hidden_size, vision)
    bridge.load_from(language)
    bridge.set_anchor(language.get_input_embeddings().weight.detach())
    model = VolumeVLM(config, encoder=encoder, bridge=bridge, language=language)
    images = VolumeImageProcessor(encoder_table, bridge_table, view_table, text.hidden_size, vision)
    processor = VolumeProcessor(images, tokenizer)
    _connect(model, processor, bank)
    return model, processor


@torch.no_grad()
def _keep_shape_of_logits(language: PreTrainedModel, text: Any) -> None:
    """Set the factor and soft cap that the model's class applies; some leave out what they are told.

    The head's product is enlarged to `LOUD`, since a cap changes nothing of small logits.
    """
    seen: dict[str, Tensor] = {}
    head, decoder = language.get_output_embeddings(), language.get_decoder()

    def enlarge(_module: Any, _inputs: Any, product: Tensor) -> Tensor:
        seen["factor"] = LOUD / product.abs().max().clamp(min=1e-12)
        return product * seen["factor"]

    ids = torch.arange(4, device=language.device)[None]
    with (
        decoder.register_forward_hook(lambda *call: seen.update(vars(call[-1]))),
        head.register_forward_hook(enlarge),
        evaluating(language),
    ):
        logits = language(input_ids=ids, use_cache=False).logits
    with evaluating(language):
        known = {"last_hidden_state", "factor"} <= seen.keys()
        product = head(seen["last_hidden_state"]) * seen["factor"] if known else logits.new_tensor(torch.nan)
    scales = (getattr(text, "logit_scale", None), 1 / (getattr(text, "logits_scaling", None) or 1), 1.0)
    for scale, cap in itertools.product(scales, (getattr(text, "final_logit_softcapping", None), None)):
        if (shaped(product, scale, cap) - logits).abs().max() <= 1e-3 * logits.abs().max():
            text.logit_scale, text.final_logit_softcapping = scale, cap
            return
    name = type(language).__name__
    raise RunError(f"{name} makes logits in a way that is not known here. Name another language model.")


def vision_of(config: Any) -> dict[str, Any] | None:
    """Return the vision part of a published model's configuration, None where it is a model of text alone."""
    vision = getattr(config, "vision_config", None)
    stated = {} if vision is None else vision.to_diff_dict()  # its kind at least
    return {key: value for key, value in stated.items() if not key.startswith("_")} or None


def save(
    model: VolumeVLM, processor: VolumeProcessor, folder: Path, weights: dict[str, Tensor] | None = None
) -> None:
    """Write model and processor to `folder`, in one move at the end; `weights` are given where sharded."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial, state_dict=weights or unpacked(model))
    processor.save_pretrained(partial)
    if folder.exists():
        for item in partial.iterdir():
            os.replace(item, folder / item.name)
        partial.rmdir()
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, folder)


def load(folder: Path, bank: Callable[..., FeatureBank] = FeatureBank) -> tuple[VolumeVLM, VolumeProcessor]:
    """Read back what `save` wrote, sharing one feature bank.

    Raises:
        RunError: if the folder holds no such model.
    """
    if not (folder / "config.json").exists():
        raise RunError(f"{folder}: holds no model (config.json is missing); run the stage that writes it.")
    model, info = VolumeVLM.from_pretrained(plain_file(folder), dtype=torch.float32, **TELLING)
    refuse_random(str(folder), info)
    processor = VolumeProcessor.from_pretrained(folder)
    _connect(model, processor, bank)
    return model, processor


def _connect(model: VolumeVLM, processor: VolumeProcessor, bank: Callable[..., FeatureBank]) -> None:
    """Give both the same bank, and the processor the model's parts; round what is kept in fewer bits."""
    for part in model.config.bfloat16 or ():
        for module in model.modules_of(part):
            keep_in_bfloat16(part, module)
    if model.config.load_in_4bit:
        quantise(model.model.language_model)
    view: View = factory.build("view", processor.image_processor.view, given={}, where="model.view")
    model.train_only(())  # a stage thaws what it trains; until then the bank may keep the encoder's features
    model.eval()
    model.model.bank = bank(model.model.encoder.input)
    processor.image_processor.connect(model.model.encoder, model.model.bridge, view, model.model.bank)
    ours = sampling_of(model, processor, max_new_tokens=1, temperature=0.0)
    model.generation_config.suppress_tokens = list(ours.forbidden_ids)  # for who calls transformers' generate
    processor.context_tokens = getattr(model.config.text_config, "max_position_embeddings", None)
