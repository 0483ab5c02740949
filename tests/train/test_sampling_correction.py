"""Answers of another engine than the policy: what they weigh in the loss."""

import dataclasses
import math

import pytest
import torch

from evidcore.errors import RecipeError
from evidcore.train.sampler import InProcess
from evidcore.train.trl import stage


class Elsewhere(InProcess):
    """The model itself, as if it were another, that says other log-probabilities than it sampled by."""

    is_policy = False

    def __init__(self, shift=0.0):
        self.shift, self.given = shift, []

    def begin(self, model, processor, stop_texts):
        rows = super().begin(model, processor, stop_texts)

        def shifted(prefixes, sampling, **options):
            result = rows(prefixes, sampling, **options)
            said = [tuple(value + self.shift for value in item.log_probs) for item in result]
            self.given += said
            return [dataclasses.replace(item, log_probs=own) for item, own in zip(result, said, strict=True)]

        return shifted


@pytest.fixture
def trained(bench):
    """Return a function that takes a step by SGD; it gives the weights' change, trainer and figures."""

    def run(engine, **trl):
        model, processor = bench.model()
        before = bench.flat(model).clone()
        plain = {"optim": "sgd", "max_grad_norm": 0.0, "weight_decay": 0.0, "beta": 0.0, **trl}
        changed = {"steps": 1, "learning_rate": 1.0, "pixel_check_every_steps": 0, "trl": plain}
        trainer = bench.grpo_trainer(model=(model, processor), engine=engine, **changed)
        stage.train(trainer, bench.folder, resume=False)
        return bench.flat(model) - before, trainer, trainer.announce.steps[0]

    return run


LIMITS = {"top_k": 20, "top_p": 0.8, "min_p": 0.1}


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_make_another_engines_log_probabilities_those_of_another_thing(bench, limit):
    given = {"trl": {limit: LIMITS[limit]}}
    with pytest.raises(RecipeError, match=rf"sampler: with trl.{limit} = [\d.]+ its log-.* Take it out"):
        bench.grpo_trainer(engine=Elsewhere(), **given)
    bench.grpo_trainer(engine=InProcess(), **given)
    bench.grpo_trainer(engine=Elsewhere(), trl={"top_k": 0, "top_p": 1.0, "min_p": None})
    engine = InProcess()
    engine.applies = ()
    with pytest.raises(RecipeError, match=rf"sampler: it does not apply trl.{limit} = [\d.]+\. Take it out"):
        bench.grpo_trainer(engine=engine, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "shift", "weight"),
    [
        ("token_truncate", 0.0, 1.0),
        ("token_truncate", -0.5, math.exp(0.5)),
        ("token_truncate", -2.0, 3.0),  # above the bound
        ("token_mask", -0.5, math.exp(0.5)),
        ("token_mask", -2.0, 0.0),
        ("sequence_mask", -2.0, 0.0),
    ],
)
def test_the_loss_is_weighed_by_what_the_policy_gave_over_what_the_engine_gave(trained, mode, shift, weight):
    bounds = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 3.0}
    usual, _, figures = trained(None)
    result, _, told = trained(Elsewhere(shift), **bounds)
    assert usual.abs().max() > 1e-3
    torch.testing.assert_close(result, weight * usual, rtol=0, atol=1e-5 if shift else 1e-6)
    assert "sampling_difference" not in figures
    differences = [told[f"sampling_difference{which}"] for which in ("", "_most")]
    assert differences == pytest.approx([-shift] * 2, abs=1e-3 if shift else 1e-4)
    weights = [told[f"sampling_weight{which}"] for which in ("", "_least", "_most")]
    assert weights == pytest.approx([weight] * 3, abs=1e-3)


def test_the_weight_of_an_answer_is_that_of_all_its_tokens_bounded(trained):
    bounds = {"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_max": 1.3}
    _, trainer, told = trained(Elsewhere(-0.05), **bounds)
    result = torch.cat([part["importance_sampling_ratio"] for part in trainer._buffered_inputs])
    expected = [min(math.exp(0.05 * len(item.ids)), 1.3) for item in trainer.episodes]
    assert result[:, 0].tolist() == pytest.approx(expected, abs=1e-3)
    assert told["sampling_weight_most"] == pytest.approx(max(expected), abs=1e-3)


@pytest.mark.slow
def test_answers_keep_what_the_engine_gave_and_no_others_do(trained):
    engine = Elsewhere(-0.5)
    _, trainer, _ = trained(engine)
    assert sorted(item.log_probs for item in trainer.episodes) == sorted(engine.given)
    _, trainer, _ = trained(None)
    assert {item.log_probs for item in trainer.episodes} == {()}
