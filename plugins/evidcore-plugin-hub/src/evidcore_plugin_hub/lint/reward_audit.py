"""Judge the rewards of a stage before anything is trained: completions of known worth, paid as in training.

Every rule compares what the composed reward pays for two kinds of completions. A reward that says what it
judges (`Reward.judges`) is also held to that by itself. A few calls over all completions are all that a
reward is asked.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from evidcore.api import Rollout, Score
from evidcore.contracts.judging import Checked, Judged, Outcome
from evidcore.errors import EvidError
from evidcore.prompts.rows import Row
from evidcore.reward.composer import EQUAL, Judgement, NamedReward, RewardComposer
from evidcore.reward.process_state import preserved_process_state
from evidcore_plugin_hub.lint.target import ORDER
from evidcore_plugin_hub.lint.twins import Twin, options_of, twins

GAINED = 0.02  # of the widest difference in pay: less is not a gain
MOSTLY = 0.9  # of the prompts on which an answer should earn more
ANSWER: frozenset[Judged] = frozenset({"correctness", "evidence"})
CONTENT: frozenset[Judged] = frozenset({*ANSWER, "report"})
ANY: frozenset[Judged] = frozenset({*CONTENT, "format"})


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


def least_difference(paid: Sequence[float | None], floor: float = EQUAL) -> float:
    """Return the smallest difference in pay that counts."""
    known = [value for value in paid if value is not None]
    return max(floor, GAINED * (max(known) - min(known))) if known else floor


@dataclasses.dataclass(frozen=True)
class Subject:
    """Rewards as they are composed, the prompts of one task, and answers of known worth to these."""

    rewards: Sequence[NamedReward]
    rows: Sequence[Row]
    constants: bool = True  # some answers are given to all prompts alike

    @cached_property
    def twins(self) -> Sequence[Twin]:
        """Return the answers, in whole groups."""
        return twins(self.rows, constants=self.constants)

    @cached_property
    def judgement(self) -> Judgement:
        """Return what the rewards say of them."""
        return RewardComposer(self.rewards)([twin.rollout for twin in self.twins])

    @cached_property
    def values(self) -> Mapping[str, Sequence[float | None]]:
        """Return the verdicts on them by reward; None: no verdict."""
        return {name: _values(self.judgement, name) for name in self.judgement.verdicts}

    @cached_property
    def changes(self) -> Mapping[str, Mapping[str, tuple[int, float]]]:
        """Return for each reward the verdicts that change in other calls: how many, and by how much."""
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
        found: dict[str, dict[str, tuple[int, float]]] = {"repeat": {}, "company": {}}
        composer = RewardComposer(self.rewards)
        for check, places, compares_group in calls:
            judgement = composer([self.twins[place].rollout for place in places])
            for one in self.rewards:
                known = found[check].setdefault(one.name, (0, 0.0))
                if compares_group not in (None, one.reward.compares_group):
                    continue
                before = [self.values[one.name][place] for place in places]
                pairs = zip(before, _values(judgement, one.name), strict=True)
                changed = [apart for pair in pairs if (apart := _apart(*pair)) > 1e-6]
                if len(changed) >= known[0]:
                    found[check][one.name] = (len(changed), max(changed, default=0.0))
        return found

    @property
    def counted(self) -> Sequence[NamedReward]:
        """Return the rewards that count; others are only asked because these need them."""
        return [one for one in self.rewards if one.weight]

    @property
    def judges(self) -> frozenset[Judged]:
        """Return what the rewards that count say they judge."""
        return _judged_by(self.counted)

    @cached_property
    def least(self) -> float:
        """Return the smallest difference in pay that counts."""
        return least_difference(self.paid_for([twin.rollout for twin in self.twins], self.judgement), 1e-6)

    def paid_for(self, rollouts: Sequence[Rollout], judgement: Judgement | None = None) -> list[float | None]:
        """Return the total of each answer; None where no reward that counts has a verdict on it."""
        judgement = judgement or RewardComposer(self.rewards)(rollouts)
        columns = [_values(judgement, one.name) for one in self.counted]
        is_judged = [any(value is not None for value in row) for row in zip(*columns, strict=True)]
        totals = judgement.totals(self.rewards)
        return [total if known else None for total, known in zip(totals, is_judged, strict=True)]

    def answers(self, kind: str) -> dict[int, Rollout]:
        """Return the first answer of a kind to each prompt, by the prompt's place."""
        return {twin.place: twin.rollout for twin in reversed(self.twins) if twin.kind == kind}

    def paid(self, some: Sequence[NamedReward], *, alone: bool = False) -> Paid:
        """Return what some of the rewards pay together; `alone`: what one gives without weight and gate."""
        values: Sequence[float | None] = [0.0] * len(self.twins)
        if some:
            values = self.values[some[0].name] if alone else self.judgement.totals(some)
        moved = {
            check: (sum(by[one.name][0] for one in some), max((by[one.name][1] for one in some), default=0.0))
            for check, by in self.changes.items()
        }
        judges = some[0].reward.judges or frozenset() if alone else _judged_by(some)
        return Paid(self.twins, values, judges, moved)


def _judged_by(rewards: Sequence[NamedReward]) -> frozenset[Judged]:
    """Return what rewards judge; one that does not say is taken for a judge of answers."""
    correct: frozenset[Judged] = frozenset({"correctness"})
    each = [correct if one.reward.judges is None else one.reward.judges for one in rewards if one.weight]
    return frozenset().union(*each)


def _values(judgement: Judgement, name: str) -> list[float | None]:
    return [one.value if isinstance(one, Score) else None for one in judgement.verdicts[name]]


def _apart(one: float | None, other: float | None) -> float:
    return float(one is not other) if one is None or other is None else abs(one - other)


@dataclasses.dataclass(frozen=True)
class Paid:
    """What a choice of rewards pays for the twins."""

    twins: Sequence[Twin]
    values: Sequence[float | None]  # None: no verdict
    judges: frozenset[Judged]
    moved: Mapping[str, tuple[int, float]]  # check -> verdicts that changed, and the largest change

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

    @property
    def least(self) -> float:
        """Return the smallest difference that counts."""
        return least_difference(self.values)


def _no(says: str) -> Found:
    return Found("not applicable", says)


def _beats(
    paid: Paid,
    worse: str,
    better: str = "right",
    *,
    share: float = 0.5,
    by: Callable[[Sequence[float]], float] = max,
) -> Found:
    """Hold that one kind earns more than another: on average, and in a share of the prompts.

    `by` stands for the worse answers to a prompt: the one that earns most, or their mean.
    """
    high, low = paid.of(better), paid.of(worse)
    both = high.keys() & low.keys()
    if not both:
        return _no(f"there is no answer of the kinds {better!r} and {worse!r} that is judged")
    ours = {place: statistics.fmean(high[place]) for place in both}
    theirs = {place: by(low[place]) for place in both}
    wins = sum(ours[place] > theirs[place] + EQUAL for place in both) / len(both)
    one, other = statistics.fmean(ours.values()), statistics.fmean(theirs.values())
    figures = {better: one, worse: other, "share_of_prompts": wins}
    says = (
        f"{better} earns {one:.3g}, {worse} {other:.3g}; it earns more on {100 * wins:.0f} % of the prompts"
    )
    if one - other < paid.least or wins < share:
        return Found("alarm", says, figures)
    return Found("note" if wins < MOSTLY else "fine", says, figures)


def _differences(
    paid: Paid, kind: str, other: str, of: Callable[[Sequence[float], float], float]
) -> tuple[list[float], float]:
    """Return how a kind differs from the first answer of another by prompt, and on what share it is more."""
    ours, theirs = paid.of(kind), paid.of(other)
    found = [of(ours[place], theirs[place][0]) for place in ours.keys() & theirs.keys()]
    return found, sum(value > EQUAL for value in found) / max(len(found), 1)


def _gains(paid: Paid, changed: str, plain: str) -> Found:
    """Hold that a change that adds nothing does not pay."""
    gains, share = _differences(paid, changed, plain, lambda ours, theirs: max(ours) - theirs)
    if not gains:
        return _no(f"there is no answer of the kind {changed!r} that is judged")
    gain = statistics.fmean(gains)
    says = f"{changed} earns {gain:+.3g} over {plain}, more on {100 * share:.0f} % of the prompts"
    return alarm_if(gain > paid.least, says, {"gain": gain, "share_of_prompts": share})


def far_below(paid: Paid, kind: str) -> Found:
    """Hold that a right answer earns more; note what earns over half of the way to it from a wrong one."""
    found, low = _beats(paid, kind), paid.mean("wrong")
    if found.outcome != "fine" or low is None:
        return found
    right = found.figures["right"]
    share = (found.figures[kind] - low) / (right - low) if right > low else 0.0
    way = f"that is {100 * share:.0f} % of the way from a wrong answer to a right one"
    return found.noted(way) if share > 0.5 else found


def _severity(found: Found) -> int:
    return ORDER.index(found.outcome)


def right_over_wrong(paid: Paid) -> Found:
    """A gold answer earns more than a wrong one."""
    if any(options_of(twin.rollout.prompt) for twin in paid.twins):
        return _beats(paid, "wrong", share=1.0)
    return _beats(paid, "wrong", by=statistics.fmean)  # another patient's answer may be nearly right


def malformed(paid: Paid) -> Found:
    """A right answer outside the format earns less than within it."""
    found = _beats(paid, "malformed")
    gained = found.figures.get("malformed", 0.0) - found.figures.get("right", 0.0)
    if found.outcome == "alarm" and "format" not in paid.judges and gained < paid.least:
        return found.noted("no reward judges the format")
    return found


def format_alone(paid: Paid) -> Found:
    """A well-formed empty answer earns less than a right one, and less than half of what there is to earn."""
    found = _beats(paid, "format alone", by=statistics.fmean)
    if found.outcome in ("not applicable", "alarm"):
        return found
    right, wrong, low = found.figures["right"], found.figures["format alone"], paid.mean("malformed") or 0.0
    share = (wrong - low) / (right - low) if right > low else 0.0
    if share > 0.5:
        return found.noted(f"{100 * share:.0f} % of the reward are paid for a well-formed wrong answer")
    return dataclasses.replace(found, outcome="fine")


def length(paid: Paid) -> Found:
    """Neutral words earn nothing, and a long wrong answer less than a short right one."""
    short = "brief" if paid.of("brief") else "right"
    longer = [_gains(paid, "padded", "right"), _gains(paid, "padded wrong", "wrong")]
    if paid.judges & ANSWER:
        longer.append(_beats(paid, "padded wrong", short, by=statistics.fmean))
    return max(longer, key=_severity)


def option_order(paid: Paid) -> Found:
    """The right answer earns the same wherever its option stands."""
    apart, share = _differences(
        paid, "permuted", "own order", lambda ours, theirs: max(abs(value - theirs) for value in ours)
    )
    if not apart:
        return _no("the task has no options")
    says = (
        f"with its options in another order the right answer earns up to {max(apart):.3g} more or less, "
        f"on {100 * share:.0f} % of the prompts"
    )
    figures = {"largest_difference": max(apart), "share_of_prompts": share}
    return alarm_if(max(apart) > paid.least, says, figures)


def pasted(paid: Paid, kind: str) -> Found:
    """A wrong answer with borrowed words loses to the right one; what they earn is noted."""
    lost, gained = _beats(paid, kind), _gains(paid, kind, "wrong")
    if gained.outcome == "alarm" and lost.outcome != "alarm" and "report" in paid.judges:
        return gained.noted(lost.says)
    return max(lost, gained, key=_severity)


def another_key(paid: Paid) -> Found:
    """An answer earns less where another is right, and against the report of another patient."""
    kinds = (["another key"] if paid.judges & ANSWER else []) + ["another case"]
    if "report" not in paid.judges:
        kinds = kinds[:1]
    return max((_loses(paid, kind) for kind in kinds), key=_severity)


def _loses(paid: Paid, kind: str) -> Found:
    lost, share = _differences(paid, kind, "right", lambda ours, theirs: theirs - ours[0])
    if not lost:
        return _no("there are not two patients with different answers")
    mean = statistics.fmean(lost)
    says = f"the right answer loses {mean:.3g} under {kind}, on {100 * share:.0f} % of the prompts"
    return alarm_if(mean <= paid.least, says, {"loss": mean, "share_of_prompts": share})


def blind(paid: Paid) -> Found:
    """The best answer that is given to everyone alike earns far less than the right one."""
    right = paid.of("right")
    kinds = dict.fromkeys(twin.kind for twin in paid.twins if twin.kind.startswith("constant "))
    if not kinds or len(right) < 2:
        return _no("needs several prompts; `evid audit reward` asks")
    by_kind = {kind: {place: values[0] for place, values in paid.of(kind).items()} for kind in kinds}
    earned = []
    for place in right:  # the answer that earns most elsewhere
        elsewhere = {
            kind: statistics.fmean(values[other] for other in values if other != place)
            for kind, values in by_kind.items()
            if place in values and len(values) > 1
        }
        if elsewhere:
            earned.append(by_kind[max(elsewhere, key=elsewhere.__getitem__)][place])
    one = paid.mean("right")
    if not earned or one is None:
        return _no("no answer is judged on all prompts")
    low = paid.mean("wrong" if paid.of("wrong") else "malformed") or 0.0
    rule = statistics.fmean(earned)
    share = (rule - low) / (one - low) if one > low else 1.0
    says = f"an answer that never looks earns {rule:.3g}, right {one:.3g}, wrong {low:.3g}"
    found = alarm_if(one - rule < paid.least, says, {"blind": rule, "right": one, "wrong": low})
    return dataclasses.replace(found, outcome="note") if found.outcome == "fine" and share > 0.5 else found


def stays(paid: Paid, check: str, when: str) -> Found:
    """Verdicts are the same in another call."""
    count, most = paid.moved[check]
    says = f"{count} verdicts change {when}" + (f", by up to {most:.3g}" if count else "")
    return alarm_if(count > 0, says, {"changed": float(count), "largest_change": most})


@dataclasses.dataclass(frozen=True)
class Rule:
    """A check of rewards."""

    run: Callable[[Any], Found | None]
    needs: frozenset[Judged] = frozenset()  # a reward must judge one of these; empty: it applies to all


RULES: Mapping[str, Rule] = {
    "right over wrong": Rule(right_over_wrong, ANSWER),
    "malformed": Rule(malformed, ANSWER | {"format"}),
    "no answer": Rule(partial(far_below, kind="no answer"), ANSWER),
    "format alone": Rule(format_alone, ANSWER),
    "length": Rule(length, ANY),
    "option order": Rule(option_order, ANY),
    "copied report": Rule(partial(pasted, kind="copied report"), CONTENT),
    "echoed prompt": Rule(partial(pasted, kind="echoed prompt"), ANSWER),
    "everything affirmed": Rule(partial(far_below, kind="everything affirmed"), ANSWER),
    "another key": Rule(another_key, CONTENT),
    "blind": Rule(blind, ANSWER),
    "repeat": Rule(partial(stays, check="repeat", when="when asked again")),
    "company": Rule(partial(stays, check="company", when="in another order, or beside other answers")),
}


def audit_rewards(
    rewards: Sequence[NamedReward], rows: Sequence[Row], *, constants: bool = True
) -> list[Checked]:
    """Judge the rewards of a stage over prompts of its data.

    Nothing random is moved. Rewards that cost, and those that hang on them, are left out and named.

    Args:
        rewards: as the stage composes them; better ones of its own, if they remember anything.
        rows: prompts, each with its task.
        constants: also give answers to all prompts alike: what a policy earns that never looks.
    """
    asked, found = without_costs(rewards)
    for task in dict.fromkeys(row.prompt.task for row in rows) if asked else ():
        of_task = [row for row in rows if row.prompt.task == task]
        found += audit(Subject(asked, of_task, constants), task)
    return found


def without_costs(rewards: Sequence[NamedReward]) -> tuple[list[NamedReward], list[Checked]]:
    """Return the rewards that can be asked, and of each other one why not."""
    asked: list[NamedReward] = []
    left_out = []
    for item in rewards:
        reason = item.reward.audit_exemption
        if not reason and item.gate and item.gate not in {one.name for one in asked}:
            reason = f"it is gated by {item.gate!r}, which is not asked"
        if reason:
            says = f"is not asked: {reason}"
            left_out.append(Checked(check="asked", reward=item.name, outcome="not applicable", says=says))
        else:
            asked.append(item)
    return asked, left_out


def audit(subject: Subject, task: str) -> list[Checked]:
    """Judge rewards together, and each by itself."""
    try:
        made = subject.twins
    except (ValueError, EvidError) as cause:
        says = f"the task cannot write right answers: {cause}"
        return [Checked(check=name, task=task, outcome="not applicable", says=says) for name in RULES]
    found: list[Checked] = []
    together = subject.paid(subject.counted)
    for name, rule in RULES.items():
        result = _run(rule, together)
        declared = [one for one in subject.counted if name in one.reward.declared]
        if result.outcome == "alarm" and declared:
            rest = [one for one in subject.counted if one not in declared]
            if not rest or _run(rule, subject.paid(rest)).outcome != "alarm":
                result = excused(result, declared, name)
        found.append(Checked(check=name, task=task, **vars(result)))
        for one in subject.rewards:
            if one.reward.judges is None and rule.needs:
                continue  # what it is for is not known; it is judged in company
            result = _run(rule, subject.paid([one], alone=True))
            if result.outcome == "alarm" and name in one.reward.declared:
                result = result.noted(f"Declared: {one.reward.declared[name]}", ". ")
            if result.outcome != "not applicable":
                found.append(Checked(check=name, task=task, reward=one.name, **vars(result)))
    gold = [twin.rollout for twin in made if twin.kind == "right"]
    for one in subject.rewards:
        with preserved_process_state():
            checks = one.reward.checks(gold)
        found += [dataclasses.replace(result, task=task, reward=one.name) for result in checks]
    return found


def _run(rule: Rule, paid: Paid) -> Found:
    if rule.needs and not rule.needs & paid.judges:
        return _no(f"no reward says that it judges {' or '.join(sorted(rule.needs))}")
    if all(value is None for value in paid.values):
        return _no("judges no answer to this task")
    return rule.run(paid) or _no("does not apply")


def excused(found: Found, declared: Sequence[NamedReward], check: str) -> Found:
    """Return an alarm as a note, since rewards say that their source's reward does the same."""
    reasons = "; ".join(f"{one.name}: {one.reward.declared[check]}" for one in declared)
    return found.noted(f"Declared: {reasons}", ". ")
