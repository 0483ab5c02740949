"""Write a vision-language model of transformers, tiny and random, as its publisher would."""

import tomllib
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

from evidcore.train.tiny_model import CHAT_TEMPLATE, tiny_tokenizer

FAMILIES = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
SIZES = {
    **dict.fromkeys(("hidden_size", "embed_dim", "hidden_dim", "out_hidden_size", "projection_dim"), 32),
    **dict.fromkeys(("intermediate_size", "mlp_dim", "moe_intermediate_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "num_key_value_heads"), 2),
    "head_dim": 16, "max_position_embeddings": 2048, "moe_num_experts": 4, "moe_topk": 2,
}  # fmt: skip
PARTS = {
    "image_processor": IMAGE_PROCESSOR_MAPPING_NAMES, "video_processor": VIDEO_PROCESSOR_MAPPING_NAMES,
    "feature_extractor": FEATURE_EXTRACTOR_MAPPING_NAMES,
}  # fmt: skip
QWENS = "<|vision_start|><|image_pad|><|vision_end|>"  # a picture in the chat template that is taken


def write_published(folder: Path, family: str) -> Path:
    """Write configuration, weights, tokenizer and processor to `folder`, and return it."""
    facts = FAMILIES[family]
    tokenizer, config = _tokenizer(facts), _config(family, facts)
    text = config.get_text_config()
    for part in {id(item): item for item in (config, text)}.values():
        part.vocab_size = max(facts.get("vocabulary", 300), len(tokenizer))
        part.eos_token_id, part.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        part.bos_token_id = tokenizer.bos_token_id
    for name in ("image_token_id", "image_token_index"):
        if hasattr(config, name):
            setattr(config, name, tokenizer.convert_tokens_to_ids(facts["image_token"]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    given = {**facts.get("processor", {}), "tokenizer": tokenizer, "chat_template": tokenizer.chat_template}
    for part, mapping in PARTS.items():
        if kind := _named(mapping, facts, family):
            given[part] = kind(**facts.get("images", {}) if part == "image_processor" else {})
    _named(PROCESSOR_MAPPING_NAMES, facts, family)(**given).save_pretrained(folder)
    return folder


def _named(mapping: Any, facts: Any, family: str) -> Any:
    name = mapping.get(facts.get("like", facts.get("model_type", family)))
    return name and getattr(transformers, name if isinstance(name, str) else name["torchvision"])


def _config(family: str, facts: Any) -> Any:
    config = AutoConfig.for_model(facts.get("model_type", family), **facts.get("config", {}))
    parts = [config, config.get_text_config(), getattr(config, "vision_config", None)]
    for part in filter(None, parts):
        for name, value in SIZES.items():
            if isinstance(vars(part).get(name), int):
                setattr(part, name, value)
        if kinds := getattr(part, "layer_types", None):
            part.layer_types = kinds[:2]
    for part, key in zip(parts, ("whole", "text", "vision"), strict=True):
        for name, value in facts.get(key, {}).items():
            setattr(part, name, value)
    return config


def _tokenizer(facts: Any) -> PreTrainedTokenizerFast:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *facts["special"]]
    template = CHAT_TEMPLATE.replace(QWENS, facts["place"]) if "place" in facts else None
    return tiny_tokenizer(special, chat_template=template, extra_special_tokens=facts.get("tokenizer", {}))
