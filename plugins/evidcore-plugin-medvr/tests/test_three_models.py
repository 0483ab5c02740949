"""Rollouts of each kind of model, by its own sampler, tool and loss: groups, budgets, forks, gradients."""

import dataclasses
import itertools
import string

import pytest
import torch
from evidcore_plugin_encoders.testing import seeing_vlm, tiny_vlm
from evidcore_plugin_medvr.regrounding import EntropyRegrounding
from evidcore_plugin_medvr.rollout import ToolCall
from evidcore_plugin_medvr.tools import Zoom
from evidcore_testing import tiny_language, volume_case
from evidcore_testing.checks_reward import Letters
from evidcore_testing.models import tiny_vision_language

from evidcore.api import Episode
from evidcore.builtin.choice import Choice
from evidcore.builtin.rollouts import Plain
from evidcore.builtin.views import Volume
from evidcore.contracts.stage import NullSink
from evidcore.model import generation
from evidcore.model.policy import sampling_of
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.reward.composer import NamedReward
from evidcore.train.sampler import InProcess, PolicySampler, parents, run_strategy
from evidcore.train.settings import GrpoSettings
from evidcore.train.trl import stage
from evidcore.train.trl.grpo import make_trainer
from evidcore.train.trl.trainer import GroupTrainer

# what may stand in each place of a call: the model chooses the corners of its box
CORNERS = ", ".join(f"{first}##" for first in "<<>>")
CALL = f'<tool_call>{{"name": "zoom", "arguments": {{"slice": 6, "box": [{CORNERS}]}}}}</tool_call>'
OPEN = CALL.index("[")
CHOICES = [
    {"#": string.digits, "<": "123", ">": "789"}.get(one, one) if OPEN < place < CALL.index("]") else one
    for place, one in enumerate(CALL)
]
LONG = 2 * len(CALL) + 6  # two calls, and the beginning of an answer


class Guided(InProcess):
    """The model itself, sampled under a grammar: the first `calls` turns of an answer are calls of zoom."""

    def __init__(self, monkeypatch, calls):
        self.calls, self.begun = calls, None
        monkeypatch.setattr(generation, "_TokenSampler", lambda *given: GuidedChooser(self, *given))

    def begin(self, model, processor, stop_texts):
        rows, self.tokenizer = super().begin(model, processor, stop_texts), processor.tokenizer

        def continue_rows(prefixes, *given, **named):
            self.begun = [self._place(prefix) for prefix in prefixes]
            try:
                return rows(prefixes, *given, **named)
            finally:
                self.begun = None

        return continue_rows

    def _place(self, prefix):
        """Return how much of a call the model has written in its turn; the whole of it where it is free."""
        answer = self.tokenizer.decode(prefix.ids[len(prefix.prompt.ids) :] if prefix.prompt else [])
        turns = answer.split("<|im_start|>assistant\n")
        return len(CALL) if len(turns) > self.calls else len(turns[-1])


class GuidedChooser(generation._TokenSampler):
    """Chooses as the model does, among what the grammar allows."""

    def __init__(self, engine, *given):
        super().__init__(*given)
        self.engine, self.begun = engine, engine.begun

    def __call__(self, logits, step, rows, required):
        for row, place in enumerate(rows.tolist() if self.begun else ()):
            if self.begun[place] + step < len(CALL):
                allowed = self.engine.tokenizer(CHOICES[self.begun[place] + step])["input_ids"]
                kept = logits[row, allowed]
                logits[row] = -torch.inf
                logits[row, allowed] = kept
        return super().__call__(logits, step, rows, required)


@pytest.fixture(params=["volume", pytest.param("qwen2_5_vl", marks=pytest.mark.slow), "qwen3_vl"])
def made(request, tmp_path):
    """A model of each kind and its processor."""
    torch.set_num_threads(1)
    folder = tmp_path / "language"
    if request.param == "volume":
        return tiny_vlm(tiny_language(folder), sharpness=3.0)
    eyes = {"size": 64 if request.param == "qwen3_vl" else 56, "slices": 2}
    return seeing_vlm(tiny_vision_language(folder, request.param), eyes=eyes)


@pytest.fixture
def source(tmp_path):
    cases = [volume_case(tmp_path / "volumes", seed) for seed in range(4)]
    asked = PromptSet(name="choice", task=Choice(think=False), view=Volume(), cases=cases)
    return PromptSource([asked], seed=1)


@pytest.fixture
def prompts(source):
    return [source[number].prompt for number in range(2)]


def forking(**changed):
    """Give a strategy that forks each call while its group has forks left."""
    options = {"base_probability": 1.0, "gate": False, "show_tools": False, **changed}
    return EntropyRegrounding([Zoom(Volume(), smallest_side=4)], **options)


def calling(**changed):
    return ToolCall([Zoom(Volume(), smallest_side=4)], show_tools=False, **changed)


def sampler_of(made, prompts, strategy, budget, engine=None):
    model, processor = made
    model.eval()
    sampling = sampling_of(model, processor, max_new_tokens=budget, temperature=1.0)
    positions = {id(prompt): number for number, prompt in enumerate(prompts)}
    return PolicySampler(model, processor, sampling, positions, seed=1, strategy=strategy, engine=engine)


def sampled(made, prompts, strategy, budget, answers, engine=None):
    sampler = sampler_of(made, prompts, strategy, budget, engine)
    return run_strategy(strategy, sampler, prompts, answers)


def of_tools(episode):
    """Return whether each token was given by a tool."""
    return [any(item.start <= at < item.stop for item in episode.replies) for at in range(len(episode.ids))]


@pytest.mark.slow
def test_a_fork_has_of_its_parent_each_token_crop_and_entropy_before_its_first_own(
    made, prompts, monkeypatch
):
    result = sampled(made, prompts, forking(base_share=0.2), LONG, 5, Guided(monkeypatch, calls=2))
    sampler = sampler_of(made, prompts, forking(), LONG)
    forks = [item for item in result if item.parent]
    assert len(forks) == 8
    for fork in forks:
        parent, token = fork.parent
        assert sampler.decode(fork.ids[:token]).endswith('"box": [')
        assert fork.ids[:token] == parent.ids[:token]
        assert fork.entropies[:token] == parent.entropies[:token]
        crops = [crop for crop in parent.crops if crop[0] < token]
        assert [crop for crop in fork.crops if crop[0] < token] == crops
        begun, other = (
            dataclasses.replace(
                item, ids=item.ids[:token], loss_mask=item.loss_mask[:token], entropies=(), crops=tuple(crops)
            )
            for item in (fork, parent)
        )
        assert sampler.prefix(begun) == sampler.prefix(other)
        assert [action.error for action in fork.actions] == [None, None]
    assert {len(item.parent[0].replies) for item in forks} == {0, 1}  # with a crop before, and without
    for group in (result[:5], result[5:]):
        for fork, (place, first) in zip(group[1:], parents(group)[1:], strict=True):
            assert fork.ids[:first] == group[place].ids[:first]
        assert len({item.ids for item in group}) == 5  # each went on by draws of its own


@pytest.mark.slow
def test_a_group_of_first_samples_alone_is_what_tool_call_samples(made, prompts, monkeypatch):
    kept, other = (
        sampled(made, prompts, strategy, LONG, 3, Guided(monkeypatch, calls=2))
        for strategy in (forking(base_share=1.0), calling())
    )
    assert all(len(item.actions) == 2 for item in kept)
    for field in ("ids", "loss_mask", "crops", "actions", "replies"):
        assert [getattr(item, field) for item in kept] == [getattr(item, field) for item in other]


def test_a_group_of_first_samples_alone_is_plain_sampling_where_nothing_is_called(made, prompts):
    kept, other = (sampled(made, prompts, strategy, 40, 3) for strategy in (forking(base_share=1.0), Plain()))
    assert [item.ids for item in kept] == [item.ids for item in other]


class OverLogits(GroupTrainer):
    """Keeps the logits behind the log-probabilities of the loss, where it is asked to."""

    logits = None
    keeps_logits = False

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, count, *given, **named):
        result = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, count, *given, **named
        )
        if not self.keeps_logits:
            return result
        pixels = named["pixel_values"]
        output = model(input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixels)
        self.logits = output.logits
        self.logits.retain_grad()
        ids = input_ids[:, -count:, None]
        log_probs = self.logits[:, -count - 1 : -1].log_softmax(-1).gather(-1, ids).squeeze(-1)
        there = attention_mask[:, -count:].bool()
        torch.testing.assert_close(log_probs[there], result[0][there], rtol=0, atol=1e-4)
        return log_probs, *result[1:]


def gradient(trainer, model, batch):
    model.zero_grad()
    trainer._compute_loss(model, batch).backward()
    return torch.cat([item.grad.flatten() for item in model.parameters() if item.grad is not None])


@pytest.mark.slow
def test_the_loss_has_no_gradient_at_the_logits_of_what_a_tool_gave(made, source, monkeypatch, tmp_path):
    settings = GrpoSettings(
        train=("bridge", "language"), steps=1, learning_rate=1e-3, prompts_per_step=2, answers_per_prompt=4,
        max_new_tokens=LONG, trl={"beta": 0.1},
    )  # fmt: skip
    model, processor = made
    trainer = make_trainer(
        model, processor, source, [NamedReward(name="letters", reward=Letters())], settings,
        tmp_path / "grpo", seed=1, announce=NullSink(), strategy=forking(),
        engine=Guided(monkeypatch, calls=2), kind=OverLogits,
    )  # fmt: skip
    stage.train(trainer, tmp_path / "grpo", resume=False)
    [batch] = trainer._buffered_inputs
    model.train()
    own = gradient(trainer, model, batch)
    trainer.keeps_logits = True
    torch.testing.assert_close(gradient(trainer, model, batch), own, rtol=1e-3, atol=1e-5)
    moved = trainer.logits.grad.abs().amax(-1)
    before = batch["prompt_ids"].shape[1]
    assert len(moved) == len(trainer.episodes) == 8
    assert any(item.parent for item in trainer.episodes)
    for row, episode in zip(moved, trainer.episodes, strict=True):
        pushed = row[before - 1 :][: len(episode.ids)]  # a token is predicted by the place before it
        given = torch.tensor(of_tools(episode))
        assert given.any()
        assert not pushed[given].any()
        assert pushed[~given].any()
        for turn, tokens in itertools.groupby(
            zip(given.tolist(), pushed.tolist(), strict=True), lambda item: item[0]
        ):
            assert turn or any(value for _, value in tokens)  # each turn of the model learns
        assert not row[: before - 1].any()
        assert not row[before - 1 + len(episode.ids) :].any()


@pytest.mark.parametrize("token", ["<|im_end|>", "<|image_pad|>"])
@pytest.mark.parametrize(
    "arguments", ['{"slice": "%s"}', '{"slice": 6, "box": ["%s", 0, 9, 9]}', '{"%s": 6}']
)
@pytest.mark.parametrize("as_json", [True, False], ids=["as JSON", "as it is"])
def test_a_control_token_in_an_argument_ends_no_turn_and_shows_no_picture(
    made, prompts, arguments, token, as_json
):
    strategy = calling()
    sampler = sampler_of(made, prompts, strategy, LONG)
    tokenizer = made[1].tokenizer
    spelt = token.replace("|", "\\u007c") if as_json else token

    def reply(words):
        call = f'<tool_call>{{"name": "zoom", "arguments": {arguments % words}}}</tool_call>'
        ids = tokenizer(call)["input_ids"]
        assert (tokenizer.convert_tokens_to_ids(token) in ids) == (words == token)
        episode = Episode(prompt=prompts[0], ids=tuple(ids), loss_mask=(1,) * len(ids))
        answered = strategy.replied(sampler, episode)
        return answered, answered.ids[len(ids) :]

    answered, given = reply(spelt)
    _, told = reply("word")
    assert answered.actions[0].error
    assert not answered.crops
    control = {tokenizer.convert_tokens_to_ids(item) for item in (token, "<|im_start|>")}
    assert [item for item in given if item in control] == [item for item in told if item in control]
