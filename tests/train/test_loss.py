"""The loss of a GRPO stage and its gradient, against the formula in plain torch.

Two rewards of weights 0.3 and 0.7, the second behind a gate; one group in which all say the same; two updates
on the same answers, of which the second reaches the clip.
"""

import copy
import zlib

import pytest
import torch

from evidcore.api import Reward, Score
from evidcore.reward.composer import NamedReward
from evidcore.train.trl import stage

TEMPERATURE, MOST_TOKENS, PROMPTS, ANSWERS, DEAD_GROUP = 0.6, 6, 4, 4, 1
WEIGHTS = {"gate": 0.0, "open": 0.3, "gated": 0.7}


def value(name, text, group):
    """What a reward says of an answer: some number in 0..1; a gate shuts about one of three."""
    if group == DEAD_GROUP:
        return 0.5
    drawn = zlib.crc32(f"{name}/{text}".encode()) % 100 / 100
    return float(drawn > 0.3) if name == "gate" else drawn


class Drawn(Reward):
    def __init__(self, name):
        self.name = name

    def __call__(self, rollouts, earlier):
        return [Score(value=value(self.name, item.text, item.group)) for item in rollouts]


def total(text, group):
    """The weighted sum that the recipe asks for."""
    is_open = value("gate", text, group) > 0
    return 0.3 * value("open", text, group) + 0.7 * value("gated", text, group) * is_open


class Watched:
    """A trainer after two updates on the same answers, with what its loss was made of."""

    def __init__(self, bench, **changed):
        model, processor = bench.model()
        self.heard = bench.heard()
        settings = {
            "steps": 2, "learning_rate": 0.3, "prompts_per_step": PROMPTS, "answers_per_prompt": ANSWERS,
            "max_new_tokens": MOST_TOKENS, "temperature": TEMPERATURE, **changed,
        }  # fmt: skip
        plain = {"optim": "sgd", "num_iterations": 2, "weight_decay": 0.0}
        settings["trl"] = {**plain, **changed.get("trl", {})}
        rewards = [
            NamedReward(name=name, reward=Drawn(name), weight=weight, gate="gate" if name == "gated" else "")
            for name, weight in WEIGHTS.items()
        ]
        self.trainer = bench.grpo_trainer(
            model=(model, processor), rewards=rewards, heard=self.heard, **settings
        )
        self.weights, self.gradients = [], []
        self.trainer._clip_grad_norm = lambda _: self._keep(model) or torch.tensor(0.0)
        stage.train(self.trainer, bench.folder, resume=False)
        stage.unwrap(self.trainer, model)

    def _keep(self, model):
        self.weights.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
        self.gradients.append({
            name: weight.grad.clone() for name, weight in model.named_parameters() if weight.requires_grad
        })


class ByHand:
    """The same updates written out, from the answers and the weights before each."""

    def __init__(self, bench, watched):
        self.bench, (self.start, self.processor) = bench, bench.model()
        self.start.train_only(["bridge", "language"])
        self.prompts = [bench.source()[number].prompt for number in range(PROMPTS)]
        self.answers = [list(item.ids) for item in watched.trainer.episodes]
        self.watched = watched
        [lines] = watched.heard.groups
        assert [line["prompt_id"] for line in lines] == [prompt.id for prompt in self.prompts]
        self.recorded = [item for line in lines for item in line["rollouts"]]
        totals = torch.tensor([
            total(item["text"], number // ANSWERS) for number, item in enumerate(self.recorded)
        ])
        assert [item["total"] for item in self.recorded] == pytest.approx(totals.tolist(), abs=1e-6)
        groups = totals.reshape(PROMPTS, ANSWERS)
        by_group = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        self.advantages = by_group.flatten()
        self.advantages[DEAD_GROUP * ANSWERS : (DEAD_GROUP + 1) * ANSWERS] = 0.0
        assert [item["advantage"] for item in self.recorded] == pytest.approx(
            self.advantages.tolist(), abs=1e-4
        )

    def log_probs(self, model):
        """Of each answer's tokens, at the sampling temperature."""
        return [
            self.bench.log_probs(model, self.processor, self.prompts[number // ANSWERS], ids, TEMPERATURE)
            for number, ids in enumerate(self.answers)
        ]

    def update(self, number, kind="grpo", beta=0.0, low=0.2, high=0.2, corrected=False):
        """Return loss, gradients and the share of clipped tokens of an update."""
        model = copy.deepcopy(self.start)
        model.load_state_dict(self.watched.weights[number], strict=False)
        with torch.no_grad():
            old = self.log_probs(self.start)  # sampled before the first update; the reference too
        per_token, clipped = [], []
        for mine, theirs, advantage in zip(self.log_probs(model), old, self.advantages, strict=True):
            ratio = (mine - theirs).exp()
            bounded = ratio.clamp(1 - low, 1 + high)
            clipped.append(ratio * advantage > bounded * advantage)
            divergence = (theirs - mine).exp() - (theirs - mine) - 1  # Schulman's k3
            divergence = divergence * ratio if corrected else divergence
            per_token.append(-torch.minimum(ratio * advantage, bounded * advantage) + beta * divergence)
        loss = {
            "grpo": lambda: torch.stack([entry.mean() for entry in per_token]).mean(),
            "bnpo": lambda: torch.cat(per_token).mean(),
            "dapo": lambda: torch.cat(per_token).mean(),  # over the tokens of all processes: here one
            "dr_grpo": lambda: torch.cat(per_token).sum() / (PROMPTS * ANSWERS * MOST_TOKENS),
        }[kind]()
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
        return loss.item(), gradients, float(torch.cat(clipped).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trl", "expected"),
    [
        ({}, {}),
        ({"beta": 0.04}, {"beta": 0.04}),
        ({"beta": 0.04, "epsilon": 0.1, "epsilon_high": 0.28}, {"beta": 0.04, "low": 0.1, "high": 0.28}),
        ({"beta": 0.04, "use_bias_correction_kl": True}, {"beta": 0.04, "corrected": True}),
        ({"loss_type": "dapo"}, {"kind": "dapo"}),
        ({"loss_type": "bnpo", "beta": 0.04}, {"kind": "bnpo", "beta": 0.04}),
        ({"loss_type": "dr_grpo"}, {"kind": "dr_grpo"}),
    ],
    ids=["grpo", "beta", "epsilons", "corrected-kl", "dapo", "bnpo", "dr-grpo"],
)
def test_two_updates_on_the_same_answers_follow_the_formula(bench, trl, expected):
    watched = Watched(bench, trl=trl)
    reference = ByHand(bench, watched)
    assert watched.heard.steps[0]["dead_groups"] == 1 / PROMPTS
    for number in range(2):
        loss, gradients, clipped = reference.update(number, **expected)
        assert watched.heard.steps[number]["loss"] == pytest.approx(loss, abs=2e-5)
        for name, gradient in gradients.items():
            result = watched.gradients[number][name]
            assert (result - gradient).norm() <= 2e-3 * gradient.norm() + 1e-6, (number, name)
    assert 0.05 < clipped < 0.6, "the clip is to be reached, but not by all"
