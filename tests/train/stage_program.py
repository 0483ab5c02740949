"""A stage as a program of its own: to be run as several processes by the tests."""

import copy
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from evidcore_testing.data import volume_case
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import _muon

from conftest import Bench, Heard, Letters, letters
from evidcore.api import Score
from evidcore.proof import passes
from evidcore.train.trl import grpo as grpo_stage
from evidcore.train.trl import sft as sft_stage
from evidcore.train.trl.stage import StageTrainer


class LettersButOfOne(Letters):
    """Groups about one case are dead, so that processes have unequally many live ones."""

    case = ""

    def __call__(self, rollouts, earlier):
        scores = zip(rollouts, super().__call__(rollouts, earlier), strict=True)
        return [Score(value=0.0) if item.prompt.case.id == self.case else score for item, score in scores]


class InFloat32:
    """Stands for torch in Muon: in bfloat16 shards add up to other roundings, and iterations enlarge them."""

    def __getattr__(self, name):
        return getattr(torch, "float32" if name == "bfloat16" else name)


class Printing(Heard):
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


def main(kind: str, language: str, folder: str) -> None:
    sys.stdout.write(f"rank {os.environ.get('RANK', '0')}\n")
    sys.stdout.flush()
    if kind.endswith("-sharded"):
        kind = kind.removesuffix("-sharded")
        shard_by_hand(sft_stage if kind == "sft" else grpo_stage)
    work = Path(folder)
    cases = [volume_case(work.parent / "volumes", seed) for seed in range(4)]
    bench = Bench(Path(language), cases, work)
    shared = {"learning_rate": 1e-3, "save_every_steps": 2, "train": ("bridge", "language")}
    shared |= {"steps": 3, "heard": Printing()}
    if kind == "sft":
        _muon.torch = InFloat32()
        bench.sft(rows_per_forward=2, optimizer="muon", **shared)
        return
    LettersButOfOne.case = cases[0].id
    rewards = [letters() if kind == "grpo" else letters(reward=LettersButOfOne())]
    bench.grpo(
        rewards=rewards, prompts_per_forward=2, trl={"beta": 0.04 if kind == "grpo" else 0.0}, **shared
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
