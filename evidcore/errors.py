"""Errors a person can act on: where, what is wrong, what would be right, what to type next."""

import difflib
import errno
import signal
from collections.abc import Iterable


class EvidError(Exception):
    """A mistake someone can fix. The command line prints it without a traceback and exits 2.

    Args:
        message: what is wrong, without a word that may be of a patient: it is kept in STATUS.
        quoting: the rest of the message, which may quote texts or what others' code said.
    """

    def __init__(self, message: str = "", quoting: str = "") -> None:
        super().__init__(message + quoting)
        self.safe = message


class Stopped(KeyboardInterrupt):
    """This process was told to stop by a signal. A component that raises KeyboardInterrupt raises no such."""

    def __init__(self, number: int) -> None:
        super().__init__(f"told to stop by {signal.Signals(number).name}")
        self.exit_status = 128 + number


class RecipeError(EvidError):
    """The recipe asks for something impossible. Names the file, the line and the key."""


class PluginError(EvidError):
    """A component is missing, ambiguous or broken. Names the package and its version."""


class ContractError(EvidError):
    """A component broke its contract while running. Names the package, the call and the value."""


class DataError(EvidError):
    """A file or a case cannot be used. Names the file, the case and the value."""


class NotDownloadedError(DataError):
    """Files have not been fetched yet. Says where they come from; what needs none of them can go on."""


class EmptySplitError(DataError):
    """A split of a data set lists no case."""


class RunError(EvidError):
    """A run cannot start, continue or be trusted. Names the run folder and what to do."""


def printable(text: str, keep: str = "\n\t\xa0\u202f\u3000") -> str:
    """Return a text with escapes in place of characters that move a terminal's cursor or cannot be seen."""
    return "".join(
        ch if ch.isprintable() or ch in keep else ch.encode("unicode_escape").decode() for ch in text
    )


def is_disk_full(cause: BaseException) -> bool:
    """Tell whether an exception says that a disk, or a quota on it, is used up.

    safetensors raises a class of its own; torch only finds that its file is shorter than what it wrote.
    """
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    text = str(cause)
    is_cut_short = "inline_container" in text and "unexpected pos" in text
    return "No space left on device" in text or is_cut_short


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"`, or an empty string when nothing is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
