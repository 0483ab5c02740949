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

    result = listed(folder)
    if recipe is not None:
        known = sorted({item.recipe for item in result})
        result = [item for item in result if item.recipe == recipe]
        if not result:
            raise RunError(
                f"{folder}: no run of {recipe!r}.{did_you_mean(recipe, known)} There are: {known}."
            )
    shown = result[:limit] if limit else result
    if as_json:
        rows = [{**vars(item), "folder": str(item.folder)} for item in shown]
        click.echo(json.dumps({"runs": rows, "of": len(result)}, indent=1))
        return
    _print(shown)
    if len(shown) < len(result):
        click.echo(f"{len(result) - len(shown)} older ones: --limit 0", err=True)


def _print(shown: list[Listed]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from evidcore.cli.summary import number
    from evidcore_plugin_audit.wide_table import print_table

    table = Table("run", "seed", "state", "at (UTC)", "last evaluation", box=None, pad_edge=False)
    for item in shown:
        at = f" in {item.stage}" if item.stage and item.state != "finished" else ""
        at += f" at step {item.step}" if at and item.step else ""
        colour = _COLOURS.get(item.state, "red")
        table.add_row(
            escape(str(item.folder)),
            "" if item.seed is None else str(item.seed),
            f"[{colour}]{item.state}[/{colour}]{escape(at)}",
            item.time[:16].replace("T", " "),
            escape(
                "; ".join(
                    f"{row['name']} {row['metric']} {number(row['metric'], row['value'], row['unit'])}"
                    for row in item.headlines
                )
            ),
        )
    print_table(table)
