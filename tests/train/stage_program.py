"""A stage as a program of its own: to be killed, resumed and run as several processes by the tests."""

import copy
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from evidcore_plugin_encoders.testing import VIEW, tiny_vlm
from evidcore_testing.data import volume_case
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.utils import logging

from evidcore.api import Reward, Score
from evidcore.builtin.rollouts import Plain
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.proof import passes
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings, SftSettings
from evidcore.train.trl import grpo as grpo_stage
from evidcore.train.trl import sft as sft_stage
from evidcore.train.trl.grpo import grpo
from evidcore.train.trl.sft import sft
from evidcore.train.trl.stage import StageTrainer


class Letters(Reward):
    def __call__(self, rollouts, earlier):
        return [Score(value=sum(map(str.isalpha, item.text)) / max(len(item.text), 1)) for item in rollouts]


class LettersButOfOne(Letters):
    """Groups about one case are dead, so that processes have unequally many live ones."""

    case = ""

    def __call__(self, rollouts, earlier):
        scores = zip(rollouts, super().__call__(rollouts, earlier), strict=True)
        return [Score(value=0.0) if item.prompt.case.id == self.case else score for item, score in scores]


class Printing:
    def step_finished(self, step, metrics):
        sys.stdout.write(f"step {step} {metrics['loss']}\n")
        sys.stdout.flush()

    def rollouts_judged(self, step, groups):
        sys.stdout.write(f"groups {step} {len(groups)}\n")
        sys.stdout.flush()


def shard_by_hand(module):
    """Spread models over the processes where `accelerate` does on accelerators; on a CPU it does not.

    That is once a stage has looked at its model as a whole.
    """
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    Accelerator.prepare_model = lambda self, model, **_: model
    StageTrainer._save_checkpoint = lambda *given: None  # accelerate's part too
    prove = passes._prove

    def prove_sharded(trainer, *given, **options):
        sharded = copy.copy(trainer)
        sharded.is_fsdp_enabled = True
        return prove(sharded, *given, **options)

    passes._prove = prove_sharded
    look = module.check_start

    def look_and_shard(model, *given, **options):
        look(model, *given, **options)
        for layer in model.model.language_model.layers:
            fully_shard(layer, mesh=mesh)
        for part in (model.model.encoder, model.model.bridge, model):
            fully_shard(part, mesh=mesh)

    module.check_start = look_and_shard


def main(kind: str, language: str, folder: str, steps: str, resume: str) -> None:
    torch.set_num_threads(1)
    sys.stdout.write(f"rank {os.environ.get('RANK', '0')}\n")
    sys.stdout.flush()
    logging.disable_progress_bar()
    if kind.endswith("-sharded"):
        kind = kind.removesuffix("-sharded")
        shard_by_hand(sft_stage if kind == "sft" else grpo_stage)
    work = Path(folder)
    cases = [volume_case(work.parent / "volumes", seed) for seed in range(4)]
    model, processor = tiny_vlm(Path(language), sharpness=3.0)
    use = "report" if kind == "sft" else "choice"
    task = factory.build("task", {"use": use}, given={}, where="test")
    view = factory.build("view", dict(VIEW), given={}, where="test")
    source = PromptSource([PromptSet(name=use, task=task, view=view, cases=cases)], seed=1)
    train = ("bridge", "language")
    shared = {"steps": int(steps), "learning_rate": 1e-3, "save_every_steps": 2, "train": train}
    given = {"seed": 3, "announce": Printing(), "resume": resume == "resume"}
    if kind != "sft":
        settings = GrpoSettings(
            prompts_per_step=4, answers_per_prompt=4, max_new_tokens=6, prompts_per_forward=2,
            trl={"beta": 0.04 if kind == "grpo" else 0.0}, **shared,
        )  # fmt: skip
        LettersButOfOne.case = cases[0].id
        reward = Letters() if kind == "grpo" else LettersButOfOne()
        rewards = [NamedReward(name="letters", reward=reward)]
        grpo(model, processor, source, rewards, settings, work, strategy=Plain(), **given)
    else:
        sft(
            model,
            processor,
            source,
            SftSettings(rows_per_step=4, rows_per_forward=2, optimizer="muon", **shared),
            work,
            **given,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
