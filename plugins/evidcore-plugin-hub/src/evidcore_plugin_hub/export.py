"""Write a run's last model as a folder that transformers loads, with its card and lock.

What goes in is listed here and nothing else: weights, configuration, processor, card, recipe and lock. No
rollout, answer, case or report of the run is read on the way.
"""

import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from evidcore_plugin_pages.record import is_phantom
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, PreTrainedModel

from evidcore.api import Encoder, find
from evidcore.errors import RunError
from evidcore.model import assemble, parts
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe import Recipe, load
from evidcore.recipe.resolve import toml_tables
from evidcore.registry import card
from evidcore.registry.signature import component_class
from evidcore.runs.execute import last_model
from evidcore.runs.folder import RunFolder, atomic_directory, open_run, sha256, write
from evidcore.runs.inputs import named_tables
from evidcore_plugin_hub.card import UNKNOWN, DatasetFacts, Form, ModelFacts, PackageFacts, model_card
from evidcore_plugin_hub.redaction import published_lock, published_recipe, without_paths

LOCK = "evid_lock.toml"


def export_run(run: str | os.PathLike[str], target: Path, form: Form = "transformers") -> Path:
    """Write a run's last model to `target` and return it.

    Args:
        run: the folder of a run whose training has finished.
        target: a folder that is not there yet, or empty.
        form: "transformers" is read with evidcore installed; "published" is the form of the vision-language
            model that it began with, read without.

    Raises:
        RunError: if the run has no finished model, or none of that form, or something is in the way.
    """
    folder = open_run(Path(run))
    weights = last_model(folder)
    recipe, lock = load(folder.path / "resolved.toml"), folder.lock()
    with atomic_directory(target) as work:
        model, processor = assemble.load(weights)
        widen(model)
        config, images = model.config, processor.image_processor  # without a path of this machine
        config._name_or_path = config.text_config._name_or_path = ""
        parts = [(config, "encoder"), (config, "bridge")]
        for holder, part in [*parts, *((images, part) for part in ("encoder", "bridge", "view"))]:
            setattr(holder, part, without_paths(getattr(holder, part), recipe.folder))
        if form == "published":
            as_published(model, processor).save_pretrained(work)
            _published_processor(recipe, lock).save_pretrained(work)
            processor.tokenizer.save_pretrained(work)
        else:
            model.save_pretrained(work)
            processor.save_pretrained(work)
        for path in work.glob("*.safetensors"):
            path.chmod(0o644)  # safetensors lets nobody else read what it writes
        shown = published_recipe(recipe)
        hashes = {path.name: sha256(path) for path in sorted(work.glob("*.safetensors"))}
        write(work / LOCK, toml_tables({**published_lock(lock), "weights": hashes}))
        write(work / "README.md", model_card(_facts(folder, recipe, lock, model, shown, form)))
    return target


def in_full(model: VolumeVLM) -> dict[str, Tensor]:
    """Return a model's weights in float32, merged with what adapters have learnt beside those in fewer bits.

    Of 4 bits they are what these stand for. Those that are widened lie on the CPU.
    """
    result = {
        name: weight.cpu().float() if weight.dtype == torch.bfloat16 else weight
        for name, weight in parts.unpacked(model).items()
    }
    for name, layer in model.named_modules():
        if isinstance(layer, parts.AdaptedLinear):
            learnt = result.pop(f"{name}.up").cpu() @ result.pop(f"{name}.down").cpu()
            result[f"{name}.weight"] = result[f"{name}.weight"] + learnt
    return result


def widen(model: VolumeVLM) -> None:
    """Leave a model with weights in float32 alone, and merged: transformers reads no mixture back."""
    if not model.config.bfloat16:
        return
    weights = in_full(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, parts.FrozenLinear):
            plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
            model.set_submodule(name, plain)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.config.bfloat16 = model.config.adapters = None
    model.config.load_in_4bit = False


def as_published(model: VolumeVLM, processor: VolumeProcessor) -> PreTrainedModel:
    """Return the model in its published form: transformers' own class, with the weights as they are now.

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
        text_config=text.to_dict(), vision_config=model.config.vision,
        tie_word_embeddings=model.config.tie_word_embeddings, **places,
    )  # fmt: skip
    dtype = torch.promote_types(model.dtype, torch.float32)
    published: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    weights = {}
    for name, weight in in_full(model).items():
        here = next((begin for begin in begins if name.startswith(begin)), "")
        weights[begins.get(here, "") + name.removeprefix(here)] = weight
    published.load_state_dict(weights)
    published.generation_config = model.generation_config
    return published


def _facts(
    folder: RunFolder, recipe: Recipe, lock: dict[str, Any], model: VolumeVLM, shown: str, form: Form
) -> ModelFacts:
    language = recipe.model.language
    made = component_class(find("language", language["use"]).load())
    encoder = type(model.model.encoder)
    can_begin = (
        encoder.load_pretrained is not Encoder.load_pretrained or encoder.load_from is not Encoder.load_from
    )
    tables = {kind: getattr(recipe.model, kind) for kind in ("encoder", "bridge", "view")}
    named = (offer for kind, table in tables.items() for offer, _ in named_tables(kind, table))
    inside = {offer.package for offer in named} | {"evidcore"}
    return ModelFacts(
        name=recipe.name, base_model=language.get("id", ""), base_revision=language.get("revision", ""),
        language_is_pretrained=made.has_weights, counts_words=made.counts_words, recipe=shown, form=form,
        encoder_is_pretrained=can_begin and recipe.model.encoder.get("pretrained", "unsaid") != "",
        parameters={
            part: sum(one.numel() for one in model.part(part)) for part in ("encoder", "bridge", "language")
        },
        datasets=[_dataset(name, table, lock) for name, table in recipe.datasets.items()],
        stages=[said for stage in recipe.line.values() if (said := stage.workload().summary)],
        results=_results(folder, recipe),
        packages=[
            PackageFacts(
                name=name, version=table["version"], licence=_licence(name), card=card(name),
                in_model=name in inside,
            )
            for name, table in lock["package"].items() if "environment" not in table
        ],
    )  # fmt: skip


def _published_processor(recipe: Recipe, lock: dict[str, Any]) -> Any:
    """Return what prepares pictures and text for the model that the run began with."""
    language = recipe.model.language
    name = language.get("id") or str(Path(lock["recipe"]["folder"]) / language.get("folder", ""))
    try:
        return AutoProcessor.from_pretrained(name, revision=language.get("revision") or None)
    except (OSError, ValueError, ImportError) as cause:
        raise RunError(
            f"the processor of {name!r} cannot be loaded ({str(cause).strip().splitlines()[0]}), and the "
            "published form needs it beside the weights. Make the model reachable, and install "
            "torchvision."
        ) from cause


def _dataset(name: str, table: Any, lock: dict[str, Any]) -> DatasetFacts:
    offer, is_generated = find("dataset", table["use"]), is_phantom(str(table["use"]))
    return DatasetFacts(
        name=name, component=offer.name, fingerprint=lock["dataset"][name]["fingerprint"],
        licence=_licence(offer.package) if is_generated else UNKNOWN, is_phantom=is_generated,
    )  # fmt: skip


def _results(folder: RunFolder, recipe: Recipe) -> Sequence[dict[str, Any]]:
    """Return the results of the stages that measured the last model, in order: those after its training."""
    trained = max(place for place, stage in recipe.line.items() if stage.output == "model")
    later = {recipe.stage_name(place) for place in recipe.line if place > trained}
    result = []
    for path in sorted((folder.path / "results").glob("*.json")):
        number = path.stem.partition("-")[0]
        if path.stem in later or (number.isdecimal() and int(number) > len(recipe.stages)):
            result.append(folder.result(path.stem))
    return result


def _licence(package: str) -> str:
    result = metadata.metadata(package)
    return str(result["License-Expression"] or result["License"] or UNKNOWN)
