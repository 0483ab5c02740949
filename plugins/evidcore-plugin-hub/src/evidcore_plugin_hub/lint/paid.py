"""What the rewards of a stage pay for completions of known worth, asked in a few calls as in training."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from evidcore.api import Rollout, Score
from evidcore.contracts.judging import Judged, Outcome
from evidcore.prompts.rows import Row
from evidcore.reward.composer import EQUAL, Judgement, NamedReward, RewardComposer
from evidcore_plugin_hub.lint.twins import Twin, twins
from evidcore_plugin_hub.lint.watched import Watched

GAINED = 0.02  # of the widest difference in pay: less is not a gain
ANSWER: frozenset[Judged] = frozenset({"correctness", "evidence"})
CONTENT: frozenset[Judged] = frozenset({*ANSWER, "report"})
ANY: frozenset[Judged] = frozenset({*CONTENT, "format"})
FEW = 8  # prompts whose answers are asked about anew


@dataclasses.dataclass(frozen=True)
class Found:
    """An outcome and its sentence, before it is known whose it is."""

    outcome: Outcome
    says: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def noted(self, why: str, separator: str = "; ") -> Found:
        """Return it as a note that says why."""
        return dataclasses.replace(self, outcome="note", says=f"{self.says}{separator}{why}")


def alarm_if(wrong: bool, says: str, figures: Mapping[str, float] | None = None) -> Found:
    """Return an alarm or that all is fine, with one sentence for both."""
    return Found("alarm" if wrong else "fine", says, figures or {})


def inapplicable(says: str) -> Found:
    """Return that there is nothing to be held."""
    return Found("not applicable", says)


@dataclasses.dataclass(frozen=True)
class Subject:
    """Rewards as they are composed, the prompts of one task, and answers of known worth to these."""

    rewards: Sequence[NamedReward]
    rows: Sequence[Row]
    thorough: bool = True
    left: dict[str, str] = dataclasses.field(default_factory=dict)  # by the first call, in the process

    @cached_property
    def twins(self) -> Sequence[Twin]:
        """Return the answers, in whole groups."""
        return twins(self.rows, thorough=self.thorough)

    @cached_property
    def judgement(self) -> Judgement:
        """Return what the rewards say of them."""
        watched = [dataclasses.replace(one, reward=Watched(one.reward, self.left)) for one in self.rewards]
        asked = watched if self.thorough else self.rewards  # other threads may run where a stage starts
        return RewardComposer(asked)([twin.rollout for twin in self.twins])

    @cached_property
    def values(self) -> Mapping[str, Sequence[float | None]]:
        """Return the verdicts on them by reward; None: no verdict."""
        return {name: _values(self.judgement, name) for name in self.judgement.verdicts}

    @cached_property
    def changes(self) -> Mapping[tuple[str, str], Sequence[float]]:
        """Return by check and reward by how much its verdicts change in other calls."""
        every = list(range(len(self.twins)))
        groups: dict[int, list[int]] = {}
        for index, twin in enumerate(self.twins):
            groups.setdefault(twin.rollout.group, []).append(index)
        thinned = [index for members in groups.values() for index in members[:2]]
        calls: list[tuple[str, list[int], bool | None]] = [
            ("repeat", every, None), ("company", every[::-1], None), ("company", thinned, False)
        ]  # fmt: skip
        if any(one.reward.compares_group for one in self.rewards):
            calls.append(("company", next(iter(groups.values())), True))
        found: dict[tuple[str, str], list[float]] = {}
        for check, places, compares_group in calls:
            judgement = RewardComposer(self.rewards)([self.twins[place].rollout for place in places])
            for one in self.rewards:
                if compares_group in (None, one.reward.compares_group):
                    before = [self.values[one.name][place] for place in places]
                    pairs = zip(before, _values(judgement, one.name), strict=True)
                    changed = [apart for pair in pairs if (apart := _apart(*pair)) > 1e-6]
                    found.setdefault((check, one.name), []).extend(changed)
        return found

    @property
    def counted(self) -> Sequence[NamedReward]:
        """Return the rewards that count; others are only asked because these need them."""
        return [one for one in self.rewards if one.weight]

    def answers(self, kind: str) -> dict[int, Rollout]:
        """Return the first answer of a kind to each of a few prompts, by the prompt's place."""
        few = (twin for twin in reversed(self.twins) if twin.kind == kind and twin.place < FEW)
        return {twin.place: twin.rollout for twin in few}


@dataclasses.dataclass(frozen=True)
class Paid:
    """What a choice of rewards pays; `alone`: what one gives, without weight and gate."""

    subject: Subject
    counted: Sequence[NamedReward]
    alone: bool = False

    @property
    def twins(self) -> Sequence[Twin]:
        """Return the answers, in whole groups."""
        return self.subject.twins

    @cached_property
    def values(self) -> Sequence[float | None]:
        """Return what is paid for each of them; None: no verdict of one alone."""
        if self.alone:
            return self.subject.values[self.counted[0].name]
        return self.subject.judgement.totals(self.counted) if self.counted else [0.0] * len(self.twins)

    @cached_property
    def is_judged(self) -> bool:
        """Tell whether there is a verdict on any of them."""
        values = self.subject.values
        return any(value is not None for one in self.counted for value in values[one.name])

    @property
    def judges(self) -> frozenset[Judged]:
        """Return what the rewards judge; one that does not say is taken for a judge of answers."""
        correct: frozenset[Judged] = frozenset({"correctness"})
        judged = (one.reward.judges for one in self.counted)
        return frozenset[Judged]().union(*(correct if one is None else one for one in judged))

    @cached_property
    def least(self) -> float:
        """Return the smallest difference in pay that counts."""
        known = [value for value in self.values if value is not None]
        return max(EQUAL, GAINED * (max(known) - min(known))) if known else EQUAL

    def of(self, kind: str) -> dict[int, list[float]]:
        """Return what is paid for a kind of twins, by prompt."""
        found: dict[int, list[float]] = {}
        for twin, value in zip(self.twins, self.values, strict=True):
            if twin.kind == kind and value is not None:
                found.setdefault(twin.place, []).append(value)
        return found

    def mean(self, kind: str) -> float | None:
        """Return the mean pay of a kind of twins, None where none is judged."""
        values = [value for row in self.of(kind).values() for value in row]
        return statistics.fmean(values) if values else None

    def ask(self, groups: Sequence[Sequence[Rollout]]) -> list[float | None]:
        """Return what is paid for other answers; None where no reward has a verdict on one."""
        judgement = RewardComposer(self.subject.rewards)(regrouped(groups))
        columns = [_values(judgement, one.name) for one in self.counted]
        is_judged = [any(value is not None for value in row) for row in zip(*columns, strict=True)]
        totals = judgement.totals(self.counted)
        return [total if known else None for total, known in zip(totals, is_judged, strict=True)]


def regrouped(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    """Return rollouts with groups numbered anew."""
    return [dataclasses.replace(one, group=number) for number, group in enumerate(groups) for one in group]


def _values(judgement: Judgement, name: str) -> list[float | None]:
    return [one.value if isinstance(one, Score) else None for one in judgement.verdicts[name]]


def _apart(one: float | None, other: float | None) -> float:
    return float(one is not other) if one is None or other is None else abs(one - other)


Run = Callable[[Paid], Found | None]


@dataclasses.dataclass(frozen=True)
class Probe:
    """One thing that is tried on rewards."""

    name: str
    guards: str  # the published failure that it guards against
    needs: frozenset[Judged]  # a reward must judge one of these; empty: it applies to all
    asks: bool  # anew, all rewards together; not before each stage
    run: Run


PROBES: list[Probe] = []


def probe(
    name: str, guards: str, needs: frozenset[Judged] = frozenset(), *, asks: bool = False
) -> Callable[[Run], Run]:
    """Enter a function into the list of probes."""

    def enter(run: Run) -> Run:
        PROBES.append(Probe(name, guards, needs, asks, run))
        return run

    return enter
