"""Probes of how rewards behave when they are called: the contract, time, and what they make of nothing."""

import dataclasses
import resource
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from evidcore.api import Report, Rollout, Score, VolumeRef
from evidcore.case import Verdict
from evidcore.errors import EvidError
from evidcore.reward.composer import NamedReward, RewardComposer
from evidcore_plugin_hub.lint.paid import ANSWER, CONTENT, Found, Paid, alarm_if, probe, regrouped
from evidcore_plugin_hub.lint.target import PROCESS
from evidcore_plugin_hub.lint.twins import options_of
from evidcore_plugin_hub.lint.watched import Watched

WORDS = ("emphysema ", "There is emphysema. ", "<think>", "[", "a")
SHORT, LONG = 1_000, 8_000  # characters
STEEP, SLOW_S = 24.0, 0.2  # linear is 8 times; quadratic 64
TRIES = 3
DEAR_S, MUCH_MIB = 0.05, 1024.0  # of an answer: 64 of them take 3 s of each step


@probe("process", PROCESS, asks=True)
def process(paid: Paid) -> Found:
    """A call leaves the process as it was."""
    left = paid.subject.left
    if not left:
        return Found("fine", "leaves the process as it was")
    contained = left.keys() <= {"print", "random", "threads"}  # training gives these back
    return Found("note" if contained else "alarm", "; ".join(text[:160] for text in left.values()))


@probe("contract", "TRL #6533: one score was given to all; VLM-R1: errors turned into zeros", asks=True)
def contract(paid: Paid) -> Found:
    """Every clause of `evidcore_testing.check_reward` holds."""
    from evidcore_testing import check_reward  # a stage that starts does without it

    right = paid.subject.answers("right")
    for one in paid.counted:
        alone = Paid(paid.subject, [one], alone=True)
        worse = paid.subject.answers("wrong" if alone.judges & ANSWER else "malformed")
        judged = [place for place in right if place in alone.of("right")]
        if not judged:
            continue
        tells = bool(one.reward.judges and one.reward.judges & {*ANSWER, "format"})
        tells = tells and not one.reward.compares_group and "malformed" not in one.reward.declared
        tells = tells and worse.keys() >= set(judged)
        good = regrouped([[right[place]] * 2 for place in judged])
        bad = regrouped([[worse[place]] * 2 for place in judged]) if tells else None
        reward = one.reward
        if not np.isfinite(reward.bounds).all():  # it is given some, to try all else
            reward = Watched(one.reward, {})
            reward.bounds = (-1e9, 1e9)
        place = paid.subject.rewards.index(one)
        needed = [dataclasses.replace(item, gate="") for item in paid.subject.rewards[:place]]
        try:
            check_reward(reward, good, bad, earlier=partial(_verdicts, needed))
        except AssertionError as broken:
            name = type(reward).__name__
            said = str(broken).replace(f"{name} breaks its contract: ", f"{type(one.reward).__name__}: ", 1)
            return Found("alarm", said[:400])
    return Found("fine", "keeps every clause of check_reward")


def _verdicts(rewards: Sequence[NamedReward], rollouts: Sequence[Rollout]) -> Mapping[str, Sequence[Verdict]]:
    return RewardComposer(rewards)(rollouts).verdicts if rewards else {}


@probe("time", "a repeated word made a labeler quadratic; EasyR1 #252: rewards stall the run", asks=True)
def time_by_length(paid: Paid) -> Found:
    """Judging takes time in proportion to the length of an answer."""
    steepest, slowest = 0.0, ""
    for word in WORDS:
        short_s, long_s = (_seconds(paid, (word * count)[:count]) for count in (SHORT, LONG))
        times = long_s / max(short_s, 1e-4)
        if long_s > SLOW_S and times > steepest:
            steepest, slowest = times, f"{word!r} to {LONG} characters: {long_s:.2f} s"
    figures = {"times_as_long": steepest}
    if steepest > STEEP:
        says = f"{LONG // SHORT} times the length takes {steepest:.0f} times as long; repeating {slowest}"
        return Found("alarm", says, figures)
    return Found("fine", "takes time in proportion to the length of an answer", figures)


def _seconds(paid: Paid, text: str) -> float:
    """Return the CPU time of judging an answer of that text, the least of several tries.

    A busy machine disturbs that least. Each try has another text, since rewards keep what they have read.
    """
    row, took = paid.subject.rows[0], []
    for number in range(TRIES):
        said = f"{text}{number}"
        one = Rollout(prompt=row.prompt, group=0, text=said, answer=row.task.parse(row.prompt, said))
        answer = dataclasses.replace(one.answer, think=said, report=one.answer.report and said)
        start = time.process_time()
        paid.ask([[dataclasses.replace(one, answer=answer)] * 2])
        took.append(time.process_time() - start)
    return min(took)


@probe("cost", "RadEval's table: 0.1 ms to 2 s an answer", asks=True)
def cost(paid: Paid) -> Found:
    """Tell what an answer costs."""
    groups = [[gold] * 8 for gold in paid.subject.answers("right").values()]
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    paid.ask(groups)
    seconds = (time.process_time() - start) / (8 * len(groups))
    added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    says = f"{1000 * seconds:.2f} ms an answer, {added:.0f} MiB more at its peak"
    figures = {"seconds_per_answer": seconds, "added_memory_mib": added}
    return Found("note" if seconds > DEAR_S or added > MUCH_MIB else "fine", says, figures)


@probe("missing file", "VLM-R1, MedVol-R1: a file that is missing scores 0", asks=True)
def missing_file(paid: Paid) -> Found:
    """A scan or mask that is not there gives an error or no verdict, never a 0."""
    lost = []
    for gold in paid.subject.answers("right").values():
        case = gold.prompt.case
        volumes = tuple(VolumeRef(path=f"/nowhere/{place}") for place, _ in enumerate(case.volumes))
        masks = {name: dataclasses.replace(ref, path=f"/nowhere/{name}") for name, ref in case.masks.items()}
        gone = dataclasses.replace(case, volumes=volumes, masks=masks)
        before = dict(_by_reward(paid, gold))
        lost_scan = dataclasses.replace(gold, prompt=dataclasses.replace(gold.prompt, case=gone))
        try:
            after = dict(_by_reward(paid, lost_scan))
        except EvidError:
            continue
        falls = [before[name] - value for name, value in after.items() if name in before]
        lost += [max(falls)] if falls and max(falls) > paid.least else []
    if not lost:
        return Found("fine", "no verdict falls where scans and masks are missing")
    says = (
        f"where the scan and the masks are missing, {len(lost)} right answers earn up to {max(lost):.3g} "
        "less; give Unscored(kind='failed', ...) or raise"
    )
    return Found("alarm", says, {"answers": float(len(lost))})


def _by_reward(paid: Paid, rollout: Rollout) -> Iterator[tuple[str, float]]:
    """Yield what each reward that counts adds for an answer on which it has a verdict."""
    verdicts = RewardComposer(paid.subject.rewards)([rollout]).verdicts
    for one in paid.counted:
        if isinstance(verdict := verdicts[one.name][0], Score):
            yield one.name, one.weight * verdict.value


@probe("empty against empty", "MedVol-R1's overlap pays 1 for two empty masks", CONTENT, asks=True)
def empty_against_empty(paid: Paid) -> Found | None:
    """Nothing, held against nothing, does not earn what a right answer earns."""
    if any(options_of(row.prompt) for row in paid.subject.rows):
        return None
    groups = []
    for place, gold in paid.subject.answers("right").items():
        case = gold.prompt.case
        absent = tuple(dataclasses.replace(one, state="absent") for one in case.findings)
        bare = dataclasses.replace(case, report=Report(text=""), findings=absent, masks={})
        prompt = dataclasses.replace(gold.prompt, case=bare)
        answer = paid.subject.rows[place].task.parse(prompt, "")
        groups += [[gold], [Rollout(prompt=prompt, group=0, text="", answer=answer)]]
    try:
        earned = paid.ask(groups)
    except EvidError:
        return None
    pairs = zip(earned[::2], earned[1::2], strict=True)
    both = [(one, other) for one, other in pairs if one is not None and other is not None]
    if not both:
        return Found("fine", "nothing is not judged where there is nothing to find")
    right, empty = (statistics.fmean(side) for side in zip(*both, strict=True))
    says = f"an empty answer where there is nothing to find earns {empty:.3g}, a right answer {right:.3g}"
    return alarm_if(empty > right - paid.least, says, {"empty": empty, "right": right})
