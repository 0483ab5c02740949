"""Lint in a process of its own, so that a component that ends it or never answers is told, and no more.

This is no sandbox: the code runs with all rights of who calls it. Lint what you would also train with.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidcore.errors import EvidError
from evidcore_plugin_hub.lint.guards import GUARDS
from evidcore_plugin_hub.lint.result import LintCheck, LintResult

if TYPE_CHECKING:
    from evidcore_plugin_hub.lint.target import Target

TIME_LIMIT_S = 300.0  # of one target; loading of libraries counts
AFTERWARDS_S = 20.0  # in which the process must end once all is done
_PIECE_S = 0.1


def lint_all(targets: Sequence[Target], *, time_limit_s: float = TIME_LIMIT_S) -> Iterator[dict[str, Any]]:
    """Yield the result of each target, as `LintResult.to_json` gives it.

    Args:
        targets: in order. A new process goes on behind one that ended its process.
        time_limit_s: how long one may take.

    Raises:
        EvidError: if a target asks for something impossible, as a file that is not there.
    """
    rest = list(targets)
    while rest:
        done, ended = _some(rest, time_limit_s)
        for line in done:
            if "error" in line:
                raise EvidError(line["error"])
            yield line
        at = rest[len(done)] if len(done) < len(rest) else None
        rest = rest[len(done) + 1 :]
        if at is not None:
            yield _lost(at, ended)


def _some(targets: Sequence[Target], time_limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """Lint until the process ends; return what it finished, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "results.jsonl"
        place.touch()
        command = [sys.executable, "-P", "-m", "evidcore_plugin_hub.lint.worker", str(place)]
        errors = Path(folder) / "errors"
        with errors.open("wb") as said:
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=said, start_new_session=True
            )
        assert worker.stdin is not None
        worker.stdin.write(json.dumps([dataclasses.asdict(one) for one in targets]).encode())
        worker.stdin.close()
        ended = _wait(worker, place, len(targets), time_limit_s)
        done = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
        if ended == "left running" and len(done) == len(targets):
            left = "leaves a thread or process running that keeps the process from ending"
            known = LintResult.from_json(done[-1])
            checks = [*known.checks, LintCheck(check="process", outcome="alarm", says=left)]
            done[-1] = dataclasses.replace(known, checks=checks).to_json()
        last = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        if last and len(done) < len(targets):
            ended += f"; the last that it said: {last[0][:200]!r}"
        return done, ended


def _wait(worker: subprocess.Popen[bytes], place: Path, count: int, time_limit_s: float) -> str:
    """Wait while it goes on; end it where it is late. Return how it ended."""
    finished, waited_s = 0, 0.0
    while worker.poll() is None:
        time.sleep(_PIECE_S)
        waited_s += _PIECE_S
        now = place.read_bytes().count(b"\n")
        if now > finished:
            finished, waited_s = now, 0.0
        if waited_s > (time_limit_s if finished < count else AFTERWARDS_S):
            worker.kill()
            worker.wait()
            return "left running" if finished == count else f"no answer for {time_limit_s:g} s"
    status = worker.returncode
    return (
        f"ended the process by signal {-status}" if status < 0 else f"ended the process with status {status}"
    )


def _lost(target: Target, ended: str) -> dict[str, Any]:
    """Return the result of a target that its process did not outlive."""
    check = LintCheck(check="process", outcome="alarm", says=ended, guards=GUARDS["process"])
    return LintResult(
        kind=target.kind, name=target.name, package=target.package, version=target.version, checks=[check]
    ).to_json()
