import dataclasses
import json
from typing import ClassVar

import pytest
from evidcore_plugin_medvr.rollout import ToolCall

from evidcore.case import Crop, Prompt, TextPart, VisualPart
from evidcore.contracts import Tool
from evidcore.testing.checks_rollout import check_rollout
from evidcore.testing.data import volume_case
from evidcore.testing.models import tiny_language
from evidcore.testing.sampler import TinySampler


class Look(Tool):
    """Shows the volume again, and remembers what it was asked."""

    name: ClassVar[str] = "look"
    description: ClassVar[str] = "look again"
    schema: ClassVar[dict] = {"type": "object", "properties": {"slice": {"type": "integer"}}}

    def __init__(self):
        self.asked = []

    def __call__(self, arguments, prompt):
        self.asked.append(arguments)
        if arguments.get("slice", 0) > 11:
            raise ValueError(f"slice {arguments['slice']} lies outside 0..11")
        return (TextPart(text="again:"), VisualPart(crop=prompt.crops()[0]))


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    return tiny_language(tmp_path_factory.mktemp("language") / "tiny")


@pytest.fixture
def prompts(tmp_path):
    cases = [volume_case(tmp_path, seed) for seed in range(2)]
    return [
        Prompt(
            id=f"question-{case.id}",
            case=case,
            task="test",
            parts=(VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text="What is there?")),
        )
        for case in cases
    ]


def call(**arguments):
    return (
        f"<think>closer</think><tool_call>{json.dumps({'name': 'look', 'arguments': arguments})}</tool_call>"
    )


def test_tool_call_keeps_the_contract(language, prompts):
    sampler = TinySampler(language, turns=[call(slice=3), "<answer>A</answer>"], budget_tokens=400)
    check_rollout(ToolCall([Look()]), sampler, prompts, answers_per_prompt=2)


def test_a_call_is_carried_out_and_its_tokens_are_not_trained(language, prompts):
    tool = Look()
    sampler = TinySampler(language, turns=[call(slice=3), "<answer>A</answer>"], budget_tokens=400)
    [episode] = ToolCall([tool])(sampler, prompts[:1], 1)
    assert tool.asked == [{"slice": 3}]
    [action] = episode.actions
    assert (action.tool, dict(action.arguments), action.error) == ("look", {"slice": 3}, None)
    assert [crop for _, crop in episode.crops] == [prompts[0].crops()[0]]
    assert sampler.text(episode) == f"{call(slice=3)}again:<answer>A</answer>"
    written = [token for token, mask in zip(episode.ids, episode.loss_mask, strict=True) if mask]
    assert sampler.tokenizer.decode(written, skip_special_tokens=True) == f"{call(slice=3)}<answer>A</answer>"
    assert episode.finished


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>look at it</tool_call>", "the call is not JSON (Expecting value at character 0)."),
        ('<tool_call>["look"]</tool_call>', 'the call must be {"name": "...", "arguments": {...}}.'),
        (
            '<tool_call>{"name": "lok"}</tool_call>',
            "no tool is called 'lok'. Did you mean 'look'? Tools: look.",
        ),
        ('<tool_call>{"name": "look", "arguments": 3}</tool_call>', "arguments must be an object, got 3."),
        (call(slice=40), "slice 40 lies outside 0..11"),
        ("look</tool_call>", "the call is not JSON (Expecting value at character 0)."),
    ],
)
def test_a_bad_call_gets_its_error_as_the_answer(language, prompts, text, error):
    sampler = TinySampler(language, turns=[text, "<answer>A</answer>"], budget_tokens=400)
    [episode] = ToolCall([Look()])(sampler, prompts[:1], 1)
    assert episode.actions[0].error == error
    assert f"error: {error}" in sampler.text(episode)
    assert sampler.text(episode).endswith("<answer>A</answer>")


def test_calls_beyond_the_budget_are_told_so_once_and_then_end_the_answer(language, prompts):
    tool = Look()
    sampler = TinySampler(language, turns=[call(slice=1)] * 9 + ["<answer>A</answer>"], budget_tokens=2000)
    [episode] = ToolCall([tool], calls=2)(sampler, prompts[:1], 1)
    assert len(tool.asked) == 2
    assert [action.error for action in episode.actions] == [
        None,
        None,
        "no calls left: 2 were allowed. Answer now.",
    ]


def test_answers_without_a_call_are_left_alone(language, prompts):
    sampler = TinySampler(language, turns=["<answer>A</answer>"], budget_tokens=100)
    episodes = ToolCall([Look()])(sampler, prompts, 2)
    assert [episode.actions for episode in episodes] == [()] * 4


def test_a_call_in_the_middle_of_a_turn_is_no_call(language, prompts):
    sampler = TinySampler(language, turns=[f"{call(slice=1)} and so A"], budget_tokens=400)
    [episode] = ToolCall([Look()])(sampler, prompts[:1], 1)
    assert episode.actions == ()


def test_each_answer_goes_its_own_way(language, prompts):
    class Alternating(TinySampler):
        """The second prompt's answers call, the first one's do not."""

        def _continued(self, episode):
            calls = episode.prompt.id == prompts[1].id
            self.turns = [call(slice=2), "<answer>B</answer>"] if calls else ["<answer>A</answer>"]
            return super()._continued(episode)

    sampler = Alternating(language, budget_tokens=400)
    episodes = ToolCall([Look()])(sampler, prompts, 2)
    assert [len(episode.actions) for episode in episodes] == [0, 0, 1, 1]
    assert [sampler.text(episode)[-18:] for episode in episodes] == ["<answer>A</answer>"] * 2 + [
        "<answer>B</answer>"
    ] * 2


def test_the_case_of_a_prompt_reaches_the_tool(language, prompts):
    seen = []

    class Noting(Look):
        def __call__(self, arguments, prompt):
            seen.append(prompt.case.id)
            return (TextPart(text="noted"),)

    sampler = TinySampler(language, turns=[call(), "A"], budget_tokens=400)
    ToolCall([Noting()])(sampler, [dataclasses.replace(prompts[1])], 1)
    assert seen == ["case-1"]
