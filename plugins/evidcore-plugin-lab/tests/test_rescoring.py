"""A run's rollouts under other rewards; under its own, nothing may change."""

import json

import pytest
from evidcore_plugin_lab import rescoring
from evidcore_plugin_lab.rescoring import Group, rescored

from evidcore.api import Crop, TextPart, VisualPart, VolumeRef
from evidcore.case import Action, Turn
from evidcore.errors import RecipeError, RunError

STAGE = "02-grpo"


@pytest.mark.slow
def test_its_own_rewards_pay_what_they_paid(trained):
    found = rescored(trained.folder)
    assert found.rewards == ("format", "random")
    assert [one.after for one in found.groups] == [one.before for one in found.groups]
    assert {"answers": 32, "groups": 8, "flipped": 0, "best_changed": 0}.items() <= found.figures().items()
    assert len({one.before for one in found.groups}) > 1


@pytest.mark.slow
def test_another_reward_pays_otherwise(trained, evid):
    found = json.loads(evid("rescore", trained.folder, "--reward", "random", "--json").stdout)
    lines = [json.loads(one) for one in (trained.folder / f"rollouts/{STAGE}.jsonl").read_text().splitlines()]
    for group, line in zip(found["groups"], lines, strict=True):
        paid = [one["rewards"]["random"]["value"] for one in line["rollouts"]]
        assert group["after"] == pytest.approx(paid)
    said = evid("rescore", trained.folder, "--reward", '{use="format", weight=2.0}').stdout
    assert f"{STAGE}: 32 answers in 8 groups, judged by\n  format\n" in said


def test_rewards_beside_its_own_are_added(trained):
    both = rescored(trained.folder, ['{use="random", name="again", weight=2.0}'], beside=True)
    assert both.rewards == ("format", "random", "again")
    random = rescored(trained.folder, ["random"])
    for group, alone in zip(both.groups, random.groups, strict=True):
        both_paid = [own + 2 * drawn for own, drawn in zip(group.before, alone.after, strict=True)]
        assert group.after == pytest.approx(both_paid)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rewards": ["formt"]}, "no reward is called 'formt'.*Did you mean 'format'"),
        ({"rewards": ['{use="format", wieght=1.0}']}, "wieght"),
        ({"stage": "01-sft"}, r"stage '01-sft' has no rollouts\. Stages with rollouts: \['02-grpo'\]"),
        ({"rewards": ["random"], "beside": True}, "two rewards are called 'random'"),
    ],
)
def test_what_cannot_be_judged_is_named(trained, options, says):
    with pytest.raises((RecipeError, RunError), match=says):
        rescored(trained.folder, **options)


def test_a_question_that_the_recipe_asks_no_more_is_named(trained, tmp_path):
    path = trained.folder / f"rollouts/{STAGE}.jsonl"
    text = path.read_text()
    lines = [json.loads(one) for one in text.splitlines()]
    lines[0]["reference"]["letter"] = "Z"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    try:
        with pytest.raises(RunError, match=r"is not asked by the run's recipe today"):
            rescored(trained.folder)
    finally:
        path.write_text(text)


def test_a_turn_comes_back_as_it_was_judged():
    crop = Crop(volume=VolumeRef(path="/a.nii.gz"), box_zyx=(0, 1, 0, 8, 0, 8))
    turn = Turn(
        text="look", actions=(Action(tool="zoom", arguments={"box": [1, 2]}, error=None),),
        reply=(VisualPart(crop=crop), TextPart(text="closer <image>")),
    )  # fmt: skip
    assert rescoring._turn(json.loads(json.dumps(turn.to_json()))) == turn


@pytest.mark.parametrize(
    ("before", "after", "flipped", "best_changed"),
    [
        ((0, 0, 1), (0, 0, 1), 0, False),
        ((0, 0, 1), (1, 1, 0), 3, True),
        ((0, 0, 1), (0, 0, 0), 0, False),  # nothing is learnt of it: no sign
        ((0, 1, 1), (0, 0, 1), 1, False),
        ((1, 1, 1), (0, 1, 1), 0, False),
    ],
)
def test_signs_and_best_answers(before, after, flipped, best_changed):
    group = Group(step=1, prompt="p", task="t", before=before, after=after)
    assert (group.flipped, group.best_changed) == (flipped, best_changed)
