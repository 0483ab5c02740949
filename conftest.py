"""Slow tests by turns; what a run says at its end, what was not checked and why; Ctrl-C as Python has it."""

from __future__ import annotations

import collections
import re
import signal
import subprocess
from pathlib import Path

import pytest

TURNS = 4  # commits after which each file's slow tests have run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer what CI has not the time to leave out."""
    parser.addoption(
        "--by-turns", action="store_true", help="slow tests of one file in four, by the commit's number"
    )


def pytest_configure() -> None:
    """Take Ctrl-C as in a foreground: a shell has what it starts in the background ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests whose turn it is not: whole files, since their tests share what took long."""
    if not config.getoption("--by-turns"):
        return
    counted = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    commit = int(subprocess.check_output(counted, text=True))
    slow = [item for item in items if item.get_closest_marker("slow")]
    files = sorted({item.path for item in slow})
    for item in slow:
        if files.index(item.path) % TURNS != commit % TURNS:
            item.add_marker(pytest.mark.skip(reason="slow, and not their file's turn"))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by their reason, so that nothing is skipped silently."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    counts = collections.Counter(re.sub(r"^Skipped: ", "", reason) for reason in reasons)
    listing = "; ".join(f"{count} tests, {reason}" for reason, count in counts.most_common())
    terminalreporter.write_line(f"not checked: {listing}" if listing else "everything was checked")
