"""Runs in which a call of a reward fails: what is learnt, what is told, when it is too much."""

import logging

import pytest
import torch
from evidcore_plugin_pages.document import stage_curves
from evidcore_plugin_pages.tables import figures
from evidcore_testing.checks_reward import Letters

from evidcore.api import Unscored, find
from evidcore.errors import ContractError
from evidcore.reward.composer import NamedReward
from evidcore.train.grpo import asks_policy
from evidcore.train.trl import stage


def run(bench, name, rewards, *, heard=None, **changed):
    """Train; return the model, what was told of its steps, and the stage's figures."""
    model, heard = bench.model(), heard or bench.heard()
    result = bench.grpo(model=model, rewards=rewards, heard=heard, folder=name, **changed)
    return model[0], heard, result


class Fails(Letters):
    """Gives the share of letters, where it does not raise."""

    def __init__(self, fails=lambda rollouts: True):
        self.fails = fails

    def __call__(self, rollouts, earlier):
        if self.fails(rollouts):
            raise OSError("the judge has gone")
        return super().__call__(rollouts, earlier)


def named(reward, name="mine", **changed):
    return NamedReward(name=name, reward=reward, package="their-package 1.2", **changed)


@pytest.mark.slow
@pytest.mark.parametrize("trl", [{}, {"beta": 0.1}])
def test_a_step_whose_reward_failed_is_that_step_without_the_reward(bench, trl):
    alone, _, _ = run(bench, "alone", [bench.letters()], trl=trl)
    others = [named(Fails(), weight=3.0), named(bench.Letters(), "gated", weight=2.0, gate="mine")]
    beside, heard, result = run(bench, "beside", [*others, bench.letters()], trl=trl, max_failure_rate=0.1)
    assert torch.equal(bench.flat(alone), bench.flat(beside))
    assert [step["failed_calls/mine"] for step in heard.steps] == [1.0, 1.0]
    assert [step["failed_calls/gated"] for step in heard.steps] == [0.0, 0.0]
    assert [step["unscored/mine"] for step in heard.steps] == [16, 16]
    assert result["failed_calls"] == {"mine": 2.0}
    verdict = heard.groups[0][0]["rollouts"][0]["rewards"]["mine"]
    assert (verdict["value"], verdict["unscored"]) == (None, "failed")
    assert verdict["reason"] == "OSError: the judge has gone"


def test_a_step_whose_every_reward_failed_moves_nothing(bench, caplog):
    start, _ = bench.model()
    with caplog.at_level(logging.WARNING):
        plain = {"trl": {"beta": 0.0, "weight_decay": 0.0}}
        trained, heard, _ = run(bench, "none", [named(Fails())], max_failure_rate=0.1, **plain)
    assert [item["grad_norm"] for item in heard.steps] == [0.0, 0.0]
    assert torch.equal(bench.flat(trained), bench.flat(start))
    said = [item.getMessage() for item in caplog.records]
    assert sum("reward 'mine' failed with OSError" in item for item in said) == 1
    assert not any("answers of the start policy earn the same" in item for item in said)


class Holes(Letters):
    """Fails to judge the second and the last of four answers, in every group but the first."""

    def __call__(self, rollouts, earlier):
        failed, scores = Unscored(kind="failed", reason="no mask"), super().__call__(rollouts, earlier)
        return [
            failed if item.group and place % 4 in (1, 3) else scores[place]
            for place, item in enumerate(rollouts)
        ]


@pytest.mark.slow
def test_the_gradient_is_that_of_the_scored_rows_measured_among_themselves(bench):
    model, processor = bench.model()
    start, own = bench.model()
    start.train_only(["bridge", "language"])
    trainer = bench.grpo_trainer(
        model=(model, processor), rewards=[named(Holes())], steps=1,
        trl={"beta": 0.0, "scale_rewards": "none", "optim": "sgd"},
    )  # fmt: skip
    gradients = {}

    def keep(_):
        gradients.update({
            name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad
        })
        return torch.tensor(0.0)

    trainer._clip_grad_norm = keep
    stage.train(trainer, bench.folder, resume=False)
    loss = torch.tensor(0.0)
    for first in range(0, 16, 4):
        scored = [first, first + 2] if first else [0, 1, 2, 3]
        worth = {place: bench.share_of_letters(trainer.rollouts[place].text) for place in scored}
        mean = sum(worth.values()) / len(worth)
        for place in scored:
            episode = trainer.episodes[place]
            log_probs = bench.log_probs(start, own, episode.prompt, episode.ids)
            loss = loss - (worth[place] - mean) * log_probs.mean() / 16
    loss.backward()
    expected = {name: weight.grad for name, weight in start.named_parameters() if weight.requires_grad}
    assert max(gradient.norm() for gradient in expected.values()) > 1e-3
    for name, gradient in expected.items():
        assert (gradients[name] - gradient).norm() <= 2e-3 * gradient.norm() + 1e-6, name


def failing_at(bench, *steps):
    """A reward that fails at steps of four prompts, whichever process asks it."""
    source = bench.source()
    prompts = [source[4 * (step - 1)].prompt.id for step in steps]
    return [named(Fails(lambda rollouts: rollouts[0].prompt.id in prompts))]


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_counts(bench):
    rewards = failing_at(bench, 2, 5)
    changed = {"steps": 6, "save_every_steps": 2, "max_failure_rate": 0.1}
    whole, heard, result = run(bench, "whole", rewards, **changed)
    assert [item["failed_calls/mine"] for item in heard.steps] == [0, 1, 0, 0, 1, 0]
    assert result["failed_calls"] == {"mine": 2.0}
    assert "failed_calls/mine" in stage_curves(heard.steps)
    assert '<dt>mine</dt><dd><data value="2.0">2</data>' in figures(result)
    with pytest.raises(bench.Stopped):
        run(bench, "killed", rewards, heard=bench.stopping(5), **changed)
    rest, later, again = run(bench, "killed", rewards, resume=True, **changed)
    assert [item["step"] for item in later.steps] == [5, 6]
    assert again["failed_calls"] == {"mine": 2.0}
    assert torch.equal(bench.flat(whole), bench.flat(rest))


@pytest.mark.slow
def test_failures_before_a_resume_count_towards_max_failed(bench):
    rewards = failing_at(bench, 2, 5)
    changed = {"steps": 6, "save_every_steps": 2, "max_failure_rate": 0.05}
    with pytest.raises(bench.Stopped):
        run(bench, "killed", rewards, heard=bench.stopping(4), **changed)
    heard = bench.heard()
    with pytest.raises(ContractError) as caught:
        run(bench, "killed", rewards, heard=heard, resume=True, **changed)
    assert "2 of its 20 calls in the last 20 steps failed (10 %), and max_failure_rate is 0.05" in str(
        caught.value
    )
    assert str(caught.value).count("prompt ") == 3
    assert len(heard.groups) == len(heard.steps) + 1  # the rows of the step that ended it are kept


REWARDS = """[evidcore.reward]
asks = evid_asks:Asks
names = evid_asks:Names
plain = evid_asks:Plain
[evidcore.reader]
eyes = evid_asks:Eyes
"""


class Asks:
    def __init__(self, policy):
        pass


class Silent:
    pass


class Names:
    def __init__(self, *, reader):
        pass


@pytest.mark.parametrize(
    ("use", "table", "asks"),
    [
        ("asks", {}, True), ("names", {"reader": "judge"}, True), ("names", {"reader": "other"}, False),
        ("plain", {"name": "judge-of-others"}, False),
    ],
)  # fmt: skip
def test_it_is_known_which_rewards_use_the_model_that_is_trained(offered, use, table, asks):
    offered("evid-asks", REWARDS, Asks=Asks, Names=Names, Plain=Silent, Eyes=Asks)
    services = {"judge": {"kind": "reader", "use": "eyes"}, "other": {"kind": "reward", "use": "plain"}}
    assert asks_policy(find("reward", use), table, services) is asks
