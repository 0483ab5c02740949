"""What both trainers share."""

import errno
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from evidcore.errors import RecipeError, RunError
from evidcore.model.parts import part_of
from evidcore.runs.folder import RunFolder, naming_remedy
from evidcore.train.settings import Lora, Replay, dtype_of_products
from evidcore.train.trl import grpo, stage
from evidcore.train.trl.sft import try_step

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "part"), TABLE["parts"])
def test_a_weight_belongs_to_the_part_that_holds_it(name, part):
    assert part_of(name) == part


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4.0)])
def test_names_agree_with_the_model_about_its_parts(bench, lora):
    model, processor = bench.model()
    model.model.bridge.encoder = nn.Linear(3, 3)  # as a Q-Former has
    rates = {"bridge": 1e-2, "language": 1e-3}
    changed = {"train": ("bridge", "language"), "learning_rate": rates, "lora": lora}
    trainer = bench.sft_trainer(model=(model, processor), **changed)
    groups = trainer.create_optimizer().param_groups
    result = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    vlm = stage.vlm_of(trainer.model)
    expected = {
        id(weight): rate for part, rate in rates.items() for weight in vlm.part(part) if weight.requires_grad
    }
    assert result == expected


@pytest.mark.parametrize(
    ("has_gpu", "has_bf16", "given", "expected"),
    [
        (False, True, {}, False), (True, False, {}, False), (True, True, {}, True),
        (True, True, {"fp16": True}, False), (True, False, {"bf16": True}, True),
    ],
)  # fmt: skip
def test_bfloat16_is_used_where_the_gpu_has_it(bench, monkeypatch, has_gpu, has_bf16, given, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_bf16
    )
    assert stage.arguments("sft", bench.folder, 0, bench.sft_settings(trl=given), {})["bf16"] is expected


def test_bfloat16_is_taken_on_a_cpu_where_a_recipe_asks_for_it(bench):
    model, processor = bench.model()
    bench.sft(model=(model, processor), heard=(heard := bench.heard()), trl={"bf16": True})
    assert len(heard.steps) == 2
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_a_disk_that_is_full_when_a_checkpoint_is_written_is_named_with_its_remedy(bench):
    class Filling(type(bench.heard())):
        """Lets the disk be full for the optimizer's state of step 2, as torch finds it."""

        def step_finished(self, step, metrics):
            super().step_finished(step, metrics)
            if step == 1:
                place = work / "steps" / "checkpoint-2"
                place.mkdir(parents=True)
                (place / "optimizer.pt").symlink_to("/dev/full")

    work, run = bench.folder / "working", RunFolder(bench.folder)
    said = rf"{work}/steps/checkpoint-2: the disk is full\..* Free space, then `evid resume {bench.folder}`"
    with pytest.raises(RunError, match=said) as caught, naming_remedy(run):
        bench.sft(heard=Filling(), folder="working", steps=4, save_every_steps=1)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert [path.name for path in (work / "steps").iterdir()] == ["checkpoint-1"]  # whole, to go on from


def test_fsdp_where_nothing_would_be_sharded_is_refused_in_words():
    said = r"^stage\.grpo\.trl\.fsdp: nothing would be sharded: .*here are 1 and 0\."
    with pytest.raises(RecipeError, match=said):
        stage.check_sharded({"fsdp": "full_shard"}, "stage.grpo")


@pytest.mark.slow
def test_a_step_over_a_stand_in_takes_every_key_of_a_stage(bench):
    try_step(
        bench.sft_settings(optimizer="muon", loss_per="row", trl={"lr_scheduler_type": "cosine"}), "02-sft"
    )
    replay = Replay(data=(), rows_per_step=4)
    settings = bench.grpo_settings(lora=Lora(rank=2), replay=replay, prompts_per_forward=2, trl={"beta": 0.1})
    grpo.try_step(settings, "03-grpo")
    assert list(bench.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"trl": {"loss_type": "gpro"}},
      "03-grpo: its first step fails with ValueError: Unknown loss type: gpro"),
     ({"save_every_steps": 5, "trl": {"num_iterations": 2}}, "5 steps would save in the middle"),
     ({"prompts_per_forward": 1, "replay": Replay(data=(), rows_per_step=3)},
      r"stage\.grpo\.replay\.rows_per_step: 3 rows cannot be dealt evenly to the 4 passes")],
)  # fmt: skip
def test_a_step_over_a_stand_in_finds_what_would_end_the_first_one(bench, changed, message):
    with pytest.raises(RecipeError, match=message):
        grpo.try_step(bench.grpo_settings(**changed), "03-grpo")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_precisions_of_a_gpu_are_not_tried_without_one(bench):
    try_step(bench.sft_settings(trl={"bf16": True, "tf32": True}), "02-sft")


@pytest.mark.parametrize(
    ("trl", "dtype"), [({}, torch.float32), ({"bf16": True}, torch.bfloat16), ({"fp16": True}, torch.float16)]
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_products_are_of_the_type_that_trl_is_told(trl, dtype):
    assert dtype_of_products(trl) == dtype
