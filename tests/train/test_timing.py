"""Where a step's time goes: the parts add up to the step, on a clock that counts its own readings."""

import itertools

import pytest

from evidcore.compute.clock import Clock
from evidcore.train.trl import stage


def counted(trainer, folder):
    """Train on a clock that goes on by 1 with each look at it; give what it shows, and what was told."""
    ticks = itertools.count()
    trainer.clock = Clock(ticks.__next__)
    stage.train(trainer, folder, resume=False)
    return next(ticks), trainer.announce.steps


def parts_of(step):
    return {
        name: value
        for name, value in step.items()
        if (name.endswith("_s") or "_s/" in name) and name != "step_s"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 3}, {"steps": 3, "prompts_per_forward": 2}, {"steps": 2, "trl": {"beta": 0.1}},
        {"steps": 4, "save_every_steps": 2, "trl": {"num_iterations": 2}},
    ],
    ids=["plain", "accumulated", "reference", "iterations"],
)  # fmt: skip
def test_the_parts_of_a_grpo_step_add_up_to_it(bench, changed):
    _, steps = counted(bench.grpo_trainer(**changed), bench.folder)
    assert len(steps) == changed["steps"]
    for step in steps:
        assert sum(parts_of(step).values()) == step["step_s"] > 0
    first, second = parts_of(steps[0]), parts_of(steps[1])
    assert set(first) == {
        "data_s", "generate_s", "encode_s", "reward_s/letters", "score_s", "update_s", "record_s", "proof_s",
        "other_s",
    }  # fmt: skip
    assert "proof_s" not in second
    if "num_iterations" in changed.get("trl", {}):  # the second step learns from the first one's answers
        assert "generate_s" not in second
        assert "save_s" in parts_of(steps[2])  # what follows a step's figures is the next one's


@pytest.mark.slow
def test_scores_are_counted_for_each_pass(bench):
    looks = {}
    for beta in (0.0, 0.1):
        _, steps = counted(bench.grpo_trainer(trl={"beta": beta}), bench.folder)
        looks[beta] = steps[1]["score_s"]
    assert looks[0.1] == 2 * looks[0.0]  # the policy's; the reference's besides


def test_all_time_between_the_first_step_and_the_last_is_told_and_no_hook_is_left(bench):
    trainer = bench.grpo_trainer()
    encoder = trainer.model.model.encoder
    ticks, steps = counted(trainer, bench.folder)
    # looks before the first and after the last
    assert 0 <= ticks - sum(step["step_s"] for step in steps) < 12
    assert not encoder._forward_hooks
    assert not encoder._forward_pre_hooks


def test_the_parts_of_an_sft_step_add_up_to_it(bench):
    _, steps = counted(bench.sft_trainer(rows_per_forward=2, steps=3), bench.folder)
    for step in steps:
        assert sum(parts_of(step).values()) == step["step_s"] > 0
    assert set(parts_of(steps[0])) == {
        "data_s", "forward_backward_s", "encode_s", "optimizer_s", "proof_s", "other_s",
    }  # fmt: skip


def test_a_trained_encoders_passes_are_the_models(bench):
    _, steps = counted(bench.grpo_trainer(train=("encoder", "bridge")), bench.folder)
    assert "encode_s" not in steps[0]
