"""The `evid` command. Packages add commands, and each command is imported when it is called.

A command is an entry point of the group `evidcore.command`: `plan = "package.module:command"`, or
`audit.segmenter = …` for `evid audit segmenter`. Its object is a click command. Help texts of the core's own
commands are shown; another package's command shows its package, since listing runs no code of packages.
"""

import contextlib
import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click

from evidcore import __version__
from evidcore.errors import ContractError, EvidError, PluginError, Stopped, printable
from evidcore.registry import LOCK, Offer, find, offers

CORE = "evidcore"
_PLACES = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}  # of files that are written
_PLACES |= {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}


class CommandGroup(click.Group):
    """A group whose commands are those that installed packages offer under its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, sorted."""
        return sorted(self._offers())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it.

        Raises:
            PluginError: if there is none of that name; says which package has it, or the nearest name.
        """
        offer = find("command", self._path(cmd_name))
        command = offer.load()
        if not isinstance(command, click.Command):
            raise PluginError(f"{offer}: {offer.target} must be a click command, got {command!r}.")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands: a line of help, or the package that a command comes from."""
        rows = []
        for name, offer in sorted(self._offers().items()):
            command = self.get_command(ctx, name) if offer.package == CORE else None
            about = f"from {offer.package}" if command is None else command.get_short_help_str(limit=90)
            rows.append((name, about))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _offers(self) -> dict[str, Offer]:
        """Return the offers of the commands right below this group, by their last name."""
        start = self._path("")
        below = {row.name.removeprefix(start): row for row in offers("command") if row.name.startswith(start)}
        return {name: row for name, row in below.items() if "." not in name}

    def _path(self, name: str) -> str:
        """Return a command's name in the entry points; the outermost group has no name there."""
        return name if isinstance(self, _Evid) else f"{self.name}.{name}"


class _Printed:  # names and texts of tables, models and components are printed too: they are strangers'
    """Passes text on with escapes for what a terminal obeys, but a step to a line's start at first.

    `aside` is what other text goes to where a line that is an object or a list of JSON stands alone.
    """

    def __init__(self, stream: TextIO, aside: TextIO | None = None) -> None:
        self.unescaped, self._aside = stream, aside

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)

    def write(self, text: str) -> int:
        """Write to one or the other: `click.echo` writes a line with its end, `print` does not."""
        is_bar = text.startswith("\r")  # of a progress bar
        try:
            is_result = text.startswith(("{", "[")) and text.endswith("\n") and json.loads(text) is not None
        except (ValueError, RecursionError):
            is_result = False
        stream = self.unescaped if is_result or self._aside is None else self._aside
        return stream.write("\r" * is_bar + printable(text[is_bar:]))


def printer(*, to_stderr: bool = False, **options: Any) -> Any:
    """Return a console of rich: its own codes reach a terminal, and those in its texts are escaped."""
    from rich.console import Console
    from rich.segment import Segment

    class Printer(Console):
        def render(self, *given: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*given):
                yield Segment(text if control else printable(text), style, control)

    stream: Any = sys.stderr if to_stderr else sys.stdout
    usual = {"highlight": False, "markup": False, "soft_wrap": True}
    return Printer(file=getattr(stream, "unescaped", stream), **usual | options)


@contextlib.contextmanager
def live(block: Any) -> Iterator[Any]:
    """Show a block of rich, above which others print: it takes codes in what they print for its own."""
    out, err = contextlib.redirect_stdout, contextlib.redirect_stderr
    with block, out(_Printed(sys.stdout)), err(_Printed(sys.stderr)):
        yield block


class _Evid(CommandGroup):
    """Turns what a person can fix into a message and exit status 2; anything else is our bug."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command; where a locale (LC_ALL=C) reads file names otherwise, begin anew in UTF-8."""
        if sys.getfilesystemencoding() != "utf-8" and not args and not extra:
            os.execv(sys.executable, [sys.executable, "-P", "-X", "utf8", *sys.orig_argv[1:]])
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")  # PYTHONIOENCODING may be ASCII
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; under --json what components print goes to standard error."""
        as_json = "--json" in ctx.args
        os.environ["PYTHONSAFEPATH"] = "1"  # no process started from here runs a file of this folder
        out: Any = _Printed(sys.stdout, sys.stderr if as_json else None)
        err: Any = _Printed(sys.stderr)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                if os.path.exists(LOCK):  # else nothing is imported for it
                    from evidcore.registry import watch

                    watch("pins", f"{LOCK}: comparing what it pins").keep(Path(LOCK).resolve())
                return super().invoke(ctx)
            except (EvidError, OSError) as error:
                message = str(error)
                if isinstance(error, OSError):
                    if error.errno not in _PLACES:
                        raise
                    message += ". Give a place that can be written and has room."
                if as_json:
                    click.echo(json.dumps({"error": {"kind": type(error).__name__, "message": message}}))
                click.echo(click.style("error: ", fg="red") + printable(message), err.unescaped)
                if isinstance(error, PluginError | ContractError) and error.__cause__ is not None:
                    traceback.print_exception(error.__cause__)
                ctx.exit(2)
            except KeyboardInterrupt as stop:
                click.echo("interrupted", err=True)
                ctx.exit(stop.exit_status if isinstance(stop, Stopped) else 130)


main = _Evid(
    "evid",
    help="Train 3D medical vision-language models whose words are tied to visible evidence, and prove it.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
main = click.version_option(__version__, prog_name="evidcore")(main)
