"""What a test run says at its end, what was not checked and why; and Ctrl-C as Python has it."""

from __future__ import annotations

import collections
import re
import signal

import pytest


def pytest_configure() -> None:
    """Take Ctrl-C as in a foreground: a shell has what it starts in the background ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by their reason, so that nothing is skipped silently."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    counts = collections.Counter(re.sub(r"^Skipped: ", "", reason) for reason in reasons)
    listing = "; ".join(f"{count} tests, {reason}" for reason, count in counts.most_common())
    terminalreporter.write_line(f"not checked: {listing}" if listing else "everything was checked")
