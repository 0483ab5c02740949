"""The check of rewards, and rollouts to try one on."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from evidcore.api import Prompt, Reward, Rollout, Score, Task, Unscored
from evidcore.case import Verdict
from evidcore.reward.process_state import changed, content, killed_forks, preserved_process_state
from evidcore_testing.clauses import Clauses, close

Earlier = Callable[[Sequence[Rollout]], Mapping[str, Sequence[Verdict]]]


class Letters(Reward):
    """The share of letters in an answer: sampled answers differ in it."""

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> list[Score]:
        return [Score(value=sum(map(str.isalpha, one.text)) / max(len(one.text), 1)) for one in rollouts]


def answer_group(task: Task, prompt: Prompt, completions: Sequence[str], group: int = 0) -> list[Rollout]:
    """Give the rollouts of one prompt as training would: each completion read by its task."""
    answers = [(text, task.parse(prompt, text)) for text in completions]
    return [Rollout(prompt=prompt, group=group, text=text, answer=answer) for text, answer in answers]


def check_reward(
    reward: Reward,
    good: Sequence[Rollout],
    bad: Sequence[Rollout] | None,
    *,
    earlier: Earlier = lambda rollouts: {},
) -> None:
    """Assert the contract of a reward.

    - one verdict per rollout;
    - a verdict is a Score, an Unscored or None;
    - values and parts are finite;
    - values lie in the declared bounds;
    - what is not scored says why, and a reason is a text;
    - equal calls give equal verdicts;
    - neither the order within a group nor the order of groups matters;
    - a group is judged alone as among others;
    - what it is shown stays as it was: rollouts, prompts, references and earlier verdicts;
    - a good answer beats its bad twin.

    Args:
        reward: the component under test.
        good: answers in whole groups, each of which deserves more than its twin.
        bad: the twins, position by position: same prompts and groups, worse answers. None for a control
            reward (random, constant), for which no answer is better.
        earlier: gives the verdicts of the rewards that this one expects before it in the recipe.
    """
    first_free = 1 + max((rollout.group for rollout in good), default=0)
    rollouts = [*good, *(dataclasses.replace(twin, group=twin.group + first_free) for twin in bad or ())]
    if bad is not None and [item.prompt.id for item in bad] != [item.prompt.id for item in good]:
        raise ValueError("good and bad must answer the same prompts, position by position")
    check = Clauses(reward)
    low, high = reward.bounds
    sound = math.isfinite(low) and math.isfinite(high) and low < high
    check(sound, "bounds are two finite numbers that rise", f"got {reward.bounds!r}")

    verdicts = _judge(reward, rollouts, earlier)
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        where = f"for {rollout.text[:60]!r} (prompt {rollout.prompt.id!r})"
        match verdict:
            case Score(value=value, parts=parts, reason=reason):
                check(isinstance(reason, str), "a reason is a text", f"got {reason!r} {where}")
                for name, number in {"value": value, **parts}.items():
                    finite = math.isfinite(number)
                    check(finite, "values and parts are finite", f"got {name} = {number!r} {where}")
                got = f"got {value!r}, bounds {low}..{high}, {where}"
                check(low <= value <= high, "values lie in the declared bounds", got)
            case Unscored(kind=kind, reason=reason):
                got = f"got {kind!r} without a reason {where}"
                check(reason.strip(), "what is not scored says why", got)
            case None:
                pass
            case _:
                check.fail("a verdict is a Score, an Unscored or None", f"got {verdict!r} {where}")

    groups: dict[int, list[int]] = {}
    for index, rollout in enumerate(rollouts):
        groups.setdefault(rollout.group, []).append(index)
    orders = [
        ("equal calls give equal verdicts", list(range(len(rollouts)))),
        ("the order of rollouts does not matter", list(range(len(rollouts)))[::-1]),
        ("the order of groups does not matter", [i for some in list(groups.values())[::-1] for i in some]),
        *(("a group is judged alone as among others", members) for members in groups.values()),
    ]
    for clause, order in orders:
        again = _judge(reward, [rollouts[index] for index in order], earlier)
        for index, other in zip(order, again, strict=True):
            first = verdicts[index]
            same = type(first) is type(other)
            if isinstance(first, Score) and isinstance(other, Score):
                same = close(first.value, other.value)
            check(same, clause, f"{first}, then {other} for {rollouts[index].text[:60]!r}")

    if bad is None:
        return
    clause, pairs = "a good answer beats its bad twin", 0
    for rollout, won, lost in zip(good, verdicts[: len(good)], verdicts[len(good) :], strict=True):
        if isinstance(won, Score) and isinstance(lost, Score):
            pairs += 1
            got = f"{won.value} is not above {lost.value} for {rollout.text[:60]!r}"
            check(won.value > lost.value, clause, got)
    check(pairs, clause, f"none of {len(good)} pairs was scored on both sides")


def _judge(reward: Reward, rollouts: Sequence[Rollout], earlier: Earlier) -> list[Score | Unscored | None]:
    """Call the reward as training does, and see that it leaves alone what it is shown."""
    check = Clauses(reward)
    shown, before = tuple(rollouts), {name: tuple(each) for name, each in earlier(rollouts).items()}
    known = content(shown, before)
    readable = check.raises_nothing("rollouts that a task can read are judged", f"{len(rollouts)} rollouts")
    with preserved_process_state(), killed_forks(), readable:
        verdicts = list(reward(shown, dict(before)))
    what = changed(known, content(shown, before))
    check(not what, "what it is shown stays as it was", f"{what} changed")
    got = f"got {len(verdicts)} verdicts for {len(rollouts)} rollouts"
    check(len(verdicts) == len(rollouts), "one verdict per rollout", got)
    return verdicts
