"""Checks of what rewards pay, beyond those of `evid audit reward`.

Each takes a `Subject` and says what it found, None where it does not apply.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from evidcore.case import Action, Answer, Prompt, Report, Rollout, TextPart, Turn, VolumeRef
from evidcore.contracts import Task
from evidcore.contracts.judging import Outcome
from evidcore.errors import DataError, EvidError
from evidcore.text.tags import LETTERS
from evidcore_plugin_hub.lint.reward_audit import ANSWER, Found
from evidcore_plugin_hub.lint.subject import Subject, about, regrouped
from evidcore_plugin_hub.lint.twins import options_of

GONE = "/nowhere/lint/{}"
NEUTRAL = "The slice is shown."


def _both_known(first: Sequence[float | None], second: Sequence[float | None]) -> list[tuple[float, float]]:
    pairs = zip(first, second, strict=True)
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def _share_moved(subject: Subject, both: Sequence[tuple[float, float]]) -> float:
    return statistics.fmean(abs(one - other) > subject.least for one, other in both)


def _pairs(
    subject: Subject, first: Sequence[Rollout], second: Sequence[Rollout]
) -> list[tuple[float, float]]:
    """Return what is paid for two answers each, where both are judged; each pair stands in one group."""
    groups = [[one, other] for one, other in zip(first, second, strict=True)]
    paid = subject.pay(regrouped(groups)) if groups else []
    return _both_known(paid[::2], paid[1::2])


def _apart(
    subject: Subject, first: Sequence[Rollout], second: Sequence[Rollout]
) -> list[tuple[float, float]]:
    """Return the same where each stands in a group of its own, since their prompts differ."""
    paid = subject.pay(regrouped([[one] for one in (*first, *second)])) if first else []
    return _both_known(paid[: len(first)], paid[len(first) :])


def policies_that_do_not_look(subject: Subject) -> Found | None:
    """Equal answers earn the same, and over all orders of the options no letter earns more than another."""
    if not subject.judges & ANSWER:
        return None
    golds = list(subject.of("right").values())
    paid = subject.pay(regrouped([[gold] * 4 for gold in golds]))
    spread = max(
        (max(four) - min(four) for at in range(0, len(paid), 4) if (four := _known(paid[at : at + 4]))),
        default=0.0,
    )
    if spread > subject.least:
        says = f"four equal answers to one prompt earn up to {spread:.3g} more or less than each other"
        return Found("alarm", says, {"spread": spread})
    by_letter: dict[str, list[float]] = {}
    groups, letters = [], []
    tasks = {row.prompt.id: row for row in subject.rows}
    for twin in subject.made:
        if twin.kind in ("own order", "permuted"):
            prompt, task = twin.rollout.prompt, tasks[subject.rows[twin.place].prompt.id].task
            said = LETTERS[: len(options_of(prompt))]
            texts = [_text(task, prompt, letter) for letter in said]
            groups.append([
                dataclasses.replace(twin.rollout, text=text, answer=task.parse(prompt, text))
                for text in texts
            ])
            letters.append(said)
    if not groups:
        return Found("fine", "four equal answers to one prompt earn the same", {"spread": spread})
    paid = subject.pay(regrouped(groups))
    place = 0
    for said in letters:
        values = _known(paid[place : place + len(said)])
        place += len(said)
        if len(values) < len(said):
            continue  # not every letter has a verdict, so none has an advantage that could be told
        for letter, value in zip(said, values, strict=True):
            by_letter.setdefault(letter, []).append(value - statistics.fmean(values))
    if not by_letter:
        return None
    means = {letter: statistics.fmean(values) for letter, values in by_letter.items()}
    most = max(means, key=lambda letter: abs(means[letter]))
    says = f"a policy that always answers {most} has a mean advantage of {means[most]:+.3g} over all orders"
    outcome: Outcome = "alarm" if abs(means[most]) > subject.least else "fine"
    return Found(outcome, says, {f"advantage_{letter}": value for letter, value in means.items()})


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _text(task: Task, prompt: Prompt, letter: str) -> str:
    """Return what would be the gold completion if `letter` were right, without its reasons."""
    reference = {**prompt.reference, "letter": letter}
    if "true_options" in reference:
        reference["true_options"] = [LETTERS.index(letter)]
    keyed = dataclasses.replace(prompt, reference=reference)
    return task.gold(keyed)[0]


def reference(subject: Subject) -> Found | None:
    """The same answer earns something else against another patient's report."""
    golds = subject.of("right")
    options = any(options_of(row.prompt) for row in subject.rows)
    if "report" not in subject.judges and (options or "correctness" not in subject.judges):
        return None
    first, second = [], []
    for place, gold in golds.items():
        other = next(
            (row.prompt.case for row in (*subject.rows[place + 1 :], *subject.rows[:place])
             if row.prompt.case.report and row.prompt.case.report != gold.prompt.case.report),
            None,
        )  # fmt: skip
        if other is not None:
            case = dataclasses.replace(gold.prompt.case, report=other.report, findings=other.findings)
            first.append(gold)
            second.append(about(gold, dataclasses.replace(gold.prompt, case=case)))
    both = _apart(subject, first, second)
    if not both:
        return None
    share = _share_moved(subject, both)
    says = f"against another patient's report the same answer earns more or less on {100 * share:.0f} %"
    return Found("alarm" if share == 0 else "fine", says, {"share_of_prompts": share})


def siblings(subject: Subject) -> Found | None:
    """A reward that compares the group moves where the other answers of the group change."""
    if not any(one.reward.compares_group for one in subject.counted):
        return None
    right, wrong = subject.of("right"), subject.of("wrong")
    both = [place for place in right if place in wrong]
    alike = [[right[place], right[place], right[place], wrong[place]] for place in both]
    alone = [[right[place], wrong[place], wrong[place], wrong[place]] for place in both]
    paid = subject.pay(regrouped([*alike, *alone]))
    firsts = [paid[at] for at in range(0, len(paid), 4)]
    pairs = _both_known(firsts[: len(both)], firsts[len(both) :])
    if not pairs:
        return None
    share = _share_moved(subject, pairs)
    says = f"with other siblings the right answer earns something else on {100 * share:.0f} % of the prompts"
    return Found("alarm" if share == 0 else "fine", says, {"share_of_prompts": share})


def evidence(subject: Subject) -> Found | None:
    """A reward of evidence earns something else where the answer points elsewhere."""
    if "evidence" not in subject.judges:
        return None
    right, wrong = subject.of("right"), subject.of("wrong")
    moved = [place for place, gold in right.items() if gold.answer.evidence and place in wrong]
    moved = [place for place in moved if wrong[place].answer.evidence != right[place].answer.evidence]
    both = _pairs(subject, [right[place] for place in moved], [wrong[place] for place in moved])
    if not both:
        return None
    lost = statistics.fmean(one - other for one, other in both)
    says = f"pointing where another prompt's answer points loses {lost:.3g}"
    return Found("fine" if lost > subject.least else "alarm", says, {"loss": lost})


def tool_words(subject: Subject) -> Found | None:
    """A wrong answer earns nothing for a tool's reply that holds the right one."""
    right, wrong = subject.of("right"), subject.of("wrong")
    if not subject.judges or not wrong:
        return None

    def replied(place: int, said: str) -> Rollout:
        call = Action(tool="zoom", arguments={"slice": 0, "box": [0, 0, 1000, 1000]})
        turn = Turn(text="Let me look closer.", actions=(call,), reply=(TextPart(text=said),))
        return dataclasses.replace(wrong[place], turns=(*wrong[place].turns, turn))

    told = [replied(place, right[place].text) for place in wrong]
    plain = [replied(place, NEUTRAL) for place in wrong]
    both = _apart(subject, told, plain)
    if not both:
        return None
    gain = statistics.fmean(one - other for one, other in both)
    says = f"a wrong answer earns {gain:+.3g} where a tool's reply holds the right one"
    return Found("alarm" if gain > subject.least else "fine", says, {"gain": gain})


def missing_file(subject: Subject) -> Found | None:
    """A scan or mask that is not there gives an error or no verdict, never a 0."""
    lost = []
    for gold in subject.of("right").values():
        case = gold.prompt.case
        gone = dataclasses.replace(
            case,
            volumes=tuple(VolumeRef(path=GONE.format(number)) for number, _ in enumerate(case.volumes)),
            masks={
                name: dataclasses.replace(ref, path=GONE.format(name)) for name, ref in case.masks.items()
            },
        )
        known = subject.paid_by(gold)
        try:
            now = subject.paid_by(about(gold, dataclasses.replace(gold.prompt, case=gone)))
        except (DataError, EvidError):
            continue
        falls = [known[name] - value for name, value in now.items() if name in known]
        lost += [max(falls)] if falls and max(falls) > subject.least else []
    if not lost:
        return Found("fine", "no verdict falls where scans and masks are missing")
    says = (
        f"where the scan and the masks are missing, {len(lost)} right answers earn up to {max(lost):.3g} less"
    )
    return Found(
        "alarm", f"{says}; give Unscored(kind='failed', ...) or raise", {"answers": float(len(lost))}
    )


def empty_against_empty(subject: Subject) -> Found | None:
    """Nothing, held against nothing, does not earn what a right answer earns."""
    if not subject.judges & {*ANSWER, "report"} or any(options_of(row.prompt) for row in subject.rows):
        return None
    golds = list(subject.of("right").values())
    tasks = {row.prompt.id: row.task for row in subject.rows}
    first, second = [], []
    for gold in golds:
        case = gold.prompt.case
        absent = tuple(dataclasses.replace(one, state="absent") for one in case.findings)
        bare = dataclasses.replace(case, report=Report(text=""), findings=absent, masks={})
        prompt = dataclasses.replace(gold.prompt, case=bare)
        answer: Answer = tasks[gold.prompt.id].parse(prompt, "")
        first.append(gold)
        second.append(Rollout(prompt=prompt, group=0, text="", answer=answer))
    try:
        both = _apart(subject, first, second)
    except EvidError:
        return None
    if not both:
        return Found("fine", "nothing is not judged where there is nothing to find")
    right, empty = (statistics.fmean(side) for side in zip(*both, strict=True))
    says = f"an empty answer where there is nothing to find earns {empty:.3g}, a right answer {right:.3g}"
    return Found("alarm" if empty > right - subject.least else "fine", says, {"empty": empty, "right": right})


JUDGING: Mapping[str, Callable[[Subject], Found | None]] = {
    "policies that do not look": policies_that_do_not_look,
    "reference": reference,
    "siblings": siblings,
    "evidence": evidence,
    "tool words": tool_words,
    "missing file": missing_file,
    "empty against empty": empty_against_empty,
}
