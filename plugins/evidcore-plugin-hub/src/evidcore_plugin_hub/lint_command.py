"""`evid lint`: does a component keep what it promises, and is a reward paid for the right thing?"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click

_COLOURS = {"fine": "green", "note": "yellow", "alarm": "red", "not applicable": "dim"}


@click.command()
@click.argument("named", metavar="[NAME|FOLDER]...", nargs=-1)
@click.option("--kind", default="", help="Of the components that are named; else any.")
@click.option(
    "--trl", "functions", multiple=True, metavar="FILE.PY:FUNCTION",
    help="Lint a function with the signature of TRL's rewards.",
)  # fmt: skip
@click.option("--chat", is_flag=True, help="Give functions of --trl lists of messages, not texts.")
@click.option(
    "--recipe", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Ask over the data of its grpo stage; by itself: lint its rewards as composed.",
)  # fmt: skip
@click.option("--all", "show_all", is_flag=True, help="Also print checks that are fine.")
@click.option(
    "--time-limit", "time_limit_s", type=click.FloatRange(min=1), default=300.0, show_default=True,
    help="Seconds for one component.",
)  # fmt: skip
@click.option(
    "--fail-under", type=click.Choice(["alarm", "note"]), default="alarm", show_default=True,
    help="Exit with 1 from this outcome on.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lint(
    named: tuple[str, ...],
    kind: str,
    functions: tuple[str, ...],
    chat: bool,
    recipe: Path | None,
    show_all: bool,
    time_limit_s: float,
    fail_under: str,
    as_json: bool,
) -> None:
    """Try components as published failures of others would have been found. Needs no model and no GPU.

    NAME is an installed component or package, FOLDER holds a pyproject.toml; without either everything
    installed is tried. The code runs in a process of its own, which is no sandbox.
    """
    from evidcore_plugin_hub.lint.supervised import lint_all
    from evidcore_plugin_hub.lint.target import targets

    asked = targets(
        named, kind=kind, functions=functions, is_chat=chat, recipe="" if recipe is None else str(recipe)
    )
    results = []
    for result in lint_all(asked, time_limit_s=time_limit_s):
        results.append(result)
        if not as_json:
            _print(result, show_all=show_all)
    if as_json:
        click.echo(json.dumps({"results": results}, indent=1))
    else:
        count = {one: sum(result["outcome"] == one for result in results) for one in ("alarm", "note")}
        click.echo(f"{len(results)} linted: {count['alarm']} with alarms, {count['note']} with notes")
    fatal = {"alarm"} if fail_under == "alarm" else {"alarm", "note"}
    if any(result["outcome"] in fatal for result in results):
        click.get_current_context().exit(1)


def _print(result: dict[str, Any], *, show_all: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    colour = _COLOURS[result["outcome"]]
    package = f" from {result['package']} {result['version']}".rstrip() if result["package"] else ""
    title = f"{result['kind']} {result['name']}{package}: "
    console.print(Text(title) + Text(result["outcome"], style=colour))
    table = Table(show_header=False, box=None, pad_edge=False)
    for check in result["checks"]:
        if show_all or check["outcome"] in ("alarm", "note"):
            name = f"{check['task']}, {check['check']}" if check["task"] else check["check"]
            said = Text(check["says"])
            if check["outcome"] == "alarm" and check["guards"]:
                said += Text(f"\n(guards against: {check['guards']})", style="dim")
            table.add_row(Text(f"  {name}"), Text(check["outcome"], style=_COLOURS[check["outcome"]]), said)
    if table.row_count:
        with contextlib.suppress(BrokenPipeError):
            console.print(table)
