"""Judge rewards before anything is trained on them: completions of known worth, paid as in training.

A probe tries one thing. Most compare what the composed rewards pay for two kinds of completions, out of a few
calls over all of them; some ask about a few prompts anew (`conduct`). A reward that says what it judges
(`Reward.judges`) is also held to that by itself. `evid lint`, `evid audit reward` and every `grpo` stage
before its first step run the same probes, the stage those that take no further answers.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from evidcore.api import DataError
from evidcore.contracts.judging import Checked
from evidcore.errors import ContractError, EvidError
from evidcore.prompts.rows import Row
from evidcore.reward.composer import EQUAL, NamedReward
from evidcore.reward.process_state import preserved_process_state
from evidcore_plugin_hub.lint import conduct as conduct  # its probes
from evidcore_plugin_hub.lint.paid import (
    ANSWER,
    ANY,
    CONTENT,
    PROBES,
    Found,
    Paid,
    Probe,
    Subject,
    alarm_if,
    inapplicable,
    probe,
)
from evidcore_plugin_hub.lint.target import ORDER
from evidcore_plugin_hub.lint.twins import options_of

MOSTLY = 0.9  # of the prompts on which an answer should earn more
HALF = 0.5  # of the way from a wrong answer to a right one: what earns more is worth a policy's while


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
        return inapplicable(f"there is no answer of the kinds {better!r} and {worse!r} that is judged")
    ours = {place: statistics.fmean(high[place]) for place in both}
    theirs = {place: by(low[place]) for place in both}
    wins = sum(ours[place] > theirs[place] + EQUAL for place in both) / len(both)
    one, other = statistics.fmean(ours.values()), statistics.fmean(theirs.values())
    figures = {better: one, worse: other, "share_of_prompts": wins}
    says = f"{better} earns {one:.3g}, {worse} {other:.3g}: more on {100 * wins:.0f} % of the prompts"
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
        return inapplicable(f"there is no answer of the kind {changed!r} that is judged")
    gain = statistics.fmean(gains)
    says = f"{changed} earns {gain:+.3g} over {plain}, more on {100 * share:.0f} % of the prompts"
    return alarm_if(gain > paid.least, says, {"gain": gain, "share_of_prompts": share})


told = partial(_gains, changed="told the answer", plain="told nothing")
probe("tool words", "words that a tool replied are paid as the model's own", ANY)(told)


def far_below(paid: Paid, kind: str, floor: str = "wrong", **how: Any) -> Found:
    """A right answer earns more, and this kind not over half of the way from the floor to it."""
    found, low = _beats(paid, kind, **how), paid.mean(floor)
    if found.outcome in ("not applicable", "alarm") or low is None:
        return found
    right, earned = found.figures["right"], found.figures[kind]
    share = (earned - low) / (right - low) if right > low else 0.0
    says = f"{found.says}; that is {100 * share:.0f} % of the way from {floor} to right"
    return dataclasses.replace(found, outcome="alarm", says=says) if share > HALF else found


probe("no answer", "an absent option, or silence, is paid", ANSWER)(partial(far_below, kind="no answer"))
affirmed = partial(far_below, kind="everything affirmed")
probe("everything affirmed", "Visual-RFT #79: 'A or B or C' is paid in full", ANSWER)(affirmed)
empty = partial(far_below, kind="format alone", floor="malformed", by=statistics.fmean)
probe("format alone", "Visual-RFT #79: well-formed nonsense is paid", ANSWER)(empty)


def _severity(found: Found) -> int:
    return ORDER.index(found.outcome)


@probe("right over wrong", "Med3D-R1's released reward: the letter it asks for earns 0 of 10", ANSWER)
def right_over_wrong(paid: Paid) -> Found:
    """A gold answer earns more than a wrong one."""
    if any(options_of(twin.rollout.prompt) for twin in paid.twins):
        return _beats(paid, "wrong", share=1.0)
    return _beats(paid, "wrong", by=statistics.fmean)  # another patient's answer may be nearly right


@probe("malformed", "open-r1 #407: answers outside the format are paid", ANSWER | {"format"})
def malformed(paid: Paid) -> Found:
    """A right answer outside the format earns less than within it."""
    found = _beats(paid, "malformed")
    gained = found.figures.get("malformed", 0.0) - found.figures.get("right", 0.0)
    if found.outcome == "alarm" and "format" not in paid.judges and gained < paid.least:
        return found.noted("no reward judges the format")
    return found


@probe("length", "open-r1 #407: long reasoning that says nothing is paid", ANY)
def length(paid: Paid) -> Found:
    """Neutral words earn nothing, and a long wrong answer less than a short right one."""
    short = "brief" if paid.of("brief") else "right"
    longer = [_gains(paid, "padded", "right"), _gains(paid, "padded wrong", "wrong")]
    if paid.judges & ANSWER:
        longer.append(_beats(paid, "padded wrong", short, by=statistics.fmean))
    return max(longer, key=_severity)


@probe("option order", "a letter is paid more than another: position bias of released rewards", ANY)
def option_order(paid: Paid) -> Found:
    """The right answer earns the same wherever its option stands."""
    apart, share = _differences(
        paid, "permuted", "own order", lambda ours, theirs: max(abs(value - theirs) for value in ours)
    )
    if not apart:
        return inapplicable("the task has no options")
    says = (
        f"with its options in another order the right answer earns up to {max(apart):.3g} more or less, "
        f"on {100 * share:.0f} % of the prompts"
    )
    figures = {"largest_difference": max(apart), "share_of_prompts": share}
    return alarm_if(max(apart) > paid.least, says, figures)


def pasted(paid: Paid, kind: str) -> Found:
    """A wrong answer with borrowed words loses to the right one; what a report's judge pays is noted."""
    lost, gained = far_below(paid, kind), _gains(paid, kind, "wrong")
    if gained.outcome == "alarm" and lost.outcome != "alarm" and "report" in paid.judges:
        return gained.noted(lost.says)
    return max(lost, gained, key=_severity)


copied, echoed = (partial(pasted, kind=kind) for kind in ("copied report", "echoed prompt"))
probe("copied report", "a report is paid that is copied behind a wrong answer", CONTENT)(copied)
probe("echoed prompt", "words of the prompt are paid as reasoning", ANSWER)(echoed)


@probe("another key", "MedGround-R1 #7: what is judged is taken from the solution", CONTENT)
def another_key(paid: Paid) -> Found:
    """An answer earns less where another is right, and against the report of another patient."""
    kinds = (["another key"] if paid.judges & ANSWER else []) + ["another case"]
    if "report" not in paid.judges:
        kinds = kinds[:1]
    return max((_beats(paid, kind, share=0.0) for kind in kinds), key=_severity)


@probe("blind", "arXiv:2603.21687: 70 to 80 % of accuracy is kept without the image", ANSWER)
def blind(paid: Paid) -> Found:
    """The best answer that is given to everyone alike earns far less than the right one."""
    right = paid.of("right")
    kinds = _kinds(paid, "constant ")
    if not kinds or len(right) < 2:
        return inapplicable("needs several prompts; `evid audit reward` asks")
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
        return inapplicable("no answer is judged on all prompts")
    rule, low = statistics.fmean(earned), paid.mean("wrong" if paid.of("wrong") else "malformed") or 0.0
    says = f"an answer that never looks earns {rule:.3g}, right {one:.3g}, wrong {low:.3g}"
    found = alarm_if(one - rule < paid.least, says, {"blind": rule, "right": one, "wrong": low})
    is_much = found.outcome == "fine" and rule - low > HALF * (one - low)
    return dataclasses.replace(found, outcome="note") if is_much else found


@probe("policies that do not look", "arXiv:2506.10947: random rewards, and such policies, gain", ANSWER)
def policies_that_do_not_look(paid: Paid) -> Found:
    """Over all orders of the options no letter earns more than another."""
    by_letter = {kind: paid.of(kind) for kind in _kinds(paid, "letter ")}
    advantages: dict[str, list[float]] = {kind: [] for kind in by_letter}
    for place in paid.of("own order"):
        means = {kind: statistics.fmean(by[place]) for kind, by in by_letter.items() if place in by}
        for kind, mean in means.items():
            advantages[kind].append(mean - statistics.fmean(means.values()))
    found = {kind: statistics.fmean(values) for kind, values in advantages.items() if values}
    if not found:
        return inapplicable("needs options and many answers; `evid audit reward` asks")
    most = max(found, key=lambda kind: abs(found[kind]))
    says = f"a policy that always answers {most} has a mean advantage of {found[most]:+.3g} over all orders"
    return alarm_if(abs(found[most]) > paid.least, says, found)


@probe("siblings", "a group reward that compares with nobody gives no advantage")
def siblings(paid: Paid) -> Found:
    """A reward that compares the group moves where the other answers of the group change."""
    comparing = [one for one in paid.counted if one.reward.compares_group]  # calls of tools, or answers
    if "correctness" not in Paid(paid.subject, comparing).judges:
        return inapplicable("no reward says that it compares whether answers of a group are right")
    apart, _ = _differences(paid, "among right", "among wrong", lambda ours, theirs: abs(ours[0] - theirs))
    if not apart:
        return inapplicable("needs many answers; `evid audit reward` asks")
    share = statistics.fmean(value > paid.least for value in apart)
    says = f"with other siblings the right answer earns something else on {100 * share:.0f} % of the prompts"
    return alarm_if(share == 0, says, {"share_of_prompts": share})


def _kinds(paid: Paid, begins: str) -> Sequence[str]:
    return list(dict.fromkeys(twin.kind for twin in paid.twins if twin.kind.startswith(begins)))


def stays(paid: Paid, check: str, when: str) -> Found:
    """Verdicts are the same in another call."""
    changes = [apart for one in paid.counted for apart in paid.subject.changes[check, one.name]]
    says = f"{len(changes)} verdicts change {when}" + (f", by up to {max(changes):.3g}" if changes else "")
    figures = {"changed": float(len(changes)), "largest_change": max(changes, default=0.0)}
    return alarm_if(bool(changes), says, figures)


again = partial(stays, check="repeat", when="when asked again")
beside = partial(stays, check="company", when="in another order, or beside other answers")
probe("repeat", "verl #1683: equal calls give other scores")(again)
probe("company", "Med3D-R1's released trainer: answers are scored against another's label")(beside)


def audit_rewards(
    rewards: Sequence[NamedReward], rows: Sequence[Row], *, thorough: bool = True
) -> list[Checked]:
    """Judge the rewards of a stage over prompts of its data.

    Nothing random is moved. Rewards that cost, and those that hang on them, are left out and named.

    Args:
        rewards: as the stage composes them; better ones of its own, if they remember anything.
        rows: prompts, each with its task.
        thorough: also what takes many answers, or asks anew.
    """
    asked, found = _without_costs(rewards)
    for task in dict.fromkeys(row.prompt.task for row in rows) if asked else ():
        of_task = [row for row in rows if row.prompt.task == task]
        found += [dataclasses.replace(one, task=task) for one in _of_task(Subject(asked, of_task, thorough))]
    return found


def _without_costs(rewards: Sequence[NamedReward]) -> tuple[list[NamedReward], list[Checked]]:
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


def _of_task(subject: Subject) -> Iterator[Checked]:
    """Judge rewards together, and each by itself."""
    together = Paid(subject, subject.counted)
    try:
        gold = [twin.rollout for twin in subject.twins if twin.kind == "right"]
    except (ValueError, EvidError) as cause:
        says = f"the task cannot write right answers: {cause}"
        yield Checked(check="asked", outcome="not applicable", says=says)
        return
    try:
        fails, says = "" if together.is_judged else "judged", "no reward judges an answer to this task"
    except EvidError as cause:
        fails = (
            "asked" if _lacks_data(cause) else "contract" if isinstance(cause, ContractError) else "judged"
        )
        says = str(cause)[:400]
    if fails:
        yield Checked(check=fails, outcome="alarm", says=says)
        return
    each = subject.rewards if len(subject.rewards) > 1 else ()
    for item in PROBES if subject.thorough else [one for one in PROBES if not one.asks]:
        yield Checked(check=item.name, **vars(_excused(item, together)))
        for one in () if item.asks else each:
            if one.reward.judges is None and item.needs:
                continue  # what it is for is not known; it is judged in company
            result = _excused(item, Paid(subject, [one], alone=True))
            if result.outcome != "not applicable":
                yield Checked(check=item.name, reward=one.name, **vars(result))
    for one in subject.rewards:
        with preserved_process_state():
            checks = one.reward.checks(gold)
        yield from (dataclasses.replace(result, reward=one.name) for result in checks)


def _lacks_data(cause: BaseException | None) -> bool:
    """Tell whether an error of data is behind another one."""
    while cause is not None and not isinstance(cause, DataError | FileNotFoundError):
        cause = cause.__cause__
    return cause is not None


def _excused(item: Probe, paid: Paid) -> Found:
    """Return what a probe finds; an alarm of rewards that declare it, and of no others, is a note."""
    found = _run(item, paid)
    declared = [one for one in paid.counted if item.name in one.reward.declared]
    if found.outcome != "alarm" or not declared:
        return found
    rest = Paid(paid.subject, [one for one in paid.counted if one not in declared])
    if rest.counted and not item.asks and _run(item, rest).outcome == "alarm":
        return found
    reasons = "; ".join(f"{one.name}: {one.reward.declared[item.name]}" for one in declared)
    return found.noted(f"Declared: {reasons}", ". ")


def _run(item: Probe, paid: Paid) -> Found:
    if item.needs and not item.needs & paid.judges:
        return inapplicable(f"no reward says that it judges {' or '.join(sorted(item.needs))}")
    if not paid.is_judged:
        return inapplicable("judges no answer to this task")
    try:
        return item.run(paid) or inapplicable("does not apply")
    except (EvidError, ValueError) as cause:
        return Found("alarm", str(cause)[:400])
