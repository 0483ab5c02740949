"""The check of rewards, and rollouts to try one on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from evidcore.api import Prompt, Reward, Rollout, Score, Task, Unscored
from evidcore.case import Verdict
from evidcore.reward.process_state import changed, content, killed_forks, preserved_process_state
from evidcore_testing.clauses import broken, close, raises_nothing, require

Earlier = Callable[[Sequence[Rollout]], Mapping[str, Sequence[Verdict]]]


def answer_group(task: Task, prompt: Prompt, completions: Sequence[str], group: int = 0) -> list[Rollout]:
    """Give the rollouts of one prompt as training would: each completion read by its task."""
    return [
        Rollout(prompt=prompt, group=group, text=text, answer=task.parse(prompt, text))
        for text in completions
    ]


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

    verdicts = _judge(reward, rollouts, earlier)
    _soundness(reward, rollouts, verdicts)

    again = _judge(reward, rollouts, earlier)
    _same(reward, "equal calls give equal verdicts", rollouts, verdicts, again)

    turned = list(range(len(rollouts)))[::-1]  # groups and the members of each, both in reverse
    _reordered(reward, "the order of rollouts does not matter", rollouts, verdicts, turned, earlier)
    groups: dict[int, list[int]] = {}
    for index, rollout in enumerate(rollouts):
        groups.setdefault(rollout.group, []).append(index)
    moved = [index for members in list(groups.values())[::-1] for index in members]
    _reordered(reward, "the order of groups does not matter", rollouts, verdicts, moved, earlier)
    for members in groups.values():
        _reordered(reward, "a group is judged alone as among others", rollouts, verdicts, members, earlier)

    if bad is None:
        return
    clause, won, lost = "a good answer beats its bad twin", verdicts[: len(good)], verdicts[len(good) :]
    scored = [
        (rollout.text, item.value, two.value)
        for rollout, item, two in zip(good, won, lost, strict=True)
        if isinstance(item, Score) and isinstance(two, Score)
    ]
    for text, better, worse in scored:
        require(better > worse, reward, clause, f"{better} is not above {worse} for {text[:60]!r}")
    require(bool(scored), reward, clause, f"none of {len(good)} pairs was scored on both sides")


def _judge(reward: Reward, rollouts: Sequence[Rollout], earlier: Earlier) -> list[Score | Unscored | None]:
    """Call the reward as training does, and see that it leaves alone what it is shown."""
    shown, before = tuple(rollouts), {name: tuple(each) for name, each in earlier(rollouts).items()}
    known = content(shown, before)
    clause, told = "rollouts that a task can read are judged", f"{len(rollouts)} rollouts"
    with preserved_process_state(), killed_forks(), raises_nothing(reward, clause, told):
        verdicts = list(reward(shown, dict(before)))
    what = changed(known, content(shown, before))
    require(not what, reward, "what it is shown stays as it was", f"{what} changed")
    if len(verdicts) != len(rollouts):
        told = f"got {len(verdicts)} verdicts for {len(rollouts)} rollouts"
        broken(reward, "one verdict per rollout", told)
    return verdicts


def _soundness(
    reward: Reward, rollouts: Sequence[Rollout], verdicts: Sequence[Score | Unscored | None]
) -> None:
    low, high = reward.bounds
    sound = math.isfinite(low) and math.isfinite(high) and low < high
    require(sound, reward, "bounds are two finite numbers that rise", f"got {reward.bounds!r}")
    for rollout, verdict in zip(rollouts, verdicts, strict=True):
        where = f"for {rollout.text[:60]!r} (prompt {rollout.prompt.id!r})"
        match verdict:
            case Score(value=value, parts=parts):
                clause = "a reason is a text"
                require(isinstance(verdict.reason, str), reward, clause, f"got {verdict.reason!r} {where}")
                numbers = {"value": value, **parts}
                for name, number in numbers.items():
                    clause = "values and parts are finite"
                    require(math.isfinite(number), reward, clause, f"got {name} = {number!r} {where}")
                clause = "values lie in the declared bounds"
                require(low <= value <= high, reward, clause, f"got {value!r}, bounds {low}..{high}, {where}")
            case Unscored(kind=kind, reason=reason):
                clause = "what is not scored says why"
                require(bool(reason.strip()), reward, clause, f"got {kind!r} without a reason {where}")
            case None:
                pass
            case _:
                broken(reward, "a verdict is a Score, an Unscored or None", f"got {verdict!r} {where}")


def _reordered(
    reward: Reward,
    clause: str,
    rollouts: Sequence[Rollout],
    verdicts: Sequence[Score | Unscored | None],
    order: Sequence[int],
    earlier: Earlier,
) -> None:
    chosen = [rollouts[index] for index in order]
    got = _judge(reward, chosen, earlier)
    _same(reward, clause, chosen, [verdicts[index] for index in order], got)


def _same(
    reward: Reward,
    clause: str,
    rollouts: Sequence[Rollout],
    expected: Sequence[Score | Unscored | None],
    got: Sequence[Score | Unscored | None],
) -> None:
    for rollout, item, other in zip(rollouts, expected, got, strict=True):
        if isinstance(item, Score) and isinstance(other, Score):
            same = close(item.value, other.value)
        else:
            same = type(item) is type(other)
        require(same, reward, clause, f"{item}, then {other} for {rollout.text[:60]!r}")
