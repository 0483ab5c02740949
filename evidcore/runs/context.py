"""What a run gives one stage: data, components, and the model as the stages before left it.

A model is put together from fitted parts, or read from the last stage's checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from evidcore.cache import Cache
from evidcore.case import Case, Prompt, Split, VisualPart
from evidcore.contracts import Bridge, Dataset, Encoder, EncoderInput, Language, Policy, Stage, StageContext
from evidcore.contracts.model import Fittable
from evidcore.contracts.stage import EventSink
from evidcore.errors import DataError
from evidcore.model import assemble
from evidcore.model.bank import FeatureBank
from evidcore.model.language import Pretrained
from evidcore.model.parts import build_bridge, build_encoder
from evidcore.model.policy import VLMPolicy
from evidcore.model.processor import VolumeImageProcessor, VolumeProcessor, add_image_tokens
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe import DataUse
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly
from evidcore.runs.shared_policy import Opener
from evidcore.train.settings import policy_of

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


def fresh_encoder(assembly: Assembly, before: StageOutputs) -> Encoder:
    """Return a new encoder, with the weights of its fit stage where there was one."""
    recipe = assembly.recipe
    built = build_encoder(recipe.model.encoder, assembly.vision, recipe_folder=recipe.folder)
    if before.encoder is not None:
        with blame(offer_of(built), f"loading {before.encoder}"):
            cast(Fittable, built).load(before.encoder)  # a fit stage wrote it, so it can
    return built


def current_model(assembly: Assembly, before: StageOutputs) -> tuple[VolumeVLM, VolumeProcessor]:
    """Return the model and its processor, on the accelerator where there is one."""
    from evidcore.runs.inputs import identity_of  # which needs a context

    features = assembly.recipe.features
    bank = functools.partial(
        FeatureBank, precision=features.precision, memory_bytes=int(features.memory_gb * 1e9),
        cache=Cache("features"), made_by=lambda encoder: identity_of(encoder, assembly.recipe.folder),
    )  # fmt: skip
    if before.model is not None:
        model, processor = assemble.load(before.model, bank)
        with blame(offer_of(model.model.encoder), f"reading {before.model}"):
            model.model.encoder.reopen(assembly.recipe.folder)
    else:
        seed, tables = assembly.recipe.seed, assembly.recipe.model
        source = assembly.language if before.language is None else Pretrained(folder=str(before.language))
        language, tokenizer = source.load(assembly.corpus, seed)
        seeing = fresh_encoder(assembly, before)
        if before.encoder is None:
            with blame(offer_of(seeing), "loading pretrained weights"):
                seeing.load_pretrained()
                seeing.load_from(language)
        model, processor = assemble.assemble(
            language, tokenizer, seeing, encoder_table=tables.encoder,
            bridge_table=tables.bridge, view_table=tables.view, bfloat16=tables.bfloat16,
            load_in_4bit=tables.load_in_4bit, seed=seed, bank=bank, vision=assembly.vision,
        )  # fmt: skip
    if torch.cuda.is_available():
        torch.nn.Module.to(model, torch.device("cuda"))
    return model, processor


def weightless_processor(assembly: Assembly, tokenizer: Any, seeing: Encoder) -> VolumeProcessor:
    """Return what writes and counts prompts as the run does, without weights."""
    with torch.device("meta"):
        joining = fresh_bridge(assembly, seeing, assembly.language.width() or UNKNOWN_TEXT_WIDTH)
    images = VolumeImageProcessor(vision=assembly.vision)
    add_image_tokens(tokenizer, images.vision)
    images.connect(seeing, joining, assembly.view, None)
    return VolumeProcessor(images, tokenizer)


def fresh_bridge(assembly: Assembly, seeing: Encoder, text_width: int) -> Bridge:
    """Return the recipe's bridge with fresh weights."""
    return build_bridge(assembly.recipe.model.bridge, seeing, text_width, assembly.vision)


class Context(StageContext):
    """A stage's view of the run: the assembly, and what the stages before it left."""

    def __init__(
        self,
        assembly: Assembly,
        where: str,
        *,
        before: StageOutputs | None = None,
        folder: Path | None = None,
        announce: EventSink | None = None,
        resume: bool = False,
        is_dry_run: bool = False,
        policy: Policy | None = None,
    ) -> None:
        """Stand after the stages of `before`; a policy, where given, is asked in place of their model."""
        self._assembly, self._before = assembly, before or StageOutputs()
        self._policy, self._opener = policy, Opener(self.local_policy)
        self.recipe, self.where, self.resume = assembly.recipe, where, resume
        self.is_dry_run = is_dry_run
        if folder is not None and announce is not None:
            self.folder, self.announce = folder, announce
        self.tasks, self.services, self.view = assembly.tasks, assembly.services, assembly.view

    def split(self, dataset: str, split: Split) -> Sequence[Case]:
        return self._assembly.split(dataset, split)

    def dataset(self, name: str) -> Dataset:
        return self._assembly.datasets[name]

    def cases(self, use: DataUse) -> Sequence[Case]:
        return self._assembly.cases(use)

    def prompts(self, use: DataUse, *, seed: int = 0) -> list[Prompt]:
        return self._assembly.prompts(use, seed=seed)

    def component(self, kind: str, table: Mapping[str, Any] | str, key: str, **given: Any) -> Any:
        return self._assembly.component(kind, table, f"{self.where}.{key}", **given)

    @property
    def phrases(self) -> tuple[str, ...]:
        return self._assembly.phrases

    @property
    def language(self) -> Language:
        return self._assembly.language

    @property
    def encoder_input(self) -> EncoderInput:
        with torch.device("meta"):
            return fresh_encoder(self._assembly, StageOutputs()).input

    def encoder(self) -> Encoder:
        """Return a new encoder, fitted where a stage before did that."""
        return fresh_encoder(self._assembly, self._before)

    def image_tokens(self, use: DataUse) -> int:
        assembly, seeing = self._assembly, fresh_encoder(self._assembly, StageOutputs())
        case = assembly.split(use.dataset, use.split)[0]
        for part in assembly.view.render(case):
            if isinstance(part, VisualPart):
                grid = seeing.grid(assembly.view.size_zyx(part, seeing.input))
                return fresh_bridge(assembly, seeing, self.language.width() or 0).tokens(grid)
        raise DataError(f"model.view: {offer_of(assembly.view)} shows no pixels of {case.id!r}. Use another.")

    def model(self) -> tuple[VolumeVLM, VolumeProcessor]:
        return current_model(self._assembly, self._before)

    def policy(self, *, prompts_per_pass: int = 64, arm: str = "") -> Policy:
        """Return a policy over `model()` or what is asked in its place, or over what an arm trained."""
        if self._policy is not None:
            return self._policy
        return self._opener.open(prompts_per_pass=prompts_per_pass, arm=arm)

    def local_policy(self, *, prompts_per_pass: int = 64, arm: str = "") -> VLMPolicy:
        """Return a policy that this process answers alone, as the stage that trained it has it answer."""
        trained_by = self._before.trained_by
        before = StageOutputs(model=self._before.arms[arm]) if arm else self._before
        model = current_model(self._assembly, before)
        return policy_of(trained_by, self, *model, prompts_per_pass=prompts_per_pass)

    def bind_policy(self, policy: Policy) -> None:
        self._assembly.policy.bind(lambda: policy)
        self._assembly.start_policy.bind(self._start_policy)

    def _start_policy(self) -> VLMPolicy:
        """Return a policy over the model that the stage begins with; a resumed stage draws on as it would."""
        with torch.random.fork_rng():
            return VLMPolicy(*self.model(), seed=self.recipe.seed)
