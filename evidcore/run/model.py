"""The model as it stands between two stages: assembled from fitted parts, or read from the last stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoTokenizer

from evidcore.case import TextPart, VisualPart
from evidcore.contracts import Bridge, Encoder, Fittable, RolloutStrategy
from evidcore.errors import DataError, RunError
from evidcore.model import assemble
from evidcore.model.architecture import shipped
from evidcore.model.language import build_tokenizer, load_language
from evidcore.model.parts import build_bridge, build_encoder
from evidcore.model.processor import VolumeProcessor
from evidcore.model.text_fit import TextFit
from evidcore.model.tiny import tiny_config
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe import DataUse, Grpo, Recipe, data_uses
from evidcore.registry import blame, factory
from evidcore.registry.factory import offer_of, options
from evidcore.run.parts import Parts
from evidcore.volume import cache_root

UNKNOWN_TEXT_WIDTH = 64  # the bridge is built at this width where the language model's is not known


@dataclasses.dataclass(frozen=True)
class Standing:
    """Folders that earlier stages wrote; None where none did."""

    encoder: Path | None = None
    language: Path | None = None
    model: Path | None = None
    services: Mapping[str, Path] = dataclasses.field(default_factory=dict)


def encoder(parts: Parts, standing: Standing) -> Encoder:
    """Return the recipe's encoder, with the weights of its fit stage where there was one."""
    built = build_encoder(parts.recipe.model.encoder, vision(parts), recipe_folder=parts.recipe.folder)
    if standing.encoder is not None:
        with blame(offer_of(built), f"loading {standing.encoder}"):
            cast(Fittable, built).load(standing.encoder)  # a fit stage wrote it, so it can
    return built


def current(parts: Parts, standing: Standing) -> tuple[VolumeVLM, VolumeProcessor]:
    """Return the model and its processor, on the accelerator where there is one."""
    features = cache_root() / "features"
    if standing.model is not None:
        model, processor = assemble.load(standing.model, feature_folder=features)
    else:
        language, tokenizer = load_language(
            language_source(parts, standing),
            texts=texts(parts),
            phrases=parts.findings,
            seed=parts.recipe.seed,
        )
        tables, seeing = parts.recipe.model, encoder(parts, standing)
        if standing.encoder is None:
            with blame(offer_of(seeing), "loading pretrained weights"):
                seeing.load_pretrained()
                seeing.adopt(language)
        model, processor = assemble.assemble(
            language, tokenizer, seeing, encoder_table=tables.encoder,
            bridge_table=tables.bridge, view_table=tables.view, seed=parts.recipe.seed,
            feature_folder=features,
        )  # fmt: skip
    if torch.cuda.is_available():
        torch.nn.Module.to(model, torch.device("cuda"))
    return model, processor


def text_fit(parts: Parts, data: Sequence[DataUse]) -> TextFit:
    """Return the tiny language model as something a fit stage trains, on the tasks of its data entries."""
    source = language_source(parts, Standing())
    shown = image_tokens(parts, data[0], text_width(parts) or 0)
    tasks = {use.task: parts.tasks[use.task] for use in data if use.task}
    return TextFit(source, tasks, parts.view, shown, parts.findings)


def text_width(parts: Parts) -> int | None:
    """Return the width of the language model's embeddings, None where that needs a download."""
    source = language_source(parts, Standing())
    if "config" in source:
        return int(source.get("width", options(tiny_config)["width"].default))
    config = published_config(source)
    return None if config is None else int(config.get_text_config().hidden_size)


def published_config(source: Mapping[str, Any]) -> Any:
    """Return the configuration of a published model, None where nothing here knows its shape.

    It is read from the model's folder, from the Hub's cache on this machine, or from the architectures that
    come with this package.
    """
    config = _local(AutoConfig, source)
    if config is None and source["id"] in shipped():
        config = AutoConfig.from_pretrained(shipped()[source["id"]].folder)
    return config


def missing_weights(source: Mapping[str, Any]) -> str:
    """Say that a model's weights are not on this machine, and what gets them; "" where they are."""
    if not source.get("id"):
        return ""
    name, revision = source["id"], source["revision"]
    files = ("model.safetensors", "model.safetensors.index.json")
    if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in files):
        return ""
    known = shipped().get(name)
    size = f" ({known.weights_bytes / 1e9:.2f} GB, {known.licence})" if known else ""
    return f"weights of {name}{size} are not here. `hf download {name} --revision {revision}` gets them."


def tokenizer(parts: Parts) -> Any:
    """Return the language model's tokenizer, None where that needs a download."""
    source = language_source(parts, Standing())
    return (
        build_tokenizer(texts(parts), parts.findings) if "config" in source else _local(AutoTokenizer, source)
    )


def processor(parts: Parts, tokenizer: Any, seeing: Encoder) -> VolumeProcessor:
    """Return what writes and counts prompts as the run does, without weights.

    Args:
        parts: what the recipe is made of.
        tokenizer: of its language model.
        seeing: its encoder, which may lie on the meta device.

    Raises:
        RunError: if the tokenizer's chat template is missing or loses something of what is said.
    """
    with torch.device("meta"):
        joining = bridge(parts, seeing, text_width(parts) or UNKNOWN_TEXT_WIDTH)
    return VolumeProcessor.without_model(tokenizer, seeing, joining, parts.view)


def _local(kind: Any, source: Mapping[str, Any]) -> Any:
    """Load a configuration or tokenizer from a folder, or from the Hub's cache on this machine.

    Raises:
        RunError: if a folder holds none.
    """
    try:
        name = source.get("folder") or source["id"]
        return kind.from_pretrained(name, revision=source.get("revision"), local_files_only=True)
    except (OSError, ValueError) as cause:
        if "id" in source:
            return None
        raise RunError(
            f"model.language.folder: {source['folder']!r} holds no model ({str(cause).splitlines()[0]}). "
            "Name a folder that save_pretrained wrote."
        ) from cause


def strategy(parts: Parts, stage: Grpo) -> RolloutStrategy:
    """Build how a stage's answers come about, with its tools."""
    given = {"view": parts.view}
    tools = [factory.build("tool", table, given=given, where="stage.grpo.tools") for table in stage.tools]
    built: RolloutStrategy = factory.build(
        "rollout", stage.rollout, given={"tools": tools}, where="stage.grpo.rollout", services=parts.services
    )
    return built


def image_tokens(parts: Parts, use: DataUse, text_width: int) -> int:
    """Return how many embeddings the bridge gives for the first visual part of a data entry's first case.

    Raises:
        DataError: if the view shows no pixels of it.
    """
    seeing = encoder(parts, Standing())
    case = parts.split(use.dataset, use.split)[0]
    for part in parts.view.render(case):
        if isinstance(part, VisualPart):
            grid = seeing.grid(parts.view.size_zyx(part, seeing.input))
            return bridge(parts, seeing, text_width).tokens(grid)
    raise DataError(
        f"model.view: {offer_of(parts.view)} shows no pixels of case {case.id!r}. Use another view."
    )


def bridge(parts: Parts, seeing: Encoder, text_width: int) -> Bridge:
    """Return the recipe's bridge with fresh weights."""
    return build_bridge(parts.recipe.model.bridge, seeing, text_width, vision(parts))


def vision(parts: Parts) -> dict[str, Any] | None:
    """Return the vision configuration of a published language model, None where it has none.

    None too where nothing here knows its shape.
    """
    source = language_source(parts, Standing())
    config = None if "config" in source else published_config(source)
    return None if config is None else assemble.vision_of(config)


def language_source(parts: Parts, standing: Standing) -> dict[str, Any]:
    """Return the table that the language model is loaded from."""
    if standing.language is not None:
        return {"folder": str(standing.language)}
    table = dataclasses.asdict(parts.recipe.model.language)
    source = {key: value for key, value in table.items() if value not in ("", None)}
    if "folder" in source:
        source["folder"] = str(parts.recipe.folder / source["folder"])
    return source


def word_sources(recipe: Recipe) -> tuple[DataUse, ...]:
    """Return what is asked about training cases, each once: a tiny tokenizer counts words in it."""
    uses = [use for stage in recipe.stages for use in data_uses(stage)]
    return tuple(dict.fromkeys(use for use in uses if use.task and use.split == "train"))


def texts(parts: Parts) -> list[str]:
    """Return what a tiny tokenizer counts words in: prompts and answers of the training cases."""
    found = ["user\n", "assistant\n"]
    if not parts.recipe.model.language.config:
        return found  # a pretrained tokenizer knows its words
    for use in word_sources(parts.recipe):
        for case in parts.cases(use)[:500]:
            found.append(str(case.notes.get("impression", "")))
            for prompt in parts.tasks[use.task].prompts(case, parts.view, 1):
                found.append(parts.tasks[use.task].gold(prompt)[0])
                found += [part.text for part in prompt.parts if isinstance(part, TextPart)]
    return found
