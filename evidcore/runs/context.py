"""What a run gives one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evidcore.case import Case, Prompt, Split
from evidcore.contracts import Dataset, Encoder, EncoderInput, Language, Policy, StageContext
from evidcore.contracts.stage import EventSink
from evidcore.model.policy import VLMPolicy
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe import DataUse
from evidcore.runs import model as models
from evidcore.runs.assembly import Assembly
from evidcore.runs.model import StageOutputs
from evidcore.runs.shared_policy import Opener
from evidcore.train.sampler import RolloutPolicy
from evidcore.train.settings import dtype_of_products


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
        """Describe it.

        `before` holds checkpoints of the stages before it; a policy, where given, is asked in place of their
        model.
        """
        self._assembly, self._before = assembly, before or StageOutputs()
        self._policy, self._opener = policy, Opener(self.own_policy)
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
            return models.encoder(self._assembly, StageOutputs()).input

    def encoder(self) -> Encoder:
        """Return a new encoder, fitted where a stage before did that."""
        return models.encoder(self._assembly, self._before)

    def image_tokens(self, use: DataUse) -> int:
        return models.image_tokens(self._assembly, use, self.language.width() or 0)

    def model(self) -> tuple[VolumeVLM, VolumeProcessor]:
        return models.current(self._assembly, self._before)

    def policy(self, *, prompts_per_pass: int = 64, arm: str = "") -> Policy:
        """Return a policy over `model()` or what is asked in its place, or over what an arm trained."""
        if self._policy is not None:
            return self._policy
        return self._opener.open(prompts_per_pass=prompts_per_pass, arm=arm)

    def own_policy(self, *, prompts_per_pass: int = 64, arm: str = "") -> VLMPolicy:
        """Return a policy that this process answers alone, as the stage that trained it has it answer."""
        trained_by, before = self._before.trained_by, self._before
        if arm:
            before = StageOutputs(model=before.arms[arm])
        model, processor = models.current(self._assembly, before)
        strategy = None if trained_by is None else trained_by.strategy(self)
        given: dict[str, Any] = {"prompts_per_pass": prompts_per_pass, "seed": self.recipe.seed}
        given["dtype"] = dtype_of_products(getattr(trained_by, "trl", {}))
        if strategy is None:
            return VLMPolicy(model, processor, **given)
        return RolloutPolicy(model, processor, strategy, **given)

    def bind_policy(self, policy: Policy) -> None:
        self._assembly.policy.bind(lambda: policy)
        self._assembly.start_policy.bind(self._start_policy)

    def _start_policy(self) -> VLMPolicy:
        """Return a policy over the model that the stage begins with; a resumed stage draws on as it would."""
        with torch.random.fork_rng():
            return VLMPolicy(*self.model(), seed=self.recipe.seed)
