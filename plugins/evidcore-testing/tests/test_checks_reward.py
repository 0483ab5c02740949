import itertools
import math

import pytest
from evidcore_testing import check_reward
from mutants import altered, caught

from evidcore.api import Answer, Case, Prompt, Rollout, Score, TextPart, Unscored
from evidcore.builtin.rewards import ChoiceAccuracy, Random

RIGHT = ChoiceAccuracy()


def rollouts(letters):
    """Two groups of two answers, of which A and B are right."""
    result = []
    for number, letter in enumerate(letters):
        name, right = [("one", "A"), ("two", "B")][number // 2]
        case = Case(id=name, patient=name, volumes=())
        prompt = Prompt(
            id=name, case=case, task="t", parts=(TextPart(text="?"),), reference={"letter": right}
        )
        answer = Answer(text=letter, choice=letter)
        result.append(Rollout(prompt=prompt, group=number // 2, text=f"It is {letter}", answer=answer))
    return result


def earlier(rollouts):
    return {"format": [Score(value=1.0) for _ in rollouts]}


def judging(judge):
    return altered(ChoiceAccuracy, _judge=lambda self, rollout: judge(rollout))


def scoring(points):
    return judging(lambda rollout: Score(value=points(rollout)))


def calling(call):
    return altered(ChoiceAccuracy, __call__=lambda self, *given: call(*given))


def values(numbers):
    return [Score(value=value) for value in numbers]


def consensus(rollouts, earlier):
    """Free at group granularity: the share of the group that gives the same letter."""
    letters = [(each.group, each.answer.choice) for each in rollouts]
    groups = [each.group for each in rollouts]
    return values(letters.count(each) / groups.count(each[0]) for each in letters)


def on_a_curve(rollouts, earlier):
    points = [score.value for score in RIGHT(rollouts, earlier)]
    return values((1 + item - sum(points) / len(points)) / 2 for item in points)


def rewrites(rollouts, earlier):
    object.__setattr__(earlier["format"][0], "value", 0.0)
    return RIGHT(rollouts, earlier)


def writes_the_key(rollout, write=dict.__setitem__):
    write(rollout.prompt.reference, "letter", rollout.answer.choice)
    return 1.0


COUNT = itertools.count()
MUTANTS = {
    "one verdict per rollout. got 7 verdicts for 8 rollouts": calling(lambda some, _: RIGHT(some[1:], {})),
    r"a Score, an Unscored or None. got 1\.0 for 'It is A' \(prompt 'one'\)": judging(lambda rollout: 1.0),
    "values and parts are finite. got value = inf for 'It is A'": scoring(lambda rollout: math.inf),
    r"values lie in the declared bounds. got 5\.0, bounds 0\.0\.\.1\.0": scoring(lambda rollout: 5.0),
    r"two finite numbers that rise. got \(1\.0, 0\.0\)": altered(ChoiceAccuracy, bounds=(1.0, 0.0)),
    r"a reason is a text. got 42 for 'It is A' \(prompt 'one'\)":
        judging(lambda rollout: Score(value=1.0, reason=42)),
    "what is not scored says why. got 'failed' without a reason":
        judging(lambda rollout: Unscored(kind="failed", reason=" ")),
    "rollouts that a task can read are judged. 8 rollouts raised KeyError: 'options'":
        scoring(lambda rollout: rollout.prompt.reference["options"]),
    r"equal calls give equal verdicts. Score\(value=0\.0.*, then Score\(value=1\.0":
        calling(lambda some, _: values([float(next(COUNT) % 2)] * len(some))),
    r"the order of rollouts does not matter. Score\(value=0\.0.* then Score\(value=1\.0":
        calling(lambda some, _: values(float(each is some[0]) for each in some)),
    r"alone as among others. Score\(value=0\.75.*, then Score\(value=0\.5": calling(on_a_curve),
    "what it is shown stays as it was. the verdicts of 'format' changed": calling(rewrites),
    "what it is shown stays as it was. prompt 'one' changed": scoring(writes_the_key),
    r"a good answer beats its bad twin. 0\.5 is not above 0\.5 for 'It is A'": scoring(lambda rollout: 0.5),
    "beats its bad twin. none of 4 pairs was scored on both sides": judging(lambda rollout: None),
}  # fmt: skip


def test_a_sound_reward_passes():
    check_reward(RIGHT, rollouts("AABB"), rollouts("CDDA"), earlier=earlier)
    check_reward(calling(consensus)(), rollouts("AABB"), rollouts("ABAB"))
    check_reward(Random(), rollouts("AABB"), None)  # a control: no answer is better


def test_twins_must_answer_the_same_prompts():
    with pytest.raises(ValueError, match="same prompts, position by position"):
        check_reward(RIGHT, rollouts("AABB"), rollouts("CDDA")[::-1])


@pytest.mark.parametrize("message", MUTANTS)
def test_a_reward_that_breaks_a_clause_is_caught(message):
    good, bad = rollouts("AABB"), rollouts("CDDA")  # of its own, since it may change them
    with caught(message):
        check_reward(MUTANTS[message](), good, bad, earlier=earlier)
