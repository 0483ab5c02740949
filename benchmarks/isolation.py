"""Milliseconds that a process of its own costs a call of a reward, beside the same reward in the run.

python benchmarks/isolation.py [--json] [--quick]        half a minute, no download

A batch is 64 rollouts, 8 answers to each of 8 prompts, each with a thought of 80 words. Prompts are new in
each call, as in training, and their cases are too or are not. Arms take turns, and time is that of the
wall: on a busy machine a run waits longer for the process.
"""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from evidcore_testing.data import volume_case
from side_by_side import figure, in_turn, parser, ratios, tell

from evidcore.api import Reward, Rollout
from evidcore.registry import factory

PROMPTS, ANSWERS = 8, 8
LIMIT_MS = 2.0


def rollouts(folder: Path) -> tuple[Rollout, ...]:
    """Return answers of whole groups, as a task reads them."""
    task = factory.build("task", {"use": "choice"}, given={}, where="benchmark")
    view = factory.build("view", {"use": "volume"}, given={}, where="benchmark")
    text = f"<think>{'The lungs are clear. ' * 20}</think><answer>A</answer>"
    prompts = [task.prompts(volume_case(folder, seed), view, 1)[0] for seed in range(PROMPTS)]
    return tuple(
        Rollout(prompt=prompt, group=group, text=text, answer=task.parse(prompt, text))
        for group, prompt in enumerate(prompts)
        for _ in range(ANSWERS)
    )


def renewed(asked: tuple[Rollout, ...], *, with_cases: bool) -> tuple[Rollout, ...]:
    """Return the same answers to prompts that are other objects."""
    fresh = {
        item.prompt.id: dataclasses.replace(
            item.prompt, case=dataclasses.replace(item.prompt.case) if with_cases else item.prompt.case
        )
        for item in asked
    }
    return tuple(dataclasses.replace(item, prompt=fresh[item.prompt.id]) for item in asked)


def compared(own: Reward, apart: Reward, batches: Sequence[tuple[Rollout, ...]]) -> dict[str, list[float]]:
    """Return the milliseconds of a call in each round, of either arm."""

    def arm(reward: Reward) -> Callable[[], object]:
        asked = iter(batches)
        return lambda: reward(next(asked), {})

    taken = in_turn({"in the run": arm(own), "isolated": arm(apart)}, len(batches), now=time.perf_counter)
    return {name: [1e3 * item for item in seconds] for name, seconds in taken.items()}


def main() -> None:
    """Measure and print."""
    given = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        asked, result = rollouts(Path(name)), []
        for use in ("choice-accuracy", "report-findings"):
            own, apart = (
                factory.build("reward", {"use": use, "isolated": value}, given={}, where="benchmark")
                for value in (False, True)
            )
            if list(own(asked, {})) != list(apart(asked, {})):
                raise SystemExit(f"{use}: other verdicts in a process of its own")
            rounds = 30 if given.quick else 401
            for is_new in (False, True):
                batches = [renewed(asked, with_cases=is_new) for _ in range(rounds)]
                each = compared(own, apart, batches)
                title = f"{use}, {'new' if is_new else 'known'} cases"
                pairs = zip(each["isolated"], each["in the run"], strict=True)
                more = [slow - fast for slow, fast in pairs]
                result += [
                    figure(f"{title}: in the run", each["in the run"], "ms a batch"),
                    figure(f"{title}: isolated", each["isolated"], "ms a batch"),
                    figure(f"{title}: how much more", more, "ms a batch", at_most=LIMIT_MS),
                    figure(f"{title}: ratio", ratios(each["isolated"], each["in the run"]), "times"),
                ]
    tell(__doc__, result, as_json=given.json)


if __name__ == "__main__":
    main()
