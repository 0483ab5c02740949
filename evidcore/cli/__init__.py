"""The `evid` command. Each command imports what it needs, so that help and listings import no torch."""

from __future__ import annotations

import json
from typing import Any

import click

from evidcore import __version__
from evidcore.errors import ContractError, EvidError, PluginError


class _Group(click.Group):
    """Turns what a person can fix into a message and exit status 2; anything else is our bug."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except EvidError as error:
            if as_json:
                click.echo(json.dumps({"error": {"kind": type(error).__name__, "message": str(error)}}))
            click.echo(click.style("error: ", fg="red") + str(error), err=True)
            if isinstance(error, PluginError | ContractError) and error.__cause__ is not None:
                import traceback

                click.echo("".join(traceback.format_exception(error.__cause__)), err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="evidcore")
def main() -> None:
    """Train 3D medical vision-language models whose words are tied to visible evidence, and prove it."""


from evidcore.cli import (  # noqa: E402  # they add commands to main
    ablating,
    auditing,
    components,
    data,
    data_prepare,
    data_profile,
    preparing,
    results,
    running,
    using,
)

__all__ = [
    "ablating",
    "auditing",
    "components",
    "data",
    "data_prepare",
    "data_profile",
    "main",
    "preparing",
    "results",
    "running",
    "using",
]
