"""Whole vision-language models that are tiny and real, for tests: with the encoder `vit3d`, or with eyes."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from evidcore.model import assemble
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.registry import factory

ENCODER = MappingProxyType({
    "use": "vit3d", "size_zyx": [8, 16, 16], "patch_zyx": [4, 8, 8], "width": 24, "heads": 2, "stem": "patch",
})  # fmt: skip
BRIDGE = MappingProxyType({"use": "projection", "pool_zyx": [1, 1, 2]})
VIEW = MappingProxyType({"use": "volume"})


def tiny_vlm(
    language_folder: Path, *, sharpness: float = 1.0, stem: str = "patch", bridge: Mapping[str, Any] = BRIDGE
) -> tuple[VolumeVLM, VolumeProcessor]:
    """Give a model of random weights that shows a volume in 4 tokens, and its processor; the same each time.

    Args:
        language_folder: what `tiny_language` wrote.
        sharpness: times the language model's matrices. Random weights of the usual size say nearly the same
            whatever they see.
        stem: of the encoder; "convolution" has batch normalisation.
        bridge: its table.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    language = AutoModelForCausalLM.from_pretrained(language_folder)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        table = {**ENCODER, "stem": stem}
        encoder = factory.build("encoder", table, given={}, where="tiny_vlm")
        for weight in language.parameters():
            if weight.dim() > 1:
                weight.mul_(sharpness)
    tokenizer = AutoTokenizer.from_pretrained(language_folder)
    return assemble.assemble(
        language, tokenizer, encoder, encoder_table=table, bridge_table=dict(bridge),
        view_table=dict(VIEW),
    )  # fmt: skip


def seeing_vlm(
    folder: Path, *, eyes: Mapping[str, Any], view: Mapping[str, Any] = VIEW, model: Any = None, **given: Any
) -> tuple[VolumeVLM, VolumeProcessor]:
    """Give what `tiny_vision_language` wrote as a run assembles it, and its processor.

    `eyes` are options of its encoder, `model` is the same, loaded, and `given` goes on to `assemble`.
    """
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    language = model or AutoModelForImageTextToText.from_pretrained(folder)
    table, vision = {"use": "published-vision", **eyes}, assemble.vision_of(language.config)
    encoder = factory.build("encoder", table, given={"vision": vision}, where="seeing_vlm")
    encoder.load_from(language)
    return assemble.assemble(
        language, AutoTokenizer.from_pretrained(folder), encoder, encoder_table=table,
        bridge_table={"use": "published-tokens"}, view_table=dict(view), **given,
    )  # fmt: skip
