"""What the pixel-flow proof must not take for sight, and what it must not take for blindness."""

import pytest
import torch

from evidcore.errors import RunError
from evidcore.train.trl import stage
from evidcore.train.trl.trainer import GroupTrainer


class NotANumber(GroupTrainer):
    """The reference scores everything as NaN."""

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        log_probs, *rest = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        return (log_probs * torch.nan if model is self.ref_model else log_probs, *rest)


class Exploding(GroupTrainer):
    """The bridge's gradient is not finite, though its output is."""

    def _compute_loss(self, model, inputs):
        bridge = self.model.model.bridge
        hook = bridge.register_forward_hook(lambda *called: called[-1] + Burst.apply(called[-1]))
        try:
            return super()._compute_loss(model, inputs)
        finally:
            hook.remove()


class Burst(torch.autograd.Function):
    """0, with an infinite slope."""

    @staticmethod
    def forward(ctx, tensor):
        return torch.zeros_like(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return torch.full_like(gradient, torch.inf)


def train(bench, kind, **sharpness):
    trainer = bench.grpo_trainer(model=bench.model(**sharpness), kind=kind, steps=1, trl={"beta": 0.04})
    stage.train(trainer, bench.folder, resume=False)
    return trainer


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (NotANumber, r"clause 'finite': the reference pass gives prompt .* not finite"),
        (Exploding, r"the gradient at '.*bridge.*' of the bridge is not finite"),
    ],
)
def test_what_is_not_a_number_has_not_moved_and_is_no_gradient(bench, kind, message):
    with pytest.raises(RunError, match=message):
        train(bench, kind)


def test_a_model_that_is_sure_of_its_answers_is_not_blind(bench):
    trainer = train(bench, GroupTrainer, sharpness=4000.0)
    [line] = trainer.announce.groups[0][:1]
    assert len({item["text"] for item in line["rollouts"]}) == 1  # sure: it says the same every time
