"""Lint in a process of its own, so that a component that ends it or never answers is told, and no more.

This is no sandbox: the code runs with all rights of who calls it. Lint what you would also train with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from evidcore.errors import EvidError
from evidcore_plugin_hub.lint.guards import GUARDS
from evidcore_plugin_hub.lint.result import LintCheck, LintResult
from evidcore_plugin_hub.worker import Broken, Late, Raised, Told, Worker

if TYPE_CHECKING:
    from evidcore_plugin_hub.lint.target import Target

TIME_LIMIT_S = 300.0  # of one target; loading of libraries counts
AFTERWARDS_S = 20.0  # in which the process must end once all is done


def lint_all(targets: Sequence[Target], *, time_limit_s: float = TIME_LIMIT_S) -> Iterator[dict[str, Any]]:
    """Yield the result of each target, as `LintResult.to_json` gives it.

    Args:
        targets: in order. A new process goes on behind one that ended its process.
        time_limit_s: how long one may take.

    Raises:
        EvidError: if a target asks for something impossible, as a file that is not there.
    """
    worker: Worker | None = None
    for number, target in enumerate(targets, 1):
        worker = worker or Worker("evidcore_plugin_hub.lint.worker:Linter", keeps_errors=True)
        try:
            result: dict[str, Any] = worker.ask("lint", dataclasses.asdict(target), limit_s=time_limit_s)
        except (Late, Broken, Raised) as cause:
            worker.end()
            yield _lost(target, _how(cause, time_limit_s, worker.last_words()))
            worker = None
            continue
        if number == len(targets) and not worker.ends_by_itself(AFTERWARDS_S):
            left = "leaves a thread or process running that keeps the process from ending"
            known = LintResult.from_json(result)
            checks = [*known.checks, LintCheck(check="process", outcome="alarm", says=left)]
            result = dataclasses.replace(known, checks=checks).to_json()
        yield result


def _how(cause: Exception, time_limit_s: float, last: str) -> str:
    """Return in words how a process ended; raise what a person can fix."""
    if isinstance(cause, Raised):
        told: Told = cause.told
        if "EvidError" in told.lines:
            raise EvidError(told.safe + told.said) from None
        status = int(told.said) if told.name == "SystemExit" and told.said.isdecimal() else 1
        ended, last = f"ended the process with status {status}", last or str(cause)
    elif isinstance(cause, Broken) and cause.status is not None:
        by = f"by signal {-cause.status}" if cause.status < 0 else f"with status {cause.status}"
        ended = f"ended the process {by}"
    else:
        ended = f"no answer for {time_limit_s:g} s" if isinstance(cause, Late) else str(cause)
    return f"{ended}; the last that it said: {last[:200]!r}" if last else ended


def _lost(target: Target, ended: str) -> dict[str, Any]:
    """Return the result of a target that its process did not outlive."""
    check = LintCheck(check="process", outcome="alarm", says=ended, guards=GUARDS["process"])
    return LintResult(
        kind=target.kind, name=target.name, package=target.package, version=target.version, checks=[check]
    ).to_json()
