"""`evid run`: train, measure, audit, and write the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key: stage.grpo.steps=3"
)
@click.option("--fresh", is_flag=True, help="Run every stage anew, even where an earlier run has its result.")
@click.option(
    "--with-controls", is_flag=True, help="Also train on a random reward, on format alone, on wrong volumes."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@_json
def run(
    recipe: Path, overrides: tuple[str, ...], fresh: bool, with_controls: bool, out: Path, as_json: bool
) -> None:
    """Run a recipe: train, measure, audit, and write the evidence page."""
    from evidcore.recipe import load
    from evidcore.run import start
    from evidcore.run.assembly import Assembly

    assembly = Assembly(load(recipe, overrides))
    folder = start(assembly.recipe, out, fresh=fresh, with_controls=with_controls, assembly=assembly)
    go(folder, as_json, accept_changes=False, assembly=assembly)


def go(folder: Any, as_json: bool, *, accept_changes: bool, assembly: Any = None) -> None:
    """Run a run folder to its end, show its progress, write its page and print its results."""
    from evidcore.cli.progress import Progress
    from evidcore.cli.summary import summary
    from evidcore.page import write_page
    from evidcore.run import processes
    from evidcore.run import run as run_folder

    if not processes().is_first:
        run_folder(folder, accept_changes=accept_changes, assembly=assembly)
        return
    click.echo(f"run: {folder.path}", err=as_json)
    try:
        with Progress(folder.path, to_stderr=as_json) as progress:
            run_folder(folder, [progress], accept_changes=accept_changes, assembly=assembly)
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted. Last checkpoint: {folder.last_checkpoint() or 'none yet'}", err=True)
        click.echo(f"Go on with: evid resume {folder.path}", err=True)
        click.get_current_context().exit(130)
    page = write_page(folder.path)
    found = summary(folder)
    if as_json:
        click.echo(json.dumps({"run": str(folder.path), "page": str(page), **found}, indent=1))
        return
    for line in found["lines"]:
        click.echo(line)
    click.echo(f"\npage:    {page}\nfolder:  {folder.path}")
