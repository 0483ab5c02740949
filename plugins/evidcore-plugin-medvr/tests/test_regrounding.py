"""Rollout `entropy-regrounding`: the law of forking, its budget, and what a fork shares with its parent."""

import dataclasses
import json
import math
from typing import ClassVar

import pytest
from evidcore_plugin_medvr.regrounding import EntropyRegrounding
from evidcore_plugin_medvr.rollout import ToolCall
from evidcore_testing.checks_rollout import check_rollout
from evidcore_testing.sampler import TinySampler

from evidcore.api import Case, Crop, Episode, Prompt, TextPart, Tool, VisualPart, VolumeRef

CROP = Crop(volume=VolumeRef(path="v.nii.gz"))


class Zoom(Tool):
    """Shows the volume again."""

    name: ClassVar[str] = "zoom"
    description: ClassVar[str] = "look closer"
    schema: ClassVar[dict] = {"type": "object", "properties": {"slice": {}, "box": {}}}

    def __call__(self, arguments, prompt):
        return (TextPart(text="closer:"), VisualPart(crop=CROP))


@pytest.fixture
def prompts():
    case = Case(id="c", patient=None, volumes=(CROP.volume,))
    return [
        Prompt(id=name, case=case, task="t", parts=(VisualPart(crop=CROP), TextPart(text=f"{name}?")))
        for name in ("one", "two")
    ]


def call(*box):
    arguments = {"slice": 6, "box": list(box)}
    return f"<think>hm</think><tool_call>{json.dumps({'name': 'zoom', 'arguments': arguments})}</tool_call>"


SAID = [call(100, 200, 300, 400), "<answer>A</answer>"]


class Sampler(TinySampler):
    """Writes `turns`, with given entropies: of the beginning, and of coordinates."""

    def __init__(self, language, turns=SAID, beginning=0.5, coordinates=1.5):
        super().__init__(language, turns=turns, stop_texts=ToolCall.stop_texts, budget_tokens=400)
        self.beginning, self.coordinates, self.reads_entropies = beginning, coordinates, True

    def _entropies(self, episode, ids):
        whole = self.decode((*episode.ids, *ids))
        start, stop = whole.rfind("["), whole.rfind("]")
        places = range(len(episode.ids), len(episode.ids) + len(ids))
        return tuple(self.coordinates if start < at < stop else self.beginning for at in places)


def forks(episodes):
    return [item for item in episodes if item.parent is not None]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("gamma", [0.0, 50.0])
def test_it_keeps_the_contract_of_a_rollout(language, prompts, share, gamma):
    strategy = EntropyRegrounding([Zoom()], base_share=share, gamma=gamma)
    check_rollout(strategy, Sampler(language), prompts, answers_per_prompt=4, most_tokens=400)


def test_a_fork_begins_before_the_first_coordinate_and_shares_what_stands_before(language, prompts):
    strategy = EntropyRegrounding([Zoom()], base_probability=1.0)
    episodes = strategy(Sampler(language), prompts, 4)
    for start in (0, 4):
        group = episodes[start : start + 4]
        assert [item.parent is not None for item in group] == [False, False, True, True]
        for item in forks(group):
            parent, token = item.parent
            assert item.ids[:token] == parent.ids[:token]
            sampler = Sampler(language)
            assert sampler.decode(parent.ids[:token]).endswith('"box": [')
            assert sampler.decode(parent.ids[token : token + 1]).startswith("1")
            assert [action.tool for action in item.actions] == ["zoom"]  # it went on to a call of its own
            assert item.finished


def test_what_is_not_forked_is_sampled_too_and_a_call_is_forked_once(language, prompts):
    never = EntropyRegrounding([Zoom()], base_probability=0.0, gamma=0.0)
    episodes = never(Sampler(language), prompts, 5)
    assert len(episodes) == 10
    assert not forks(episodes)
    assert all(item.finished for item in episodes)
    always = EntropyRegrounding([Zoom()], base_share=0.3, base_probability=1.0)
    episodes = always(Sampler(language), prompts[:1], 8)
    assert [item.parent is not None for item in episodes] == [False] * 2 + [True] * 6
    roots = [item.parent[0].ids for item in episodes[2:4]]
    assert roots == [item.ids[: len(root)] for item, root in zip(episodes[:2], roots, strict=True)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 0.5 + 0.5 * 1.0), ({"gamma": 0.25}, 0.5 + 0.25 * 1.0), ({"gamma": 9.0}, 1.0),
     ({"base_probability": 0.0, "gamma": 0.3}, 0.3), ({"gamma": 0.0}, 0.5), ({"coordinates": 0.2}, 0.0),
     ({"coordinates": 0.2, "gate": False}, 0.5 - 0.5 * 0.3),
     ({"coordinates": 0.2, "gate": False, "gamma": 0.0}, 0.5),
     ({"normalize": True}, 0.5 + 0.5 * 1.0 / math.log(260))],
)  # fmt: skip
def test_the_probability_follows_the_law(language, prompts, options, expected):
    coordinates = options.pop("coordinates", 1.5)
    strategy = EntropyRegrounding([Zoom()], **{"normalize": False, "beginning_tokens": 5, **options})
    sampler = Sampler(language, coordinates=coordinates)
    sampler.vocabulary = 260
    (paused,) = sampler.sample([Episode(prompt=prompts[0])])
    place = strategy.coordinates(sampler, paused)
    assert sampler.decode(paused.ids[slice(*place)]) == "100, 200, 300, 400"
    assert strategy.probability(sampler, paused, *place) == pytest.approx(expected)


def test_coordinates_are_as_unsure_as_their_least_sure_window(prompts):
    episode = Episode(
        prompt=prompts[0], ids=tuple(range(8)), loss_mask=(1,) * 8,
        entropies=(0.1, 0.1, 0.0, 4.0, 2.0, 0.0, 0.0, 0.0),
    )  # fmt: skip
    options = {"beginning_tokens": 2, "gamma": 0.1, "normalize": False}
    for window, rise in ((1, 0.39), (2, 0.29), (0, 0.09)):
        strategy = EntropyRegrounding([Zoom()], window_tokens=window, **options)
        assert strategy.probability(None, episode, 2, 8) == pytest.approx(0.5 + rise)


def test_the_same_draws_fork_alike(language, prompts):
    strategy = EntropyRegrounding([Zoom()])
    drawn, again = (
        [(each.ids, each.parent is None) for each in strategy(Sampler(language), prompts, 6)]
        for _ in range(2)
    )
    assert drawn == again


@pytest.mark.slow
def test_calls_are_forked_as_often_as_the_law_says(language, prompts):
    strategy = EntropyRegrounding([Zoom()], gamma=0.2, normalize=False, beginning_tokens=5)
    sampler, count, expected = Sampler(language), 2000, 0.5 + 0.2 * 1.0
    asked = [dataclasses.replace(prompts[0], id=f"prompt {number}") for number in range(count)]
    paused = sampler.sample([Episode(prompt=item) for item in asked])
    forked = sum(strategy._forked(sampler, item) is not None for item in paused)
    assert forked / count == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / count))


@pytest.mark.parametrize(
    "turn",
    ['<tool_call>{"name": "zoom", "arguments": {"slice": 6}}</tool_call>',
     '<tool_call>{"name": "zoom", "arguments": {"box": []}}</tool_call>',
     '<tool_call>{"name": "zoom", "arguments": {"box": ["a", "b"]}}</tool_call>', "[1, 2]</tool_call>",
     "</tool_call>"],
)  # fmt: skip
def test_a_call_without_coordinates_is_not_forked(language, prompts, turn):
    strategy = EntropyRegrounding([Zoom()], base_probability=1.0)
    assert not forks(strategy(Sampler(language, turns=[turn, "<answer>A</answer>"]), prompts, 4))


def test_the_call_that_is_forked_is_the_last(language, prompts):
    strategy = EntropyRegrounding([Zoom()], max_tool_calls=2, base_probability=1.0, base_share=0.25)
    turns = [call(1, 2, 3, 4), call(5, 6, 7, 8), "<answer>A</answer>"]
    sampler = Sampler(language, turns=turns)
    episodes = strategy(sampler, prompts[:1], 8)
    firsts = {len(item.parent[0].replies) for item in forks(episodes)}
    assert firsts == {0, 1}  # of first calls, and of second ones
    for item in forks(episodes):
        parent, token = item.parent
        number = "1" if not parent.replies else "5"
        assert sampler.decode(parent.ids[token : token + 1]).startswith(number)
