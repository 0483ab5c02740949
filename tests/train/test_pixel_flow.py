import time

import pytest
import torch

from evidcore.builtin.rollouts import Plain
from evidcore.errors import RunError
from evidcore.model.generation import Prefix
from evidcore.reward.pixel_flow import prove
from evidcore.train.trl import stage
from evidcore.train.trl.grpo import make_trainer
from evidcore.train.trl.sampler import PolicySampler
from evidcore.train.trl.trainer import GroupTrainer


def same_for_all(pixel_values):
    """What a pass sees that has lost its pixels: one volume for everyone, whatever is shown."""
    return torch.full_like(pixel_values, SEEN[0])


SEEN: list[int] = []


class BlindPolicy(GroupTrainer):
    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, {**inputs, "pixel_values": same_for_all(inputs["pixel_values"])})


class BlindOldPolicy(GroupTrainer):
    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        if (
            not torch.is_grad_enabled()
            and model is self.model
            and self.proof is not None
            and self.proof.policy is None
        ):
            kwargs["pixel_values"] = same_for_all(kwargs["pixel_values"])
        return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)


class BlindReference(GroupTrainer):
    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        if model is self.ref_model:
            kwargs["pixel_values"] = same_for_all(kwargs["pixel_values"])
        return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)


class BlindSampler(PolicySampler):
    is_sampling = False

    def sample(self, episodes):
        self.is_sampling = True
        try:
            return super().sample(episodes)
        finally:
            self.is_sampling = False

    def score(self, episodes):
        self.is_sampling = True
        try:
            return super().score(episodes)
        finally:
            self.is_sampling = False

    def prefix(self, episode):
        whole = super().prefix(episode)
        return Prefix(whole.ids, (SEEN[0],) * len(whole.handles)) if self.is_sampling else whole


class BlindRollout(GroupTrainer):
    def make_sampler(self, vlm, prompts, positions):
        sampler = super().make_sampler(vlm, prompts, positions)
        blind = BlindSampler.__new__(BlindSampler)
        vars(blind).update(vars(sampler))
        return blind


class CutOff(GroupTrainer):
    """The bridge runs without gradients."""

    def _compute_loss(self, model, inputs):
        vlm = self.model
        real = vlm.model._tokens
        vlm.model._tokens = lambda patches: real(patches).detach()
        try:
            return super()._compute_loss(model, inputs)
        finally:
            del vlm.model._tokens


def trainer_of(bench, kit, kind, **changed):
    model, processor = bench.model()
    settings = kit.grpo_settings(**{"trl": {"beta": 0.04}, **changed})
    trainer = make_trainer(
        model, processor, bench.source(), [kit.letters()], settings, bench.folder, seed=3,
        strategy=Plain(), announce=kit.heard(), kind=kind,
    )  # fmt: skip
    crop = bench.source()[5].prompt.crops()[0]
    SEEN[:] = [processor.image_processor.handle(crop)]
    return trainer


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (BlindPolicy, "policy"),
        (BlindOldPolicy, "old policy"),
        (BlindReference, "reference"),
        (BlindRollout, "rollout"),
    ],
)
def test_a_pass_that_lost_its_pixels_is_named_before_the_first_step(bench, kit, kind, name):
    trainer = trainer_of(bench, kit, kind)
    before = kit.flat(trainer.model)
    with pytest.raises(RunError, match=f"the {name} pass is blind: prompt .* {name} 0.0e"):
        stage.train(trainer, bench.folder, resume=False)
    assert trainer.announce.steps == []
    assert torch.equal(kit.flat(trainer.model), before)


def test_a_bridge_without_gradient_is_named(bench, kit):
    with pytest.raises(RunError, match=r"no gradient reaches any of the bridge's \d+ weights"):
        stage.train(trainer_of(bench, kit, CutOff), bench.folder, resume=False)


def test_the_healthy_model_passes_and_its_training_is_not_disturbed(bench, kit, monkeypatch):
    trainer = trainer_of(bench, kit, GroupTrainer)
    seen = []
    real = prove

    def timed(*args):
        start = time.process_time()
        seen.append(real(*args))
        seen.append(time.process_time() - start)

    monkeypatch.setattr("evidcore.train.trl.trainer.prove", timed)
    stage.train(trainer, bench.folder, resume=False)
    moved, seconds = seen
    assert set(moved) == {"rollout", "policy", "old policy", "reference"}
    assert min(moved.values()) > 1e-4
    assert seconds < 20
    monkeypatch.setattr("evidcore.train.trl.trainer.prove", lambda *_: None)
    unproven = trainer_of(bench, kit, GroupTrainer)
    stage.train(unproven, bench.folder, resume=False)
    assert torch.equal(kit.flat(trainer.model), kit.flat(unproven.model))
    assert trainer.state.num_input_tokens_seen == unproven.state.num_input_tokens_seen
    assert [one["entropy"] for one in trainer.announce.steps] == [
        one["entropy"] for one in unproven.announce.steps
    ]


class Drawing(GroupTrainer):
    """Draws in its policy pass, as dropout does."""

    def _compute_loss(self, model, inputs):
        torch.rand(7)
        return super()._compute_loss(model, inputs)


def test_the_proof_draws_from_a_stream_of_its_own(bench, kit, monkeypatch):
    states = []

    def watched(*args):
        states.append(torch.get_rng_state())
        prove(*args)
        states.append(torch.get_rng_state())

    monkeypatch.setattr("evidcore.train.trl.trainer.prove", watched)
    stage.train(trainer_of(bench, kit, Drawing, steps=1), bench.folder, resume=False)
    assert torch.equal(*states)


def test_without_a_reference_there_is_none_to_prove(bench, kit, monkeypatch):
    trainer = trainer_of(bench, kit, GroupTrainer, trl={}, steps=1)
    seen = []
    real = prove
    monkeypatch.setattr("evidcore.train.trl.trainer.prove", lambda *args: seen.append(real(*args)))
    stage.train(trainer, bench.folder, resume=False)
    assert set(seen[0]) == {"rollout", "policy", "old policy"}
