"""Reward `format-penalty`: what costs, how much, and within which bounds."""

import pytest
from evidcore_plugin_medvr.format_penalty import FormatPenalty
from evidcore_testing.checks_reward import answer_group, check_reward
from evidcore_testing.data import volume_case

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Action, Rollout, Turn

TASK = Choice(think=False)
VALID, INVALID = "<answer>A</answer>", "A"


@pytest.fixture
def prompt(tmp_path):
    (prompt,) = TASK.prompts(volume_case(tmp_path), Volume(), 0)
    return prompt


def rollout(prompt, text, *actions):
    turns = (Turn(text="", actions=actions, reply=()),) if actions else ()
    return Rollout(prompt=prompt, group=0, text=text, answer=TASK.parse(prompt, text), turns=turns)


@pytest.mark.parametrize("penalty", [0.2, 1.5])
def test_invalid_output_costs_the_penalty_and_a_valid_one_earns_nothing(prompt, penalty):
    reward = FormatPenalty(penalty=penalty)
    check_reward(reward, *(answer_group(TASK, prompt, [text] * 2) for text in (VALID, INVALID)))
    assert reward.bounds == (-penalty, 0.0)
    valid, invalid = reward([rollout(prompt, VALID), rollout(prompt, INVALID)], {})
    assert (valid.value, valid.reason) == (0.0, "")
    assert (invalid.value, invalid.reason) == (-penalty, "no tags, expected <answer></answer>")


def test_a_call_that_cannot_be_read_costs_and_one_that_cannot_be_carried_out_does_not(prompt):
    fine = Action(tool="zoom", arguments={"box": [0, 0, 9, 9]})
    small = Action(tool="zoom", arguments={"box": [0, 0, 1, 1]}, error="the box is too small")
    unread = Action(tool="", arguments={}, error="the call is not JSON")
    rollouts = [rollout(prompt, VALID, *some) for some in ((fine,), (fine, small), (fine, unread))]
    scores = FormatPenalty()(rollouts, {})
    verdicts = [(item.value, item.reason) for item in scores]
    assert verdicts == [(0.0, ""), (0.0, ""), (-0.2, "the call is not JSON")]
