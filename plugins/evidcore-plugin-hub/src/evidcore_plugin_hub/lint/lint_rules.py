"""What lint tries beyond `evid audit reward`: the contract, the process, time, and further answers.

Each rule takes a `Subject` and says what it found, None where it does not apply.
"""

import contextlib
import dataclasses
import io
import os
import random
import resource
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import thread as pools
from typing import Any

import numpy as np
import torch
from evidcore_testing import check_reward

from evidcore.api import Report, Reward, Rollout, Score, TextPart, VolumeRef
from evidcore.case import Action, Turn, Verdict
from evidcore.errors import EvidError
from evidcore.reward.composer import RewardComposer
from evidcore.text.tags import LETTERS
from evidcore_plugin_hub.lint.reward_audit import ANSWER, CONTENT, Found, Subject, alarm_if
from evidcore_plugin_hub.lint.twins import options_of, rekeyed

WORDS = ("emphysema ", "There is emphysema. ", "<think>", "[", "a")
SHORT, LONG = 1_000, 8_000  # characters
STEEP, SLOW_S = 24.0, 0.2  # linear is 8 times; quadratic 64
TRIES = 3
DEAR_S, MUCH_MIB = 0.05, 1024.0  # of an answer: 64 of them take 3 s of each step
_forks: list[None] = []  # one for each fork of this process
os.register_at_fork(after_in_parent=lambda: _forks.append(None))


def regrouped(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    """Return rollouts with groups numbered anew."""
    return [dataclasses.replace(one, group=number) for number, group in enumerate(groups) for one in group]


class _Watched(Reward):
    """A reward, and what its calls left behind in the process."""

    def __init__(self, reward: Reward, bounds: tuple[float, float]) -> None:
        self.reward, self.bounds, self.left = reward, bounds, dict[str, str]()
        self.judges, self.compares_group = reward.judges, reward.compares_group

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Any:
        before, printed = _state(), io.StringIO()
        threads, process, forked = set(threading.enumerate()), os.getpid(), len(_forks)
        with contextlib.redirect_stdout(printed):
            verdicts = self.reward(rollouts, earlier)
        if os.getpid() != process:
            os._exit(0)
        after = _state()
        self.left |= {name: after[name] for name in after if after[name] != before[name]}
        if printed.getvalue():
            self.left["print"] = f"prints {printed.getvalue()[:60]!r} on standard output"
        pooled = set(pools._threads_queues)  # these end with the interpreter
        if any(not one.daemon for one in set(threading.enumerate()) - threads - pooled):
            self.left["thread"] = "leaves a thread running that keeps the process from ending"
        if len(_forks) > forked:
            self.left["fork"] = "forks the process"
        return verdicts


def _state() -> dict[str, str]:
    """Return what a call may not change, by name; a changed text says what was changed and to what."""
    handlers = [(one.name, signal.getsignal(one)) for one in signal.Signals]
    drawn = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state().sum()
    return {
        "random": f"draws from, or seeds, the random state of training ({hash(repr(drawn)):x})",
        "signals": f"sets handlers of signals: {handlers!r}",
        "timer": f"sets a timer: {signal.getitimer(signal.ITIMER_REAL)[0] > 0}",
        "folder": f"changes the working folder to {os.getcwd()!r}",
        "environment": f"changes environment variables ({hash(str(dict(os.environ))):x})",
        "threads": f"sets torch to {torch.get_num_threads()} threads",
        "default": f"sets torch's default to {torch.get_default_dtype()}",
    }


def process(subject: Subject) -> Found:
    """A call leaves the process as it was."""
    watched = [_Watched(one.reward, one.reward.bounds) for one in subject.rewards]
    named = [dataclasses.replace(one, reward=it) for one, it in zip(subject.rewards, watched, strict=True)]
    RewardComposer(named)(regrouped([[gold] * 2 for gold in subject.answers("right").values()]))
    left = {name: text for reward in watched for name, text in reward.left.items()}
    if not left:
        return Found("fine", "leaves the process as it was")
    contained = left.keys() <= {"print", "random", "threads"}  # training gives these back
    return Found("note" if contained else "alarm", "; ".join(text[:160] for text in left.values()))


def contract(subject: Subject) -> Found:
    """Every clause of `evidcore_testing.check_reward` holds."""
    needed = [item for item in subject.rewards if not item.weight]

    def earlier(rollouts: Sequence[Rollout]) -> Mapping[str, Sequence[Verdict]]:
        return RewardComposer(needed)(rollouts).verdicts if needed else {}

    for one in subject.counted:
        judges, right = one.reward.judges, subject.answers("right")
        worse = subject.answers("wrong" if judges and judges & ANSWER else "malformed")
        alone = Subject([*needed, dataclasses.replace(one, gate="")], subject.rows)
        paid = alone.paid_for(regrouped([[gold] for gold in right.values()])) if right else []
        judged = [place for place, value in zip(right, paid, strict=True) if value is not None]
        if not judged:
            continue
        good = regrouped([[right[place]] * 2 for place in judged])
        tells = bool(judges and judges & {*ANSWER, "format"}) and not one.reward.compares_group
        tells = tells and worse.keys() >= set(judged) and "malformed" not in one.reward.declared
        bad = regrouped([[worse[place]] * 2 for place in judged]) if tells else None
        bounded = np.isfinite(one.reward.bounds).all()  # others are given some, to try all else
        reward = one.reward if bounded else _Watched(one.reward, (-1e9, 1e9))
        try:
            check_reward(reward, good, bad, earlier=earlier)
        except AssertionError as broken:
            name = type(reward).__name__
            said = str(broken).replace(f"{name} breaks its contract: ", f"{type(one.reward).__name__}: ", 1)
            return Found("alarm", said[:400])
    return Found("fine", "keeps every clause of check_reward")


def time_by_length(subject: Subject) -> Found:
    """Judging takes time in proportion to the length of an answer."""
    steepest, slowest = 0.0, ""
    for word in WORDS:
        short_s, long_s = (_seconds(subject, (word * count)[:count]) for count in (SHORT, LONG))
        times = long_s / max(short_s, 1e-4)
        if long_s > SLOW_S and times > steepest:
            steepest, slowest = times, f"{word!r} to {LONG} characters: {long_s:.2f} s"
    figures = {"times_as_long": steepest}
    if steepest > STEEP:
        says = f"{LONG // SHORT} times the length takes {steepest:.0f} times as long; repeating {slowest}"
        return Found("alarm", says, figures)
    return Found("fine", "takes time in proportion to the length of an answer", figures)


def _seconds(subject: Subject, text: str) -> float:
    """Return the CPU time of judging an answer of that text, the least of several tries.

    A busy machine disturbs that least. Each try has another text, since rewards keep what they have read.
    """
    row, took = subject.rows[0], []
    for number in range(TRIES):
        said = f"{text}{number}"
        one = Rollout(prompt=row.prompt, group=0, text=said, answer=row.task.parse(row.prompt, said))
        answer = dataclasses.replace(one.answer, think=said, report=one.answer.report and said)
        start = time.process_time()
        subject.paid_for([dataclasses.replace(one, answer=answer)] * 2)
        took.append(time.process_time() - start)
    return min(took)


def cost(subject: Subject) -> Found:
    """Tell what an answer costs."""
    rollouts = regrouped([[gold] * 8 for gold in subject.answers("right").values()])
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    subject.paid_for(rollouts)
    seconds = (time.process_time() - start) / len(rollouts)
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    says = f"{1000 * seconds:.2f} ms an answer, {added:.0f} MiB more at its peak"
    figures = {"seconds_per_answer": seconds, "added_memory_mib": added}
    return Found("note" if seconds > DEAR_S or added > MUCH_MIB else "fine", says, figures)


def _paid(subject: Subject, pairs: Sequence[tuple[Rollout, Rollout]]) -> list[tuple[float, float]]:
    """Return what is paid for two answers each, where both are judged."""
    paid = subject.paid_for(regrouped([[one] for pair in pairs for one in pair])) if pairs else []
    return _both(paid[::2], paid[1::2])


def _both(ones: Sequence[float | None], others: Sequence[float | None]) -> list[tuple[float, float]]:
    pairs = zip(ones, others, strict=True)
    return [(one, other) for one, other in pairs if one is not None and other is not None]


def policies_that_do_not_look(subject: Subject) -> Found | None:
    """Over all orders of the options no letter earns more than another."""
    by_letter: dict[str, list[float]] = {}
    for twin in subject.twins if subject.judges & ANSWER else ():
        if twin.kind not in ("own order", "permuted"):
            continue
        prompt, task = twin.rollout.prompt, subject.rows[twin.place].task
        letters = LETTERS[: len(options_of(prompt))]
        texts = [task.gold(rekeyed(prompt, letter, alone=True))[0] for letter in letters]
        own = twin.rollout
        group = [dataclasses.replace(own, text=text, answer=task.parse(prompt, text)) for text in texts]
        values = [value for value in subject.paid_for(regrouped([group])) if value is not None]
        if len(values) == len(group):  # else none has an advantage that could be told
            for letter, value in zip(letters, values, strict=True):
                by_letter.setdefault(letter, []).append(value - statistics.fmean(values))
    if not by_letter:
        return None
    means = {letter: statistics.fmean(values) for letter, values in by_letter.items()}
    most = max(means, key=lambda letter: abs(means[letter]))
    says = f"a policy that always answers {most} has a mean advantage of {means[most]:+.3g} over all orders"
    figures = {f"advantage_{letter}": value for letter, value in means.items()}
    return alarm_if(abs(means[most]) > subject.least, says, figures)


def siblings(subject: Subject) -> Found | None:
    """A reward that compares the group moves where the other answers of the group change."""
    if not any(one.reward.compares_group for one in subject.counted):
        return None
    right, wrong = subject.answers("right"), subject.answers("wrong")
    groups = [
        [right[place], *others, wrong[place]]
        for place in right
        if place in wrong
        for others in ([right[place]] * 2, [wrong[place]] * 2)
    ]
    firsts = subject.paid_for(regrouped(groups))[::4]
    paid = _both(firsts[::2], firsts[1::2])
    if not paid:
        return None
    share = statistics.fmean(abs(one - other) > subject.least for one, other in paid)
    says = f"with other siblings the right answer earns something else on {100 * share:.0f} % of the prompts"
    return alarm_if(share == 0, says, {"share_of_prompts": share})


def tool_words(subject: Subject) -> Found | None:
    """A wrong answer earns nothing for a tool's reply that holds the right one."""
    right, wrong = subject.answers("right"), subject.answers("wrong")

    def replied(place: int, text: str) -> Rollout:
        call = Action(tool="zoom", arguments={"slice": 0, "box": [0, 0, 1000, 1000]})
        turn = Turn(text="Let me look closer.", actions=(call,), reply=(TextPart(text=text),))
        return dataclasses.replace(wrong[place], turns=(*wrong[place].turns, turn))

    neutral = "The slice is shown."
    pairs = [(replied(place, right[place].text), replied(place, neutral)) for place in wrong]
    if not subject.judges or not (paid := _paid(subject, pairs)):
        return None
    gain = statistics.fmean(one - other for one, other in paid)
    says = f"a wrong answer earns {gain:+.3g} where a tool's reply holds the right one"
    return alarm_if(gain > subject.least, says, {"gain": gain})


def missing_file(subject: Subject) -> Found | None:
    """A scan or mask that is not there gives an error or no verdict, never a 0."""
    lost = []
    for gold in subject.answers("right").values():
        case = gold.prompt.case
        volumes = tuple(VolumeRef(path=f"/nowhere/{place}") for place, _ in enumerate(case.volumes))
        masks = {name: dataclasses.replace(ref, path=f"/nowhere/{name}") for name, ref in case.masks.items()}
        gone = dataclasses.replace(case, volumes=volumes, masks=masks)
        before = dict(_by_reward(subject, gold))
        lost_scan = dataclasses.replace(gold, prompt=dataclasses.replace(gold.prompt, case=gone))
        try:
            after = dict(_by_reward(subject, lost_scan))
        except EvidError:
            continue
        falls = [before[name] - value for name, value in after.items() if name in before]
        lost += [max(falls)] if falls and max(falls) > subject.least else []
    if not lost:
        return Found("fine", "no verdict falls where scans and masks are missing")
    says = (
        f"where the scan and the masks are missing, {len(lost)} right answers earn up to {max(lost):.3g} "
        "less; give Unscored(kind='failed', ...) or raise"
    )
    return Found("alarm", says, {"answers": float(len(lost))})


def _by_reward(subject: Subject, rollout: Rollout) -> Iterator[tuple[str, float]]:
    """Yield what each reward that counts adds for an answer on which it has a verdict."""
    verdicts = RewardComposer(subject.rewards)([rollout]).verdicts
    for one in subject.counted:
        if isinstance(verdict := verdicts[one.name][0], Score):
            yield one.name, one.weight * verdict.value


def empty_against_empty(subject: Subject) -> Found | None:
    """Nothing, held against nothing, does not earn what a right answer earns."""
    if not subject.judges & CONTENT or any(options_of(row.prompt) for row in subject.rows):
        return None
    tasks, pairs = {row.prompt.id: row.task for row in subject.rows}, []
    for gold in subject.answers("right").values():
        case = gold.prompt.case
        absent = tuple(dataclasses.replace(one, state="absent") for one in case.findings)
        bare = dataclasses.replace(case, report=Report(text=""), findings=absent, masks={})
        prompt = dataclasses.replace(gold.prompt, case=bare)
        answer = tasks[gold.prompt.id].parse(prompt, "")
        pairs.append((gold, Rollout(prompt=prompt, group=0, text="", answer=answer)))
    try:
        paid = _paid(subject, pairs)
    except EvidError:
        return None
    if not paid:
        return Found("fine", "nothing is not judged where there is nothing to find")
    right, empty = (statistics.fmean(side) for side in zip(*paid, strict=True))
    says = f"an empty answer where there is nothing to find earns {empty:.3g}, a right answer {right:.3g}"
    return alarm_if(empty > right - subject.least, says, {"empty": empty, "right": right})


LINT_RULES: Mapping[str, Callable[[Subject], Found | None]] = {
    "process": process,
    "contract": contract,
    "time": time_by_length,
    "cost": cost,
    "policies that do not look": policies_that_do_not_look,
    "siblings": siblings,
    "tool words": tool_words,
    "missing file": missing_file,
    "empty against empty": empty_against_empty,
}
