"""The model between two stages: put together from fitted parts, or read from the last stage's checkpoint."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from evidcore.cache import Cache
from evidcore.case import VisualPart
from evidcore.contracts import Bridge, Encoder, Stage
from evidcore.contracts.model import Fittable
from evidcore.errors import DataError
from evidcore.model import assemble
from evidcore.model.bank import FeatureBank
from evidcore.model.language import Pretrained
from evidcore.model.parts import build_bridge, build_encoder
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe import DataUse
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly

UNKNOWN_TEXT_WIDTH = 64  # the bridge is built at this width where the language model's is not known


@dataclasses.dataclass(frozen=True)
class StageOutputs:
    """Checkpoints that earlier stages wrote, by what they are; None where none did."""

    encoder: Path | None = None
    language: Path | None = None
    model: Path | None = None
    arms: Mapping[str, Path] = dataclasses.field(default_factory=dict)  # models that arms trained
    services: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    trained_by: Stage | None = None  # the last stage that wrote `model`

    def after(self, stage: Stage, checkpoint: Path) -> StageOutputs:
        """Return the outputs after a stage."""
        if stage.output is None:
            return self
        if stage.output.startswith("service."):
            name = stage.output.removeprefix("service.")
            return dataclasses.replace(self, services={**self.services, name: checkpoint})
        trained_by = stage if stage.output == "model" else self.trained_by
        written: Any = {stage.output: checkpoint}
        return dataclasses.replace(self, **written, trained_by=trained_by)

    def load_services(self, assembly: Assembly) -> None:
        """Give services the weights that fit stages trained."""
        for name, checkpoint in self.services.items():
            service = assembly.services[name]
            with blame(offer_of(service), f"loading {checkpoint}"):
                service.load(checkpoint)


def encoder(assembly: Assembly, before: StageOutputs) -> Encoder:
    """Return a new encoder, with the weights of its fit stage where there was one."""
    recipe = assembly.recipe
    built = build_encoder(recipe.model.encoder, vision(assembly), recipe_folder=recipe.folder)
    if before.encoder is not None:
        with blame(offer_of(built), f"loading {before.encoder}"):
            cast(Fittable, built).load(before.encoder)  # a fit stage wrote it, so it can
    return built


def current(assembly: Assembly, before: StageOutputs) -> tuple[VolumeVLM, VolumeProcessor]:
    """Return the model and its processor, on the accelerator where there is one."""
    kept = assembly.recipe.features
    bank = functools.partial(
        FeatureBank,
        precision=kept.precision,
        memory_bytes=int(kept.memory_gb * 1e9),
        cache=Cache("features"),
    )
    if before.model is not None:
        model, processor = assemble.load(before.model, bank)
    else:
        seed, tables = assembly.recipe.seed, assembly.recipe.model
        source = assembly.language if before.language is None else Pretrained(folder=str(before.language))
        language, tokenizer = source.load(assembly.corpus, seed)
        seeing = encoder(assembly, before)
        if before.encoder is None:
            with blame(offer_of(seeing), "loading pretrained weights"):
                seeing.load_pretrained()
                seeing.load_from(language)
        model, processor = assemble.assemble(
            language, tokenizer, seeing, encoder_table=tables.encoder,
            bridge_table=tables.bridge, view_table=tables.view, bfloat16=tables.bfloat16, seed=seed,
            bank=bank,
        )  # fmt: skip
    if torch.cuda.is_available():
        torch.nn.Module.to(model, torch.device("cuda"))
    return model, processor


def processor(assembly: Assembly, tokenizer: Any, seeing: Encoder) -> VolumeProcessor:
    """Return what writes and counts prompts as the run does, without weights."""
    with torch.device("meta"):
        joining = bridge(assembly, seeing, assembly.language.width() or UNKNOWN_TEXT_WIDTH)
    return VolumeProcessor.without_model(tokenizer, seeing, joining, assembly.view)


def image_tokens(assembly: Assembly, use: DataUse, text_width: int) -> int:
    """Return how many embeddings the bridge gives for the first visual part of a data entry's first case."""
    seeing = encoder(assembly, StageOutputs())
    case = assembly.split(use.dataset, use.split)[0]
    for part in assembly.view.render(case):
        if isinstance(part, VisualPart):
            grid = seeing.grid(assembly.view.size_zyx(part, seeing.input))
            return bridge(assembly, seeing, text_width).tokens(grid)
    raise DataError(
        f"model.view: {offer_of(assembly.view)} shows no pixels of case {case.id!r}. Use another view."
    )


def bridge(assembly: Assembly, seeing: Encoder, text_width: int) -> Bridge:
    """Return the recipe's bridge with fresh weights."""
    return build_bridge(assembly.recipe.model.bridge, seeing, text_width, vision(assembly))


def vision(assembly: Assembly) -> dict[str, Any] | None:
    """Return the vision configuration of a published language model; None where none is known here."""
    config = assembly.language.vision()
    return None if config is None else assemble.vision_of(config)
