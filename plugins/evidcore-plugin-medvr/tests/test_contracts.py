"""The credit by consensus keeps the contract of a reward, over answers that looked at the same box."""

import dataclasses

from evidcore_testing import answer_group, check_reward, volume_case

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Score, Turn, VisualPart
from evidcore.registry.factory import build

CALL = '<tool_call>{"name": "crop", "arguments": {"slice": 6, "box": [0, 0, 500, 500]}}</tool_call>'


def that_looked(rollouts):
    for each in rollouts:
        crop = dataclasses.replace(each.prompt.crops()[0], box_zyx=(3, 4, 2, 9, 1, 8))
        yield dataclasses.replace(each, turns=(Turn(text=CALL, actions=(), reply=(VisualPart(crop=crop),)),))


def right(rollouts):
    letters = [each.prompt.reference["letter"] for each in rollouts]
    pairs = zip(rollouts, letters, strict=True)
    return {"choice-accuracy": [Score(value=float(each.answer.choice == letter)) for each, letter in pairs]}


def test_zoom_consensus(tmp_path):
    task, good, bad = Choice(), [], []
    for group in range(4):
        (prompt,) = task.prompts(volume_case(tmp_path, group), Volume(), 0)
        letter = "ABCD"[("ABCD".index(prompt.reference["letter"]) + 1) % 4]
        gold, _ = task.gold(prompt)
        good += answer_group(task, prompt, [gold, gold], group)
        bad += answer_group(task, prompt, [f"<think>No.</think>{letter}", "<think>No.</think>"], group)
    reward = build("reward", {"use": "zoom-consensus", "success": "choice-accuracy"}, given={}, where="test")
    check_reward(reward, [*that_looked(good)], [*that_looked(bad)], earlier=right)
