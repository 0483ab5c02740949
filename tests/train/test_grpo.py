import dataclasses

import pytest
import torch

from evidcore.api import Episode, RolloutStrategy
from evidcore.builtin.rollouts import Plain
from evidcore.errors import ContractError
from evidcore.model.bank import FeatureBank
from evidcore.reward.composer import NamedReward


def test_equal_rewards_give_no_gradient_where_beta_is_0_and_are_warned_of(bench, caplog):
    start, _ = bench.model()
    constant = NamedReward(name="constant", reward=bench.Constant(), weight=0.7)
    other = {"answers_per_prompt": 6, "trl": {"beta": 0.0, "weight_decay": 0.0}}
    trained, heard = bench.run(rewards=[constant], **other)
    assert [item["grad_norm"] for item in heard.steps] == [0.0, 0.0]
    assert [item["dead_groups"] for item in heard.steps] == [1.0, 1.0]
    assert torch.equal(bench.flat(trained), bench.flat(start))
    (said,) = [item.getMessage() for item in caplog.records if "start policy" in item.getMessage()]
    assert "in 100 % of the groups all answers of the start policy earn the same" in said
    assert said.endswith("; 100 % of the answers are cut off")


def test_volumes_of_the_next_prompts_are_prefetched_while_these_are_answered(bench, monkeypatch):
    asked = []
    monkeypatch.setattr(FeatureBank, "prefetch", lambda self, handle: asked.append(self.crop(handle)))
    source = bench.source()
    bench.run(source=source, steps=3, prompts_per_forward=2)
    shown = [crop for position in range(4, 12) for crop in source[position].prompt.crops()]
    assert asked == shown  # of the second and third step; those of the first had no step before them


class Credits(Plain):
    """Gives each token of an answer credit."""

    def __init__(self, credit):
        self.credit = credit

    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = super().__call__(sampler, prompts, answers_per_prompt)
        return [dataclasses.replace(each, credit=self.credit(len(each.ids))) for each in episodes]


@pytest.mark.slow
@pytest.mark.parametrize("trl", [{}, {"beta": 0.1}, {"loss_type": "dapo"}])
def test_credit_multiplies_the_advantage_of_each_token(bench, trl):
    own = {"optim": "sgd", "max_grad_norm": 1e9, **trl}  # gradients that are clipped do not add up
    plain = {"learning_rate": 0.05, "prompts_per_forward": 1, "trl": own}
    start = bench.flat(bench.model()[0])

    def moved(name, **other):
        return bench.flat(bench.run(name, **plain, **other)[0]) - start

    none = moved("none")
    ones = moved("ones", strategy=Credits(lambda count: (1.0,) * count))
    assert none.abs().max() > 1e-4
    torch.testing.assert_close(ones, none, rtol=0, atol=1e-6)
    first = moved("first", steps=1, strategy=Credits(lambda count: (1.0,) + (0.0,) * (count - 1)))
    rest = moved("rest", steps=1, strategy=Credits(lambda count: (0.0,) + (1.0,) * (count - 1)))
    assert min(first.abs().max(), rest.abs().max()) > 1e-5
    if not trl.get("beta"):  # a penalty for each token is paid in both
        torch.testing.assert_close(first + rest, moved("whole", steps=1), rtol=0, atol=1e-6)


def test_a_group_whose_tokens_have_no_credit_is_a_dead_one(bench):
    start, _ = bench.model()
    trained, heard = bench.run(strategy=Credits(lambda count: (0.0,) * count))
    assert [item["grad_norm"] for item in heard.steps] == [0.0, 0.0]
    torch.testing.assert_close(bench.flat(trained), bench.flat(start), rtol=0, atol=1e-6)
    assert any(item["advantage"] for group in heard.groups[0] for item in group["rollouts"])  # the answer's


@pytest.mark.slow
def test_the_order_of_rewards_does_not_matter(bench):
    constant = NamedReward(name="constant", reward=bench.Constant(), weight=0.3)
    first, _ = bench.run("first", rewards=[bench.letters(), constant])
    last, _ = bench.run("last", rewards=[constant, bench.letters()])
    torch.testing.assert_close(bench.flat(first), bench.flat(last), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_answers_get_better_at_what_is_rewarded(bench):
    _, heard = bench.run(steps=25, learning_rate=3e-3)
    early = sum(item["reward"] for item in heard.steps[:5]) / 5
    late = sum(item["reward"] for item in heard.steps[-5:]) / 5
    assert late > early + 0.15


def test_what_is_told_of_a_step(bench):
    _, heard = bench.run(rewards=[bench.letters(weight=2.0)])
    step, lines = heard.steps[0], heard.groups[0]
    assert [item["step"] for item in heard.steps] == [1, 2]
    values = [bench.share_of_letters(item["text"]) for line in lines for item in line["rollouts"]]
    assert step["reward/letters"] == pytest.approx(sum(values) / 16)
    assert step["reward"] == pytest.approx(2 * sum(values) / 16)
    assert {"loss", "grad_norm", "entropy", "completion_tokens"} <= set(step)  # times are test_timing's
    assert len(lines) == 4
    for line in lines:
        assert len(line["rollouts"]) == 4
        assert sum(item["advantage"] for item in line["rollouts"]) == pytest.approx(0.0, abs=1e-4)
        assert line["task"] == "choice"
        assert line["reference"]["options"]


class Short(RolloutStrategy):
    def __call__(self, sampler, prompts, answers_per_prompt):
        return sampler.sample([Episode(prompt=prompt) for prompt in prompts])


class Mixed(RolloutStrategy):
    def __call__(self, sampler, prompts, answers_per_prompt):
        return sampler.sample([Episode(prompt=one) for _ in range(answers_per_prompt) for one in prompts])


def test_a_strategy_that_gives_no_whole_groups_is_named(bench):
    item = {"train": ("language",)}
    with pytest.raises(ContractError, match="rollout Short: must give 4 answers to each of 2 prompts, got"):
        bench.run(strategy=Short(), **item)
    text_only = dataclasses.replace(bench.set_of(), view=bench.NoPixels())
    with pytest.raises(ContractError, match="rollout Mixed: answer 1 must be one to prompt"):
        bench.run(strategy=Mixed(), source=bench.source(text_only), **item)
