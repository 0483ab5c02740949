"""`evid runs`: what ran, how far it came and what it scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from evidcore_plugin_audit.listing import Listed

_COLOURS = {"finished": "green", "running": "cyan", "interrupted": "yellow"}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--recipe", help="Only runs of this one, by its name.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="The newest so many; 0: all."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def runs(folder: Path, recipe: str | None, limit: int, as_json: bool) -> None:
    """List the runs under FOLDER, newest first, each with its state and its last headlines."""
    from evidcore.errors import RunError, did_you_mean
    from evidcore_plugin_audit.listing import listed

    found = listed(folder)
    if recipe is not None:
        known = sorted({one.recipe for one in found})
        found = [one for one in found if one.recipe == recipe]
        if not found:
            raise RunError(
                f"{folder}: no run of {recipe!r}.{did_you_mean(recipe, known)} There are: {known}."
            )
    shown = found[:limit] if limit else found
    if as_json:
        rows = [{**vars(one), "folder": str(one.folder)} for one in shown]
        click.echo(json.dumps({"runs": rows, "of": len(found)}, indent=1))
        return
    _print(shown)
    if len(shown) < len(found):
        click.echo(f"{len(found) - len(shown)} older ones: --limit 0", err=True)


def _print(shown: list[Listed]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from evidcore.cli.summary import number
    from evidcore_plugin_audit.wide_table import print_table

    table = Table("run", "seed", "state", "at (UTC)", "last evaluation", box=None, pad_edge=False)
    for one in shown:
        at = f" in {one.stage}" if one.stage and one.state != "finished" else ""
        at += f" at step {one.step}" if at and one.step else ""
        colour = _COLOURS.get(one.state, "red")
        table.add_row(
            escape(str(one.folder)),
            "" if one.seed is None else str(one.seed),
            f"[{colour}]{one.state}[/{colour}]{escape(at)}",
            one.time[:16].replace("T", " "),
            escape(
                "; ".join(
                    f"{row['name']} {row['metric']} {number(row['metric'], row['value'], row['unit'])}"
                    for row in one.headlines
                )
            ),
        )
    print_table(table)
