"""Slow and nightly tests by turns, a frozen heap, Ctrl-C as Python has it, a list of what was skipped."""

import collections
import gc
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

LATER = ("slow", "nightly")
TURNS = 8  # commits after which those of each file have run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer what CI has not the time to leave out."""
    parser.addoption(
        "--by-turns",
        action="store_true",
        help="slow and nightly tests of one file in eight, by the commit's number",
    )


def pytest_configure() -> None:
    """Take Ctrl-C as in a foreground: a shell has what it starts in the background ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out later tests whose turn it is not: whole files, since their tests share what took long."""
    if not config.getoption("--by-turns"):
        return
    counted = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    commit = int(subprocess.check_output(counted, text=True))
    later = [item for item in items if any(item.get_closest_marker(name) for name in LATER)]
    files = sorted({item.path for item in later})
    for item in later:
        if files.index(item.path) % TURNS != commit % TURNS:
            item.add_marker(pytest.mark.skip(reason="slow or nightly, and not their file's turn"))


def pytest_runtest_teardown() -> None:
    """Let programs of the next test import what lies beside them, which a command has forbidden its own."""
    os.environ.pop("PYTHONSAFEPATH", None)


def pytest_collection_finish() -> None:
    """Exempt what imports and collection made from garbage collection."""
    gc.collect()  # accelerate collects at each trainer's start: over that heap it is a fifth of the time
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Give it back, so that extensions which count what is left at the end find nothing of ours."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by their reason, so that nothing is skipped silently."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    counts = collections.Counter(re.sub(r"^Skipped: ", "", reason) for reason in reasons)
    listing = "; ".join(f"{count} tests, {reason}" for reason, count in counts.most_common())
    terminalreporter.write_line(f"not checked: {listing}" if listing else "everything was checked")
