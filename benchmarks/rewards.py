"""Microseconds of CPU a rollout that the reward contract costs, beside calling the same rewards without it.

python benchmarks/rewards.py [--json] [--quick]        half a minute, no download

24 prompts of 8 answers, as a step of the demo recipe has. The rewards hand out scores made beforehand, so
that nothing but checking, gating and filling is between the two. Writing the lines of the rollout file and
its figures comes on top and is given beside.
"""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_testing.data import volume_case
from side_by_side import figure, in_turn, parser, tell

from evidcore.api import Answer, Reward, Rollout, Score
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward, RewardComposer, figures, record

PROMPTS, ANSWERS = 24, 8
LIMIT_US = 50.0
AT_ONCE = 20  # calls in one sample


class Prepared(Reward):
    """Gives scores made beforehand, with a part each."""

    def __init__(self, count: int) -> None:
        self.scores = [Score(value=index % 5 / 4, parts={"letters": index / count}) for index in range(count)]

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Any]) -> list[Score]:
        """Hand them out."""
        return self.scores


def rollouts(folder: Path) -> list[Rollout]:
    """Return answers of whole groups."""
    task = factory.build("task", {"use": "choice"}, given={}, where="benchmark")
    view = factory.build("view", {"use": "volume"}, given={}, where="benchmark")
    cases = [volume_case(folder, seed) for seed in range(PROMPTS)]
    prompts = [task.prompts(case, view, 1)[0] for case in cases]
    return [
        Rollout(prompt=prompt, group=group, text="<answer>A</answer>", answer=Answer(text="A"))
        for group, prompt in enumerate(prompts)
        for _ in range(ANSWERS)
    ]


def main() -> None:
    """Measure and print."""
    given = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        asked = rollouts(Path(name))
    count = len(asked)
    rewards = [NamedReward(name=f"reward-{index}", reward=Prepared(count)) for index in range(3)]
    rewards[2] = dataclasses.replace(rewards[2], gate="reward-0")
    result = []
    for several in (rewards[:1], rewards):
        judge = RewardComposer(several)

        def bare(several: Sequence[NamedReward] = several) -> None:
            for _ in range(AT_ONCE):
                earlier: dict[str, Any] = {}
                for item in several:
                    earlier[item.name] = item.reward(asked, earlier)

        def judged(judge: RewardComposer = judge) -> None:
            for _ in range(AT_ONCE):
                judge(asked)

        def told(judge: RewardComposer = judge, several: Sequence[NamedReward] = several) -> None:
            for _ in range(AT_ONCE):
                figures(record(judge(asked), several, asked, ANSWERS))

        taken = in_turn({"bare": bare, "judged": judged, "told": told}, 3 if given.quick else 31)

        def per_rollout(more: str, less: str, taken: Mapping[str, list[float]] = taken) -> list[float]:
            pairs = zip(taken[more], taken[less], strict=True)
            return [1e6 * (entry - other) / AT_ONCE / count for entry, other in pairs]

        title = f"{len(several)} reward{'s, entry with a gate' if len(several) > 1 else ''}"
        result += [
            figure(f"{title}: contract", per_rollout("judged", "bare"), "us a rollout", at_most=LIMIT_US),
            figure(
                f"{title}: lines and figures of the record", per_rollout("told", "judged"), "us a rollout"
            ),
        ]
    tell(__doc__, result, as_json=given.json)


if __name__ == "__main__":
    main()
