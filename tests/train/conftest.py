import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from evidcore_plugin_encoders.testing import VIEW, seeing_vlm, tiny_vlm
from evidcore_testing.checks_reward import Letters
from evidcore_testing.fixtures import language_folder as language_folder
from evidcore_testing.fixtures import torchrun as torchrun
from evidcore_testing.fixtures import volume_cases
from evidcore_testing.models import tiny_vision_language
from transformers import AutoModelForImageTextToText
from transformers.utils import logging

from evidcore.api import Case, Prompt, Reward, Score
from evidcore.builtin.rollouts import Plain
from evidcore.builtin.views import Volume
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings, SftSettings
from evidcore.train.trl import grpo, sft

logging.disable_progress_bar()
torch.set_num_threads(1)
cases = volume_cases(8)


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.groups: list[list[dict[str, Any]]] = []

    def step_finished(self, step, metrics):
        self.steps.append({"step": step, **metrics})

    def rollouts_judged(self, step, groups):
        self.groups.append(list(groups))


def share_of_letters(text: str) -> float:
    return sum(item.isalpha() for item in text) / max(len(text), 1)


class Constant(Reward):
    """The same for everyone; no sum of it is exact."""

    def __call__(self, rollouts, earlier):
        return [Score(value=0.3)] * len(rollouts)


class Silence(Reward):
    """No verdict on anyone."""

    def __call__(self, rollouts, earlier):
        return [None] * len(rollouts)


class NoPixels(Volume):
    """A view that shows nothing, for which there is no pixel flow to prove."""

    def render(self, case):
        return ()


class Stopped(Exception):
    """Ends a stage from without."""


def grpo_settings(**changed: Any) -> GrpoSettings:
    usual: dict[str, Any] = {"train": ("bridge", "language"), "steps": 2, "learning_rate": 1e-3}
    counts = {"prompts_per_step": 4, "answers_per_prompt": 4, "max_new_tokens": 6}
    return GrpoSettings(**{**usual, **counts, **changed})


def sft_settings(**changed: Any) -> SftSettings:
    usual: dict[str, Any] = {"train": ("bridge",), "steps": 2, "learning_rate": 1e-2, "rows_per_step": 4}
    return SftSettings(**{**usual, **changed})


def letters(**changed: Any) -> NamedReward:
    return NamedReward(**{"name": "letters", "reward": Letters(), "package": "test 1.0", **changed})


def flat(model: VolumeVLM) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def log_probs(
    model: VolumeVLM, processor: VolumeProcessor, prompt: Prompt, ids: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Score the tokens of an answer from plain logits, at a temperature."""
    row = processor.encode(prompt)
    handles = torch.tensor([[processor.image_processor.handle(crop) for crop in row.crops]])
    logits = model(input_ids=torch.tensor([[*row.ids, *ids]]), pixel_values=handles).logits[0]
    written = (logits[len(row.ids) - 1 : -1] / temperature).log_softmax(-1)
    return written.gather(-1, torch.tensor(ids)[:, None])[:, 0]


def qwen(folder: Path, kind: str, **given: Any) -> tuple[VolumeVLM, VolumeProcessor]:
    """Give a published model with eyes, tiny; its weights are bfloat16's, as of those that are published."""
    language = AutoModelForImageTextToText.from_pretrained(tiny_vision_language(folder, kind))
    for weight in language.parameters():
        weight.data = weight.data.bfloat16().float()
    eyes = {"size": 64 if kind == "qwen3_vl" else 56, "slices": 2}
    return seeing_vlm(folder, eyes=eyes, model=language, **given)


# arguments of a stage that are none of its settings
GIVEN = {"source", "seed", "strategy", "resume", "engine", "kind", "reweighter", "measure"}


@dataclasses.dataclass
class Bench:
    """Everything a stage takes, small and fresh on demand."""

    language_folder: Path
    cases: list[Case]
    folder: Path
    heard, flat, qwen = Heard, staticmethod(flat), staticmethod(qwen)
    log_probs = staticmethod(log_probs)
    Letters, Constant, Silence, NoPixels = Letters, Constant, Silence, NoPixels
    share_of_letters, letters = staticmethod(share_of_letters), staticmethod(letters)
    grpo_settings, sft_settings = staticmethod(grpo_settings), staticmethod(sft_settings)
    Stopped = Stopped

    def stopping(self, step: int) -> Heard:
        """Hear of a stage, and end it while it tells of a step."""

        class Stops(Heard):
            def step_finished(self, number, metrics):
                super().step_finished(number, metrics)
                if number == step:
                    raise Stopped

        return Stops()

    def run(
        self, name: str = "run", *, heard: Heard | None = None, **options: Any
    ) -> tuple[VolumeVLM, Heard]:
        """Train a fresh model by GRPO; return it and what was heard of it."""
        model, heard = self.model(), heard or Heard()
        self.grpo(model=model, heard=heard, folder=name, **options)
        return model[0], heard

    def model(self, sharpness: float = 3.0) -> tuple[VolumeVLM, VolumeProcessor]:
        return tiny_vlm(self.language_folder, sharpness=sharpness)

    def set_of(self, use: str = "choice", cases: list[Case] | None = None, **changed: Any) -> PromptSet:
        options = {"choice": {"think": False}, "report": {}}[use]
        task = factory.build("task", {"use": use, **options}, given={}, where="test")
        view = factory.build("view", dict(VIEW), given={}, where="test")
        return PromptSet(name=use, task=task, view=view, cases=cases or self.cases, **changed)

    def two_volumes(self) -> list[Case]:
        """Give every second case the next one's scan too, so that prompts are of different lengths."""
        others = self.cases[1:] + self.cases[:1]
        return [
            dataclasses.replace(case, volumes=case.volumes + other.volumes) if number % 2 else case
            for number, (case, other) in enumerate(zip(self.cases, others, strict=True))
        ]

    def source(self, *sets: PromptSet, seed: int = 1, **changed: Any) -> PromptSource:
        return PromptSource(sets or [self.set_of()], seed=seed, **changed)

    def grpo_trainer(self, make: Callable[..., Any] = grpo.make_trainer, **options: Any) -> Any:
        """Make the trainer of a GRPO stage; `options` are those of `_made` and settings of the stage."""
        rewards, options = options.pop("rewards", None) or [letters()], {"strategy": Plain(), **options}
        return self._made(make, self.source(), grpo_settings, (rewards,), **options)

    def grpo(self, **options: Any) -> dict[str, Any]:
        return self.grpo_trainer(grpo.grpo, **options)

    def sft_trainer(self, make: Callable[..., Any] = sft.make_trainer, **options: Any) -> Any:
        """Make the trainer of an SFT stage over reports, as `grpo_trainer` does."""
        return self._made(make, self.source(self.set_of("report")), sft_settings, (), **options)

    def sft(self, **options: Any) -> dict[str, Any]:
        return self.sft_trainer(sft.sft, **options)

    def _made(self, make, usual, settings_of, rewards, *, model=None, heard=None, folder="", **options):
        """Call `make` over a fresh model and the usual source, where `options` do not say otherwise."""
        given = {"seed": 3, "announce": heard or Heard()}
        given |= {name: options.pop(name) for name in GIVEN & options.keys()}
        source = given.pop("source", usual)
        if "replayed" in options:
            given["replay"] = options.pop("replayed")
        settings = settings_of(**options)
        return make(*(model or self.model()), source, *rewards, settings, self.folder / folder, **given)


@pytest.fixture
def bench(language_folder, cases, tmp_path) -> Bench:
    return Bench(language_folder, cases, tmp_path)
