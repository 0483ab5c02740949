"""Judge the rewards of a stage before anything is trained: completions of known worth, paid as in training.

Every check compares what the composed reward pays for two kinds of completions. A reward that says what it
judges (`Reward.judges`) is also held to that by itself. A few calls over all completions are all that a
reward is asked.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from evidcore.case import Score
from evidcore.contracts.judging import Checked, Judged, Outcome
from evidcore.errors import EvidError
from evidcore.prompts.rows import Row
from evidcore.reward.composer import EQUAL, Judgement, NamedReward, RewardComposer
from evidcore.reward.confined import process_kept
from evidcore_plugin_hub.lint.twins import Twin, options_of, twins

ANSWER: frozenset[Judged] = frozenset({"correctness", "evidence"})
GAINED = 0.02  # of the widest difference in pay: less is not a gain
MOSTLY = 0.9  # of the prompts on which an answer should earn more
CONSTANT = "constant "


@dataclasses.dataclass(frozen=True)
class Found:
    """An outcome and its sentence, before it is known whose it is."""

    outcome: Outcome
    says: str
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)


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

    @property
    def least(self) -> float:
        """Return the smallest difference that counts."""
        return least_difference(self.values)

    @property
    def has_options(self) -> bool:
        """Tell whether a multiple choice is asked."""
        return any(options_of(twin.rollout.prompt) for twin in self.twins)


def least_difference(paid: Sequence[float | None], floor: float = EQUAL) -> float:
    """Return the smallest difference in pay that counts."""
    known = [value for value in paid if value is not None]
    return max(floor, GAINED * (max(known) - min(known))) if known else floor


def _no(says: str) -> Found:
    return Found(outcome="not applicable", says=says)


Summary = Callable[[Sequence[float]], float]


def _beats(
    paid: Paid, better: str, worse: str, *, share: float = 0.5, by: Summary = statistics.fmean
) -> Found:
    """Hold that one kind earns more than the other: on average, and in a share of the prompts.

    Args:
        paid: what is paid.
        better: the kind that deserves more.
        worse: the other one.
        share: of the prompts on which it must earn more.
        by: what stands for the worse answers to a prompt: their mean, or the one that earns most.
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
        return Found(outcome="alarm", says=says, figures=figures)
    return Found(outcome="note" if wins < MOSTLY else "fine", says=says, figures=figures)


def _gains(paid: Paid, changed: str, plain: str) -> Found:
    """Hold that a change that adds nothing does not pay."""
    ours, theirs = paid.of(changed), paid.of(plain)
    both = ours.keys() & theirs.keys()
    if not both:
        return _no(f"there is no answer of the kind {changed!r} that is judged")
    gains = [max(ours[place]) - theirs[place][0] for place in both]  # the first is what was changed
    gain, share = statistics.fmean(gains), sum(value > EQUAL for value in gains) / len(gains)
    says = f"{changed} earns {gain:+.3g} over {plain}, more on {100 * share:.0f} % of the prompts"
    figures = {"gain": gain, "share_of_prompts": share}
    return Found(outcome="alarm" if gain > paid.least else "fine", says=says, figures=figures)


def _far_below(paid: Paid, kind: str, found: Found) -> Found:
    """Note what earns more than half of the way from a wrong to a right answer."""
    wrong = [value for values in paid.of("wrong").values() for value in values]
    if found.outcome != "fine" or not wrong:
        return found
    low, right = statistics.fmean(wrong), found.figures["right"]
    share = (found.figures[kind] - low) / (right - low) if right > low else 0.0
    says = f"{found.says}; that is {100 * share:.0f} % of the way from a wrong answer to a right one"
    return dataclasses.replace(found, outcome="note", says=says) if share > 0.5 else found


def _worst(*found: Found) -> Found:
    """Return the gravest of several findings."""
    order: list[Outcome] = ["alarm", "note", "fine", "not applicable"]
    return min(found, key=lambda one: order.index(one.outcome))


def right_over_wrong(paid: Paid) -> Found:
    """A gold answer earns more than a wrong one."""
    if paid.has_options:
        return _beats(paid, "right", "wrong", share=1.0, by=max)
    return _beats(paid, "right", "wrong")  # another patient's answer may happen to be nearly right


def malformed(paid: Paid) -> Found:
    """A right answer outside the format earns less than within it."""
    found = _beats(paid, "right", "malformed", by=max)
    gained = found.figures.get("malformed", 0.0) - found.figures.get("right", 0.0)
    if found.outcome == "alarm" and "format" not in paid.judges and gained < paid.least:
        return dataclasses.replace(found, outcome="note", says=f"{found.says}; no reward judges the format")
    return found


def no_answer(paid: Paid) -> Found:
    """Nothing, an empty answer or an option that there is not earns less than a right answer."""
    return _far_below(paid, "no answer", _beats(paid, "right", "no answer", by=max))


def format_alone(paid: Paid) -> Found:
    """A well-formed empty answer earns less than a right one, and less than half of what there is to earn."""
    found = _beats(paid, "right", "format alone")
    if found.outcome == "not applicable" or found.outcome == "alarm":
        return found
    floor = [value for values in paid.of("malformed").values() for value in values]
    right, wrong = found.figures["right"], found.figures["format alone"]
    low = statistics.fmean(floor) if floor else 0.0
    share = (wrong - low) / (right - low) if right > low else 0.0
    if share > 0.5:
        says = f"{found.says}; {100 * share:.0f} % of the reward are paid for a well-formed wrong answer"
        return dataclasses.replace(found, outcome="note", says=says)
    return dataclasses.replace(found, outcome="fine")


def length(paid: Paid) -> Found:
    """Neutral words earn nothing, and a long wrong answer less than a short right one."""
    short = "brief" if paid.of("brief") else "right"
    longer = [_gains(paid, "padded", "right"), _gains(paid, "padded wrong", "wrong")]
    beaten = _beats(paid, short, "padded wrong")
    return _worst(*longer, beaten) if paid.judges & ANSWER else _worst(*longer)


def option_order(paid: Paid) -> Found:
    """The right answer earns the same wherever its option stands."""
    ours, theirs = paid.of("permuted"), paid.of("own order")
    both = ours.keys() & theirs.keys()
    if not both:
        return _no("the task has no options")
    apart = [max(abs(value - theirs[place][0]) for value in ours[place]) for place in both]
    share = sum(value > EQUAL for value in apart) / len(apart)
    says = (
        f"with its options in another order the right answer earns up to {max(apart):.3g} more or less, "
        f"on {100 * share:.0f} % of the prompts"
    )
    figures = {"largest_difference": max(apart), "share_of_prompts": share}
    return Found(outcome="alarm" if max(apart) > paid.least else "fine", says=says, figures=figures)


def _pasted(paid: Paid, kind: str) -> Found:
    """A wrong answer with borrowed words loses to the right one; what they earn is told."""
    lost, gained = _beats(paid, "right", kind, by=max), _gains(paid, kind, "wrong")
    if gained.outcome == "alarm" and lost.outcome != "alarm" and "report" in paid.judges:
        return dataclasses.replace(gained, outcome="note", says=f"{gained.says}; {lost.says}")
    return _worst(lost, gained)


def copied_report(paid: Paid) -> Found:
    """The reference report before a wrong answer loses to the right answer, and earns nothing."""
    if not paid.of("copied report"):
        return _no("the cases have no report, or it is the answer")
    return _pasted(paid, "copied report")


def echoed_prompt(paid: Paid) -> Found:
    """The prompt's own words lose to the right answer, and earn nothing."""
    return _pasted(paid, "echoed prompt")


def everything_affirmed(paid: Paid) -> Found:
    """An answer that affirms everything loses to the right one."""
    if not paid.of("everything affirmed"):
        return _no("nothing tells how everything could be affirmed")
    return _far_below(paid, "everything affirmed", _beats(paid, "right", "everything affirmed", by=max))


def another_key(paid: Paid) -> Found:
    """An answer earns less where another is right, or where it is held against another patient."""
    kind = "another key" if paid.judges & ANSWER else "another case"
    ours, theirs = paid.of(kind), paid.of("right")
    both = ours.keys() & theirs.keys()
    if not both:
        return _no("there are not two patients with different answers")
    lost = [theirs[place][0] - ours[place][0] for place in both]
    mean, share = statistics.fmean(lost), sum(value > EQUAL for value in lost) / len(lost)
    says = f"the right answer loses {mean:.3g} under {kind}, on {100 * share:.0f} % of the prompts"
    figures = {"loss": mean, "share_of_prompts": share}
    return Found(outcome="fine" if mean > paid.least else "alarm", says=says, figures=figures)


def repeat(paid: Paid) -> Found:
    """Equal calls give equal verdicts."""
    return _stays(paid, "repeat", "when asked again")


def company(paid: Paid) -> Found:
    """A verdict hangs neither on the order nor on the other answers."""
    return _stays(paid, "company", "in another order, or beside other answers")


def _stays(paid: Paid, check: str, when: str) -> Found:
    count, most = paid.moved[check]
    says = f"{count} verdicts change {when}" + (f", by up to {most:.3g}" if count else "")
    figures = {"changed": float(count), "largest_change": most}
    return Found(outcome="alarm" if count else "fine", says=says, figures=figures)


def blind(paid: Paid) -> Found:
    """The best answer that is given to everyone alike earns far less than the right one."""
    right = paid.of("right")
    kinds = [kind for kind in dict.fromkeys(twin.kind for twin in paid.twins) if kind.startswith(CONSTANT)]
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
    if not earned:
        return _no("no answer is judged on all prompts")
    one = statistics.fmean(value for values in right.values() for value in values)
    below = paid.of("wrong") or paid.of("malformed")
    low = statistics.fmean(value for values in below.values() for value in values) if below else 0.0
    rule = statistics.fmean(earned)
    share = (rule - low) / (one - low) if one > low else 1.0
    says = f"an answer that never looks earns {rule:.3g}, right {one:.3g}, wrong {low:.3g}"
    outcome: Outcome = "alarm" if one - rule < paid.least else "note" if share > 0.5 else "fine"
    return Found(outcome=outcome, says=says, figures={"blind": rule, "right": one, "wrong": low})


@dataclasses.dataclass(frozen=True)
class Check:
    """A check, and what a reward must judge for it to apply; empty: it applies to all."""

    run: Callable[[Paid], Found]
    needs: frozenset[Judged] = frozenset()


_CONTENT: frozenset[Judged] = frozenset({*ANSWER, "report"})
_ANY: frozenset[Judged] = frozenset({*_CONTENT, "format"})
_ANSWER_OR_FORMAT: frozenset[Judged] = frozenset({*ANSWER, "format"})
CHECKS: Mapping[str, Check] = {
    "right over wrong": Check(right_over_wrong, ANSWER),
    "malformed": Check(malformed, _ANSWER_OR_FORMAT),
    "no answer": Check(no_answer, ANSWER),
    "format alone": Check(format_alone, ANSWER),
    "length": Check(length, _ANY),
    "option order": Check(option_order, _ANY),
    "copied report": Check(copied_report, _CONTENT),
    "echoed prompt": Check(echoed_prompt, ANSWER),
    "everything affirmed": Check(everything_affirmed, ANSWER),
    "another key": Check(another_key, _CONTENT),
    "blind": Check(blind, ANSWER),
    "repeat": Check(repeat),
    "company": Check(company),
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
    asked, left_out = _without_costs(rewards)
    if not asked:
        return left_out
    found = list(left_out)
    for task in dict.fromkeys(row.prompt.task for row in rows):
        own = [row for row in rows if row.prompt.task == task]
        found += _of_task(asked, task, own, constants)
    return found


def _without_costs(rewards: Sequence[NamedReward]) -> tuple[list[NamedReward], list[Checked]]:
    asked: list[NamedReward] = []
    left_out = []
    for item in rewards:
        reason = item.reward.costs
        if not reason and item.gate and item.gate not in {one.name for one in asked}:
            reason = f"it is gated by {item.gate!r}, which is not asked"
        if reason:
            says = f"is not asked: {reason}"
            left_out.append(Checked(check="asked", reward=item.name, outcome="not applicable", says=says))
        else:
            asked.append(item)
    return asked, left_out


def _of_task(
    rewards: Sequence[NamedReward], task: str, rows: Sequence[Row], constants: bool
) -> list[Checked]:
    try:
        made = twins(rows, constants=constants)
    except (ValueError, EvidError) as cause:
        says = f"the task cannot write right answers: {cause}"
        return [Checked(check=name, task=task, outcome="not applicable", says=says) for name in CHECKS]
    composer = RewardComposer(rewards)
    judgement = composer([twin.rollout for twin in made])
    values = {name: _values(judgement, name) for name in judgement.verdicts}
    moved = _moved(composer, made, values)

    def paid(some: Sequence[NamedReward], judges: frozenset[Judged], column: Sequence[float | None]) -> Paid:
        changes = {
            check: (sum(by[one.name][0] for one in some), max((by[one.name][1] for one in some), default=0.0))
            for check, by in moved.items()
        }
        return Paid(made, column, judges, changes)

    def composed(some: Sequence[NamedReward]) -> Paid:
        return paid(some, judged_by(some), judgement.totals(some) if some else [0.0] * len(made))

    counted = [item for item in rewards if item.weight]
    found: list[Checked] = []
    for name, check in CHECKS.items():
        result = _run(check, composed(counted))
        declared = {one.name: reason for one in counted if (reason := one.reward.declared.get(name))}
        if result.outcome == "alarm" and declared:
            rest = [one for one in counted if one.name not in declared]
            if not rest or _run(check, composed(rest)).outcome != "alarm":
                result = _excused(result, "; ".join(f"{who}: {why}" for who, why in declared.items()))
        found.append(Checked(check=name, task=task, **vars(result)))
        for one in rewards:
            if one.reward.judges is None and check.needs:
                continue  # what it is for is not known; it is judged in company
            result = _run(check, paid([one], one.reward.judges or frozenset(), values[one.name]))
            if result.outcome == "alarm" and name in one.reward.declared:
                result = _excused(result, one.reward.declared[name])
            if result.outcome != "not applicable":
                found.append(Checked(check=name, task=task, reward=one.name, **vars(result)))
    gold = [twin.rollout for twin in made if twin.kind == "right"]
    for one in rewards:
        with process_kept():
            own = one.reward.checks(gold)
        found += [dataclasses.replace(result, task=task, reward=one.name) for result in own]
    return found


def _run(check: Check, paid: Paid) -> Found:
    if check.needs and not check.needs & paid.judges:
        return _no(f"no reward says that it judges {' or '.join(sorted(check.needs))}")
    if not any(value is not None for value in paid.values):
        return _no("judges no answer to this task")
    return check.run(paid)


def _excused(found: Found, reason: str) -> Found:
    return dataclasses.replace(found, outcome="note", says=f"{found.says}. Declared: {reason}")


def judged_by(rewards: Sequence[NamedReward]) -> frozenset[Judged]:
    """Return what the rewards that count judge; one that does not say is taken for a judge of answers."""
    correct: frozenset[Judged] = frozenset({"correctness"})
    each = [correct if one.reward.judges is None else one.reward.judges for one in rewards if one.weight]
    return frozenset().union(*each)


def _values(judgement: Judgement, name: str) -> list[float | None]:
    return [one.value if isinstance(one, Score) else None for one in judgement.verdicts[name]]


def _moved(
    composer: RewardComposer, made: Sequence[Twin], values: Mapping[str, Sequence[float | None]]
) -> dict[str, dict[str, tuple[int, float]]]:
    """Return for each reward the verdicts that change in other calls: how many, and by how much."""
    every = list(range(len(made)))
    groups: dict[int, list[int]] = {}
    for index, twin in enumerate(made):
        groups.setdefault(twin.rollout.group, []).append(index)
    thinned = [index for members in groups.values() for index in members[:2]]
    first = next(iter(groups.values()))
    found: dict[str, dict[str, tuple[int, float]]] = {"repeat": {}, "company": {}}
    calls = [("repeat", every, None), ("company", every[::-1], None), ("company", thinned, False)]
    if any(one.reward.compares_group for one in composer.rewards):
        calls.append(("company", first, True))
    for check, places, compares_group in calls:
        judgement = composer([made[place].rollout for place in places])
        for one in composer.rewards:
            known = found[check].setdefault(one.name, (0, 0.0))
            if compares_group not in (None, one.reward.compares_group):
                continue
            before = [values[one.name][place] for place in places]
            apart = [_apart(*pair) for pair in zip(before, _values(judgement, one.name), strict=True)]
            changed = [value for value in apart if value > 1e-6]
            if len(changed) >= known[0]:
                found[check][one.name] = (len(changed), max(changed, default=0.0))
    return found


def _apart(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else 1.0
    return abs(one - other)
