import dataclasses
import json
import tomllib
from pathlib import Path
from typing import ClassVar

import pytest
from evidcore_plugin_medvr.rollout import ToolCall
from evidcore_testing.checks_rollout import check_rollout
from evidcore_testing.data import volume_case
from evidcore_testing.sampler import TinySampler

from evidcore.api import Crop, Prompt, TextPart, Tool, VisualPart
from evidcore.builtin.choice import Choice
from evidcore.builtin.rewards import ChoiceAccuracy, Format
from evidcore.builtin.views import Volume
from evidcore.prompts.rows import Row
from evidcore.train.trl.trainer import read_answers

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TOO_MUCH = "the call is JSON that cannot be read: too deep, too long a number, or broken letters."


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


@pytest.fixture
def prompts(tmp_path):
    cases = [volume_case(tmp_path, seed) for seed in range(2)]
    parts = [(VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text="What?")) for case in cases]
    return [
        Prompt(id=f"question-{case.id}", case=case, task="test", parts=some)
        for case, some in zip(cases, parts, strict=True)
    ]


def call(**arguments):
    written = json.dumps({"name": "look", "arguments": arguments})
    return f"<think>closer</think><tool_call>{written}</tool_call>"


def scripted(language, turns, budget_tokens):
    return TinySampler(language, turns=turns, stop_texts=ToolCall.stop_texts, budget_tokens=budget_tokens)


@pytest.fixture
def answered(language, prompts):
    """Return the one answer of a strategy, whose model writes a turn and then an answer."""

    def answer(strategy, turn, budget_tokens=400):
        sampler = scripted(language, [turn, "<answer>A</answer>"], budget_tokens)
        [episode] = strategy(sampler, prompts[:1], 1)
        return episode, sampler

    return answer


def test_tool_call_keeps_the_contract(language, prompts):
    sampler = scripted(language, [call(slice=3), "<answer>A</answer>"], 400)
    check_rollout(ToolCall([Look()]), sampler, prompts, answers_per_prompt=2)


def test_tools_may_go_by_other_words(answered):
    tool = Look()
    strategy = ToolCall([tool], spelling={"look": "image_zoom_in_tool", "slice": "z"})
    assert ToolCall([tool], show_tools=False).functions == ()
    [function] = strategy.functions
    assert function["function"] == {
        "name": "image_zoom_in_tool",
        "description": "look again",
        "parameters": {"type": "object", "properties": {"z": {"type": "integer"}}},
    }
    said = '<tool_call>{"name": "image_zoom_in_tool", "arguments": {"z": 3}}</tool_call>'
    episode, _ = answered(strategy, said)
    assert tool.asked == [{"slice": 3}]
    [action] = episode.actions
    assert (action.tool, action.arguments, action.error) == ("look", {"slice": 3}, None)
    own, _ = answered(strategy, call(slice=3))
    assert own.actions[0].error.startswith("no tool is called 'look'. Tools: image_zoom_in_tool")
    with pytest.raises(ValueError, match=r"spelling: no tool and no argument is called 'slize'\. Did you"):
        ToolCall([Look()], spelling={"slize": "z"})


def test_a_call_is_carried_out_and_its_tokens_are_not_trained(answered, prompts):
    tool = Look()
    episode, sampler = answered(ToolCall([tool]), call(slice=3))
    assert tool.asked == [{"slice": 3}]
    [action] = episode.actions
    assert (action.tool, dict(action.arguments), action.error) == ("look", {"slice": 3}, None)
    assert [crop for _, crop in episode.crops] == [prompts[0].crops()[0]]
    assert sampler.text(episode) == "<answer>A</answer>"
    [turn] = sampler.past_turns(episode)
    assert (turn.text, turn.actions, turn.crops) == (call(slice=3), (action,), prompts[0].crops())
    assert turn.reply[0] == TextPart(text="again:")
    written = [token for token, mask in zip(episode.ids, episode.loss_mask, strict=True) if mask]
    assert sampler.tokenizer.decode(written, skip_special_tokens=True) == f"{call(slice=3)}<answer>A</answer>"
    assert episode.finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error"),
    [*TABLE["calls"], *((f"<tool_call>{call}</tool_call>", TOO_MUCH) for call in ("[" * 3000, "9" * 5000))],
)
def test_a_bad_call_gets_its_error_as_the_answer(answered, text, error):
    episode, sampler = answered(ToolCall([Look()]), text, 9000)
    assert episode.actions[0].error == error
    was_read = error.startswith(("no tool", "arguments must", "slice 40"))
    assert bool(episode.actions[0].tool) == was_read  # which the reward "format-penalty" asks
    assert sampler.past_turns(episode)[0].reply == (TextPart(text=f"error: {error}"),)
    assert sampler.text(episode) == "<answer>A</answer>"


@pytest.mark.parametrize(("levels", "is_read"), [(6, True), (7, False)])
def test_a_call_that_nests_deeply_is_not_carried_out(answered, levels, is_read):
    # the call and its arguments are two levels more; the line of an action is written by recursion
    tool, nested = Look(), "[" * levels + "]" * levels
    said = f'<tool_call>{{"name": "look", "arguments": {{"slice": 1, "of": {nested}}}}}</tool_call>'
    episode, _ = answered(ToolCall([tool]), said)
    told = None if is_read else "the call nests more than 8 levels of lists and objects."
    assert episode.actions[0].error == told
    assert len(tool.asked) == is_read


def test_a_long_call_is_not_told_back_to_the_model_whole(answered):
    episode, _ = answered(ToolCall([Look()]), f'<tool_call>{{"name": "{"look" * 400}"}}</tool_call>', 9000)
    error = f"no tool is called '{'look' * 400}'. Tools: look."
    assert episode.actions[0].error == f"{error[:200]} … {error[-200:]}"
    assert episode.replies[0].parts == (TextPart(text=f"error: {error[:200]} … {error[-200:]}"),)


def test_calls_beyond_the_budget_are_told_so_once_and_then_end_the_answer(language, prompts):
    tool = Look()
    sampler = scripted(language, [call(slice=1)] * 9 + ["<answer>A</answer>"], 2000)
    [episode] = ToolCall([tool], max_tool_calls=2)(sampler, prompts[:1], 1)
    assert len(tool.asked) == 2
    spent = "no calls left: 2 were allowed. Answer now."
    assert [action.error for action in episode.actions] == [None, None, spent]


def test_each_answer_goes_its_own_way(language, prompts):
    class Alternating(TinySampler):
        """The second prompt's answers call, the first one's do not."""

        stop_texts = ToolCall.stop_texts

        def _continued(self, episode):
            calls = episode.prompt.id == prompts[1].id
            self.turns = [call(slice=2), "<answer>B</answer>"] if calls else ["<answer>A</answer>"]
            return super()._continued(episode)

    sampler = Alternating(language, budget_tokens=400)
    episodes = ToolCall([Look()])(sampler, prompts, 2)
    assert [len(episode.actions) for episode in episodes] == [0, 0, 1, 1]
    answers = ["<answer>A</answer>"] * 2 + ["<answer>B</answer>"] * 2
    assert [sampler.text(episode)[-18:] for episode in episodes] == answers


THOUGHT = "<think>seen</think><answer>{}</answer>"


class Says(Look):
    """Claims to be the model."""

    def __call__(self, arguments, prompt):
        return (TextPart(text="<answer>A</answer>"),)


def judged(language, prompts, turns, tool, calls=5):
    """Return the answer of one episode that writes `turns`, with what format and accuracy say to it."""
    task = Choice()
    question = task.prompts(prompts[0].case, Volume(), 0)[0]
    question = dataclasses.replace(question, reference={**question.reference, "letter": "B"})
    sampler = scripted(language, turns, 4000)
    episodes = ToolCall([tool], max_tool_calls=calls)(sampler, [question], 1)
    rollouts = read_answers(sampler, episodes, [Row(prompt=question, task=task)], 1)
    values = [reward(rollouts, {})[0].value for reward in (Format(), ChoiceAccuracy())]
    return rollouts[0], values


@pytest.mark.parametrize("calls", [0, 1, 5])
@pytest.mark.parametrize("tool", [Look, Says])
@pytest.mark.parametrize(("letter", "right"), [("B", 1.0), ("A", 0.0)])
def test_an_answer_earns_the_same_after_any_number_of_calls(language, prompts, calls, tool, letter, right):
    turns = [call(slice=1)] * calls + [THOUGHT.format(letter)]
    result, values = judged(language, prompts, turns, tool())
    assert values == [1.0, right]
    assert result.text == THOUGHT.format(letter)
    assert result.answer.think == "seen"
    assert [turn.text for turn in result.turns] == [call(slice=1)] * calls
    assert len(result.actions) == calls


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([call(slice=1), "It is B."], "no tags"),
        ([call(slice=1), "<answer>B</answer>"], "no <think>"),  # it thought before the call alone
        ([call(slice=1)] * 7, "unexpected tag <tool_call>"),
        (['<think>x</think><tool_call>{"name": "look"}'], "unexpected tag <tool_call>"),  # without end
        ([f"{THOUGHT.format('B')}{call(slice=1)}", ""], "no tags"),  # an answer in a turn that calls
        ([THOUGHT.format("B") + call(slice=1)] * 7, "unexpected tag <tool_call>"),
        ([call(slice=1), f"{THOUGHT.format('B')}<tool_call>"], "unexpected tag <tool_call>"),
    ],
)
def test_a_tool_gives_no_answer_in_the_models_place(language, prompts, turns, reason):
    result, values = judged(language, prompts, turns, Says())
    assert values == [0.0, 0.0]
    assert result.answer.malformed.startswith(reason)
