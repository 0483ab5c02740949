import itertools
import math
import random
import signal
import sys

import pytest
from evidcore_testing import check_reward

from evidcore.case import Answer, Case, Prompt, Rollout, Score, TextPart, Unscored, VolumeRef
from evidcore.contracts import Reward


def prompt(name, letter):
    case = Case(id=name, patient=name, volumes=(VolumeRef(path=f"{name}.nii.gz"),))
    return Prompt(
        id=name, case=case, task="choice", parts=(TextPart(text="?"),), reference={"letter": letter}
    )


def rollouts(letters):
    """Two groups of two answers."""
    prompts = [prompt("one", "A"), prompt("two", "B")]
    return [
        Rollout(
            prompt=prompts[n // 2],
            group=n // 2,
            text=f"It is {letter}",
            answer=Answer(text=letter, choice=letter),
        )
        for n, letter in enumerate(letters)
    ]


GOOD, BAD = rollouts("AABB"), rollouts("CDDA")


def earlier(rollouts):
    return {"format": [Score(value=1.0) for _ in rollouts]}


class Right(Reward):
    """1 for the letter that the prompt's reference names."""

    def __call__(self, rollouts, earlier):
        return [self.judge(rollout) for rollout in rollouts]

    def judge(self, rollout):
        return Score(value=self.points(rollout))

    def points(self, rollout):
        return float(rollout.answer.choice == rollout.prompt.reference["letter"])


class Consensus(Right):
    """Free at group granularity: the share of the group that gives the same letter."""

    def __call__(self, rollouts, earlier):
        letters = [(each.group, each.answer.choice) for each in rollouts]
        sizes = [each.group for each in rollouts]
        return [Score(value=letters.count(each) / sizes.count(each[0])) for each in letters]


class Forgetful(Right):
    def __call__(self, rollouts, earlier):
        return super().__call__(rollouts[:-1], earlier)


class Bare(Right):
    def judge(self, rollout):
        return self.points(rollout)


class Endless(Right):
    def points(self, rollout):
        return math.inf


class EndlessPart(Right):
    def judge(self, rollout):
        return Score(value=1.0, parts={"side": math.nan})


class TooProud(Right):
    def points(self, rollout):
        return 5.0 * super().points(rollout)


class OddBounds(Right):
    bounds = (1.0, 0.0)


class OddReason(Right):
    def judge(self, rollout):
        return Score(value=1.0, reason=42)


class Mute(Right):
    def judge(self, rollout):
        return Unscored(kind="failed", reason=" ")


class Explodes(Right):
    def points(self, rollout):
        raise KeyError("options")


class Fickle(Right):
    calls = itertools.count()

    def __call__(self, rollouts, earlier):
        mood = next(self.calls) % 2
        return [Score(value=float(mood)) for _ in rollouts]


class FirstWins(Right):
    def __call__(self, rollouts, earlier):
        return [Score(value=float(each is rollouts[0])) for each in rollouts]


class GroupsInOrder(Right):
    """Wrong only across groups: it counts groups as they come."""

    def __call__(self, rollouts, earlier):
        seen = list(dict.fromkeys(each.prompt.id for each in rollouts))
        return [Score(value=1.0 / (1 + seen.index(each.prompt.id))) for each in rollouts]


class GradedOnACurve(Right):
    def __call__(self, rollouts, earlier):
        mean = sum(map(self.points, rollouts)) / len(rollouts)
        return [Score(value=(1 + self.points(each) - mean) / 2) for each in rollouts]


class Rewrites(Right):
    def __call__(self, rollouts, earlier):
        object.__setattr__(earlier["format"][0], "value", 0.0)
        return super().__call__(rollouts, earlier)


class WritesTheKey(Right):
    def points(self, rollout):
        rollout.prompt.reference["letter"] = rollout.answer.choice
        return 1.0


class ForcesTheKey(Right):
    def points(self, rollout):
        dict.__setitem__(rollout.prompt.reference, "letter", rollout.answer.choice)
        return 1.0


class Reorders(Right):
    def __call__(self, rollouts, earlier):
        rollouts.reverse()
        return super().__call__(rollouts, earlier)


class Leaves(Right):
    def points(self, rollout):
        sys.exit(0)


class Blind(Right):
    def points(self, rollout):
        return 0.5


class NeverJudges(Right):
    def judge(self, rollout):
        return None


@pytest.mark.parametrize("sound", [Right, Consensus])
def test_a_sound_reward_passes(sound):
    good, bad = (GOOD, BAD) if sound is Right else (rollouts("AABB"), rollouts("ABAB"))
    check_reward(sound(), good, bad, earlier=earlier)


def test_a_control_reward_has_no_better_answers():
    check_reward(Blind(), GOOD, None)


def test_twins_must_answer_the_same_prompts():
    with pytest.raises(ValueError, match="same prompts, position by position"):
        check_reward(Right(), GOOD, BAD[::-1])


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Forgetful, "Forgetful breaks its contract: one verdict per rollout. got 7 verdicts for 8 rollouts"),
        (Bare, r"a verdict is a Score, an Unscored or None. got 1\.0 for 'It is A' \(prompt 'one'\)"),
        (Endless, "values and parts are finite. got value = inf for 'It is A'"),
        (EndlessPart, "values and parts are finite. got side = nan for 'It is A'"),
        (TooProud, r"values lie in the declared bounds. got 5\.0, bounds 0\.0\.\.1\.0"),
        (OddBounds, r"bounds are two finite numbers that rise. got \(1\.0, 0\.0\)"),
        (OddReason, r"a reason is a text. got 42 for 'It is A' \(prompt 'one'\)"),
        (Mute, "what is not scored says why. got 'failed' without a reason"),
        (Explodes, "rollouts that a task can read are judged. 8 rollouts raised KeyError: 'options'"),
        (Fickle, r"equal calls give equal verdicts. Score\(value=0\.0.*, then Score\(value=1\.0"),
        (FirstWins, r"the order of rollouts does not matter. Score\(value=0\.0.* then Score\(value=1\.0"),
        (GroupsInOrder, r"the order of rollouts does not matter. Score\(value=0\.5.* then Score\(value=1\.0"),
        (
            GradedOnACurve,
            r"a group is judged alone as among others. Score\(value=0\.75.*, then Score\(value=0\.5",
        ),
        (Rewrites, "what it is shown stays as it was. the verdicts of 'format' changed"),
        (WritesTheKey, "8 rollouts raised TypeError: this dict is shown to others too and cannot be written"),
        (ForcesTheKey, r"what it is shown stays as it was. prompt 'one' changed"),
        (Reorders, "8 rollouts raised AttributeError: 'tuple' object has no attribute 'reverse'"),
        (Leaves, "8 rollouts raised SystemExit: 0"),
        (Blind, r"a good answer beats its bad twin. 0\.5 is not above 0\.5 for 'It is A'"),
        (NeverJudges, "a good answer beats its bad twin. none of 4 pairs was scored on both sides"),
    ],
)
def test_a_reward_that_breaks_a_clause_is_caught(mutant, message):
    good, bad = rollouts("AABB"), rollouts("CDDA")  # of its own, since it may change them
    with pytest.raises(AssertionError, match=message):
        check_reward(mutant(), good, bad, earlier=earlier)


def test_what_a_reward_does_to_the_process_ends_with_its_call(capsys):
    class Meddles(Right):
        def points(self, rollout):
            print("printed")
            random.seed(1)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return super().points(rollout)

    before = random.getstate(), signal.getsignal(signal.SIGTERM)
    check_reward(Meddles(), GOOD, BAD, earlier=earlier)
    assert (random.getstate(), signal.getsignal(signal.SIGTERM)) == before
    assert capsys.readouterr().out == ""
