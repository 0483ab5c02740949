"""`evid runs`: what ran, how far it came and what it scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evidcore.cli import printer
from evidcore_plugin_audit.commands.compare import WIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLOURS = {"finished": "green", "running": "cyan", "interrupted": "yellow"}
_HEADLINE = ("name", "metric", "value", "low", "high", "unit")


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

    found = {path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/lock.toml")}
    if not found:
        raise RunError(f"{folder}: holds no run. Give a folder into which `evid run` wrote, as runs.")
    rows = sorted(map(_row, found), key=lambda row: (row["time"], Path(row["folder"]).name), reverse=True)
    if recipe is not None:
        known = sorted({row["recipe"] for row in rows})
        rows = [row for row in rows if row["recipe"] == recipe]
        if not rows:
            raise RunError(f"{folder}: no run of {recipe!r}.{did_you_mean(recipe, known)} Known: {known}.")
    newest = rows[:limit] if limit else rows
    if as_json:
        click.echo(json.dumps({"runs": newest, "of": len(rows)}, indent=1))
        return
    _print(newest)
    if len(newest) < len(rows):
        click.echo(f"{len(rows) - len(newest)} older ones: --limit 0", err=True)


def _row(folder: Path) -> dict[str, Any]:
    """Return what the list says of a run: where it is, and its last evaluation's headline for each task."""
    from evidcore_plugin_pages.record import read_head

    from evidcore.errors import RunError

    row: dict[str, Any] = {
        "folder": str(folder), "recipe": folder.parent.name, "seed": None, "state": "unreadable", "stage": "",
        "step": 0, "time": "", "headlines": [], "message": "",
    }  # fmt: skip
    try:
        head = read_head(folder)
    except RunError as cause:  # another run's fault is no reason to show none
        return {**row, "message": cause.args[0]}
    status = {key: head.status.get(key, row[key]) for key in ("state", "stage", "step", "time", "message")}
    status |= {"state": head.status.get("state", "unknown"), "seed": head.recipe.get("seed")}
    measured = [
        headlines
        for result in head.results
        if result.get("kind") == "evaluate"
        and (headlines := [line for line in result.get("rows") or () if line.get("headline")])
    ]
    first: dict[str, Any] = {}  # headline of each task
    for line in measured[-1] if measured else ():
        first.setdefault(line["name"], {key: line.get(key) for key in _HEADLINE})
    return {**row, **status, "recipe": head.name, "headlines": [*first.values()]}


def _print(rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from evidcore.cli.summary import number
    from evidcore.errors import printable

    def cell(text: object, style: str = "") -> Text:
        return Text(printable(str(text), keep=""), style)

    table = Table("run", "seed", "state", "at (UTC)", "last evaluation", box=None, pad_edge=False)
    for row in rows:
        at = f" in {row['stage']}" if row["stage"] and row["state"] != "finished" else ""
        at += f" at step {row['step']}" if at and row["step"] else ""
        headlines = (
            f"{line['name']} {line['metric']} {number(line['metric'], line['value'], line['unit'])}"
            for line in row["headlines"]
        )
        table.add_row(
            cell(row["folder"]), "" if row["seed"] is None else cell(row["seed"]),
            cell(row["state"], _COLOURS.get(row["state"], "red")) + cell(at),
            cell(row["time"][:16].replace("T", " ")), cell("; ".join(headlines)),
        )  # fmt: skip
    printer(soft_wrap=False, width=WIDTH).print(table)
