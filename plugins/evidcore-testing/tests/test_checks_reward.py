import itertools
import math

import pytest
from evidcore_testing import check_reward

from evidcore.api import Answer, Case, Prompt, Reward, Rollout, Score, TextPart, Unscored, VolumeRef


def prompt(name, letter):
    case = Case(id=name, patient=name, volumes=(VolumeRef(path=f"{name}.nii.gz"),))
    return Prompt(
        id=name, case=case, task="choice", parts=(TextPart(text="?"),), reference={"letter": letter}
    )


def rollouts(letters):
    """Two groups of two answers."""
    prompts = [prompt("one", "A"), prompt("two", "B")]
    answers = [(n // 2, letter, Answer(text=letter, choice=letter)) for n, letter in enumerate(letters)]
    return [
        Rollout(prompt=prompts[group], group=group, text=f"It is {letter}", answer=answer)
        for group, letter, answer in answers
    ]


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


RIGHT = Right()


def mutant(**members):
    return type("Mutant", (Right,), members)


def judging(judge):
    return mutant(judge=lambda self, rollout: judge(rollout))


def scoring(points):
    return mutant(points=lambda self, rollout: points(rollout))


def calling(call):
    return mutant(__call__=lambda self, rollouts, earlier: call(rollouts, earlier))


def values(found):
    return [Score(value=value) for value in found]


def consensus(rollouts, earlier):
    """Free at group granularity: the share of the group that gives the same letter."""
    letters = [(each.group, each.answer.choice) for each in rollouts]
    groups = [each.group for each in rollouts]
    return values(letters.count(each) / groups.count(each[0]) for each in letters)


def on_a_curve(rollouts, earlier):
    points = [RIGHT.points(each) for each in rollouts]
    return values((1 + item - sum(points) / len(points)) / 2 for item in points)


def rewrites(rollouts, earlier):
    object.__setattr__(earlier["format"][0], "value", 0.0)
    return RIGHT(rollouts, earlier)


def writes_the_key(rollout, write=dict.__setitem__):
    write(rollout.prompt.reference, "letter", rollout.answer.choice)
    return 1.0


def test_a_sound_reward_passes():
    check_reward(RIGHT, rollouts("AABB"), rollouts("CDDA"), earlier=earlier)
    check_reward(calling(consensus)(), rollouts("AABB"), rollouts("ABAB"))
    check_reward(scoring(lambda rollout: 0.5)(), rollouts("AABB"), None)  # a control: no answer is better


def test_twins_must_answer_the_same_prompts():
    with pytest.raises(ValueError, match="same prompts, position by position"):
        check_reward(RIGHT, rollouts("AABB"), rollouts("CDDA")[::-1])


COUNT = itertools.count()
MUTANTS = {
    "Mutant breaks its contract: one verdict per rollout. got 7 verdicts for 8 rollouts": calling(
        lambda rollouts, earlier: RIGHT(rollouts[:-1], earlier)
    ),
    r"a verdict is a Score, an Unscored or None. got 1\.0 for 'It is A' \(prompt 'one'\)": judging(
        RIGHT.points
    ),
    "values and parts are finite. got value = inf for 'It is A'": scoring(lambda rollout: math.inf),
    r"values lie in the declared bounds. got 5\.0, bounds 0\.0\.\.1\.0": scoring(lambda rollout: 5.0),
    r"bounds are two finite numbers that rise. got \(1\.0, 0\.0\)": mutant(bounds=(1.0, 0.0)),
    r"a reason is a text. got 42 for 'It is A' \(prompt 'one'\)": judging(
        lambda rollout: Score(value=1.0, reason=42)
    ),
    "what is not scored says why. got 'failed' without a reason": judging(
        lambda rollout: Unscored(kind="failed", reason=" ")
    ),
    "rollouts that a task can read are judged. 8 rollouts raised KeyError: 'options'": scoring(
        lambda rollout: rollout.prompt.reference["options"]
    ),
    r"equal calls give equal verdicts. Score\(value=0\.0.*, then Score\(value=1\.0": calling(
        lambda rollouts, earlier: values([float(next(COUNT) % 2)] * len(rollouts))
    ),
    r"the order of rollouts does not matter. Score\(value=0\.0.* then Score\(value=1\.0": calling(
        lambda rollouts, earlier: values(float(each is rollouts[0]) for each in rollouts)
    ),
    r"a group is judged alone as among others. Score\(value=0\.75.*, then Score\(value=0\.5": calling(
        on_a_curve
    ),
    "what it is shown stays as it was. the verdicts of 'format' changed": calling(rewrites),
    "what it is shown stays as it was. prompt 'one' changed": scoring(writes_the_key),
    r"a good answer beats its bad twin. 0\.5 is not above 0\.5 for 'It is A'": scoring(lambda rollout: 0.5),
    "a good answer beats its bad twin. none of 4 pairs was scored on both sides": judging(
        lambda rollout: None
    ),
}


@pytest.mark.parametrize("message", MUTANTS)
def test_a_reward_that_breaks_a_clause_is_caught(message):
    good, bad = rollouts("AABB"), rollouts("CDDA")  # of its own, since it may change them
    with pytest.raises(AssertionError, match=message):
        check_reward(MUTANTS[message](), good, bad, earlier=earlier)
