"""The policy's weights as a vLLM server reads them: a LoRA adapter, or a whole model's folder."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from evidcore_plugin_hub.export import as_published, in_full
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from evidcore.errors import RunError
from evidcore.model.positions import is_multimodal
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM

Inputs = Literal["embeddings", "images"]
_ADAPTER = "default"  # peft's name of what a stage trains


def check_model(model: VolumeVLM, inputs: Inputs) -> None:
    """Refuse a model that a server cannot be."""
    bridge = model.model.bridge
    if inputs == "images":
        if not (model.model.encoder.published_names and bridge.published_names):
            raise RunError(
                "sampler vllm: inputs = 'images' shows pictures to a model as it was published, and this one "
                f"has encoder {model.config.encoder['use']!r} and bridge {model.config.bridge['use']!r}. "
                "Write inputs = 'embeddings'."
            )
        return
    if is_multimodal(model.config.text_config) or bridge.deep_layers:
        raise RunError(
            f"sampler vllm: language models of type {model.config.text_config.model_type!r} take more than "
            "embeddings: places of image tokens, or features for inner layers. Write inputs = 'images', with "
            "encoder = { use = 'published-vision' } and bridge = { use = 'published-tokens' }."
        )


def lora_layers(model: VolumeVLM) -> dict[str, LoraLayer]:
    """Return the language model's layers that adapters were added to, by name; none without adapters."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLayer) and _ADAPTER in layer.lora_A and "language_model." in name
    }


def adapter_tensors(layers: Mapping[str, LoraLayer], inputs: Inputs) -> dict[str, Tensor]:
    """Return the adapters' matrices by the names that peft writes for the served model."""
    result = {}
    for name, layer in layers.items():
        for part, modules in (("lora_A", layer.lora_A), ("lora_B", layer.lora_B)):
            weight = modules[_ADAPTER].weight.detach().cpu().contiguous()
            result[f"base_model.model.{_served_name(name, inputs)}.{part}.weight"] = weight
    return result


def write_adapter(layers: Mapping[str, LoraLayer], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write an adapter's folder, as peft does."""
    layer = next(iter(layers.values()))
    config = LoraConfig(
        r=layer.r[_ADAPTER],
        lora_alpha=layer.lora_alpha[_ADAPTER],
        target_modules=sorted({name.rpartition(".")[2] for name in layers}),
        task_type="CAUSAL_LM",
    )
    with _laid_down_in(folder) as work:
        save_file(dict(tensors), work / "adapter_model.safetensors")
        config.save_pretrained(work)


def write_whole(model: VolumeVLM, processor: VolumeProcessor, folder: Path, inputs: Inputs) -> None:
    """Write the model that a server is started with, each file over the one that was there."""
    with _laid_down_in(folder) as work:
        if inputs == "images":
            as_published(model, processor).save_pretrained(work)
        else:
            with torch.device("meta"):
                dtype = torch.promote_types(model.dtype, torch.float32)
                served = AutoModelForCausalLM.from_config(model.config.text_config, dtype=dtype)
            served.generation_config = model.generation_config
            served.save_pretrained(work, state_dict=decoder_weights(model))
        processor.tokenizer.save_pretrained(work)


@contextlib.contextmanager
def _laid_down_in(folder: Path) -> Iterator[Path]:
    """Give a folder to write to; its files then take the places of those in `folder`, one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        yield Path(work)
        for path in sorted(Path(work).iterdir()):
            path.chmod(0o644)  # safetensors lets nobody else read what it writes; the server may be another
            os.replace(path, folder / path.name)


def decoder_weights(model: VolumeVLM) -> dict[str, Tensor]:
    """Return the language model's weights, without adapters, by the names of a causal language model."""
    return {
        _served_name(name, "embeddings").replace(".base_layer.", "."): weight
        for name, weight in in_full(model).items()
        if name.startswith(("model.language_model.", "lm_head.")) and ".lora_" not in name
    }


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names and bytes."""
    result = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        result.update(name.encode())
        result.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return result.hexdigest()


def _served_name(name: str, inputs: Inputs) -> str:
    """Return what a part of the language model is called in the served model."""
    return name.replace("model.language_model.", "model.", 1) if inputs == "embeddings" else name


def trained_tensors(model: VolumeVLM, inputs: Inputs) -> dict[str, Tensor]:
    """Return the weights that a server must have as they are here."""
    return decoder_weights(model) if inputs == "embeddings" else dict(model.state_dict())
