"""What is linted: rewards as they are composed, the prompts of one task, and answers of known worth."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from evidcore.case import Prompt, Rollout, Score
from evidcore.contracts.judging import Judged
from evidcore.prompts.rows import Row
from evidcore.reward.composer import NamedReward, RewardComposer
from evidcore_plugin_hub.lint.reward_audit import judged_by, least_difference
from evidcore_plugin_hub.lint.twins import Twin, twins


@dataclasses.dataclass(frozen=True)
class Subject:
    """Rewards, and the prompts of one task that they are asked about."""

    rewards: Sequence[NamedReward]
    rows: Sequence[Row]

    @functools.cached_property
    def made(self) -> Sequence[Twin]:
        """Return answers of known worth to the prompts, in whole groups."""
        return twins(self.rows, constants=False)

    @functools.cached_property
    def values(self) -> Sequence[float | None]:
        """Return what is paid for them."""
        return self.pay([twin.rollout for twin in self.made])

    @property
    def judges(self) -> frozenset[Judged]:
        """Return what the rewards that count say they judge; one that does not say judges correctness."""
        return judged_by(self.rewards)

    @property
    def counted(self) -> Sequence[NamedReward]:
        """Return the rewards that count."""
        return [one for one in self.rewards if one.weight]

    @property
    def least(self) -> float:
        """Return the smallest difference in pay that counts."""
        return least_difference(self.values, floor=1e-6)

    def pay(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the total of each answer; None where no reward that counts has a verdict on it."""
        judgement = RewardComposer(self.rewards)(rollouts)
        names = [one.name for one in self.counted]
        judged = [
            any(isinstance(judgement.verdicts[name][place], Score) for name in names)
            for place in range(len(rollouts))
        ]
        totals = judgement.totals(self.rewards)
        return [total if known else None for total, known in zip(totals, judged, strict=True)]

    def paid_by(self, rollout: Rollout) -> dict[str, float]:
        """Return what each reward that counts adds for an answer; those without a verdict are left out."""
        verdicts = RewardComposer(self.rewards)([rollout]).verdicts
        judged = ((one, verdicts[one.name][0]) for one in self.counted)
        return {one.name: one.weight * said.value for one, said in judged if isinstance(said, Score)}

    def of(self, kind: str) -> dict[int, Rollout]:
        """Return the first answer of a kind to each prompt, by the prompt's place."""
        found: dict[int, Rollout] = {}
        for twin in self.made:
            if twin.kind == kind:
                found.setdefault(twin.place, twin.rollout)
        return found


def regrouped(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    """Return rollouts with groups numbered anew."""
    return [dataclasses.replace(one, group=number) for number, group in enumerate(groups) for one in group]


def about(rollout: Rollout, prompt: Prompt) -> Rollout:
    """Return an answer as it stands, to be judged against another prompt."""
    return dataclasses.replace(rollout, prompt=prompt)
