"""Lint rewards: the contract, the audit of rewards, and what only lint tries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from evidcore.errors import ContractError, DataError, EvidError
from evidcore.prompts.rows import Row
from evidcore.reward.composer import NamedReward
from evidcore_plugin_hub.lint.guards import GUARDS
from evidcore_plugin_hub.lint.judging_checks import JUDGING
from evidcore_plugin_hub.lint.process_checks import PROCESS, process
from evidcore_plugin_hub.lint.result import LintCheck
from evidcore_plugin_hub.lint.reward_audit import Found, audit_rewards
from evidcore_plugin_hub.lint.subject import Subject

CHECKS: Mapping[str, Callable[[Subject], Found | None]] = {**PROCESS, **JUDGING}


def lint_rewards(rewards: Sequence[NamedReward], rows: Sequence[Row]) -> list[LintCheck]:
    """Try everything on rewards as they are composed, in this thread and without a limit of time.

    Args:
        rewards: in order; those of weight 0 are only asked because others need them.
        rows: prompts of one or several tasks.
    """
    dear = [one for one in rewards if one.reward.costs]
    found = [
        LintCheck(
            check="asked", outcome="not applicable", says=f"{one.name} is not asked: {one.reward.costs}"
        )
        for one in dear
    ]
    names = {one.name for one in dear}
    asked = [one for one in rewards if one not in dear and one.gate not in names]
    if not any(one.weight for one in asked):
        return found
    tasks = list(dict.fromkeys(row.prompt.task for row in rows))
    for task in tasks:
        found += _of_task(Subject(asked, [row for row in rows if row.prompt.task == task]), task)
    judged = [one for one in found if one.task and one.outcome != "not applicable"]
    if not judged and not any(one.outcome == "alarm" for one in found):
        listing = ", ".join(tasks)
        says = (
            f"judges no answer to the tasks {listing}. Lint it over the recipe that uses it: --recipe RECIPE"
        )
        found.append(LintCheck(check="asked", outcome="note", says=says))
    return found


def _of_task(subject: Subject, task: str) -> Iterator[LintCheck]:
    try:
        first = process(subject)  # before any other call, which may leave something behind too
        known = any(value is not None for value in subject.values)
    except (ContractError, DataError) as cause:
        yield _unasked(cause, task)
        return
    except (ValueError, EvidError) as cause:
        yield LintCheck(check="asked", task=task, outcome="not applicable", says=str(cause)[:300])
        return
    if not known:
        return
    for name, check in CHECKS.items():
        said = first if check is process else _tried(check, subject)
        if said is not None:
            yield _declared(subject, LintCheck(check=name, task=task, guards=GUARDS[name], **vars(said)))
    for one in audit_rewards(subject.rewards, subject.rows):
        if not one.reward or one.check not in GUARDS:
            guards = GUARDS.get(one.check, "")
            yield LintCheck(
                check=one.check,
                task=task,
                outcome=one.outcome,
                says=one.says,
                guards=guards,
                figures=one.figures,
            )


def _tried(check: Callable[[Subject], Found | None], subject: Subject) -> Found | None:
    try:
        return check(subject)
    except (EvidError, ValueError) as cause:
        return Found("alarm", str(cause)[:400])


def _unasked(cause: EvidError, task: str) -> LintCheck:
    """Say why a reward could not be asked: its data are elsewhere, or it breaks its contract."""
    inner: BaseException | None = cause
    while inner is not None:
        if isinstance(inner, DataError | FileNotFoundError):
            says = f"needs scans that made prompts do not have ({inner}). Lint it with --recipe RECIPE"
            return LintCheck(check="asked", task=task, outcome="note", says=says[:400])
        inner = inner.__cause__
    return LintCheck(
        check="contract", task=task, outcome="alarm", says=str(cause)[:400], guards=GUARDS["contract"]
    )


def _declared(subject: Subject, check: LintCheck) -> LintCheck:
    """Make an alarm a note where the rewards say that their source's reward does the same."""
    reasons = [
        f"{one.name}: {one.reward.declared[check.check]}"
        for one in subject.counted
        if check.check in one.reward.declared
    ]
    if check.outcome != "alarm" or not reasons:
        return check
    return dataclasses.replace(check, outcome="note", says=f"{check.says}. Declared: {'; '.join(reasons)}")
