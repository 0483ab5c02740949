"""`evid check` and `evid plan`: everything before spending time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from evidcore.cli import main

_recipe = click.argument("recipe", type=click.Path(path_type=Path))
_set = click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@main.command()
@_recipe
@_set
@click.option(
    "--resolved", is_flag=True, help="Only print the recipe with every default and where it came from."
)
@_json
def check(recipe: Path, overrides: tuple[str, ...], resolved: bool, as_json: bool) -> None:
    """Do everything but train: read the recipe, build its parts, read first cases, count tokens."""
    from evidcore.recipe import load, to_toml

    loaded = load(recipe, overrides)
    if resolved:
        text = to_toml(loaded)
        click.echo(json.dumps({"resolved": text}) if as_json else text, nl=as_json)
        return
    from evidcore.run.rehearsal import rehearse

    rows = rehearse(loaded)
    if as_json:
        listing = [dataclasses.asdict(row) for row in rows]
        click.echo(json.dumps({"recipe": str(recipe), "data": listing}, indent=1))
        return
    for row in rows:
        what = f"{row.dataset} {row.split}" + (f", {row.task}" if row.task else "")
        tokens = f"prompt {row.prompt_tokens} tokens ({row.image_tokens} visual), answer {row.answer_tokens}"
        click.echo(
            f"{row.stage:20} {what:28} {row.cases} cases, {row.patients} patients"
            + (f"; {tokens}" if row.task else "")
        )
    click.echo(f"{recipe}: nothing wrong found")


@main.command()
@_recipe
@_set
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), help="Where earlier runs lie.")
@_json
def plan(recipe: Path, overrides: tuple[str, ...], out: Path, as_json: bool) -> None:
    """Say what a recipe needs: parameters, memory, downloads, licences, and the time it took before."""
    from evidcore.recipe import load
    from evidcore.run.plan import plan as make_plan

    found = make_plan(load(recipe, overrides), out)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1, default=str))
        return
    sizes = ", ".join(f"{part} {_count(size)}" for part, size in found.parameters.items())
    click.echo(f"parameters: {sizes}")
    for stage in found.stages:
        memory = "memory not known" if stage.memory_gb is None else f"{stage.memory_gb:.2f} GB + activations"
        earlier = f"took {stage.earlier_s:.0f} s here before" if stage.earlier_s else "no earlier time"
        trains = f"trains {_count(stage.trained)}, " if stage.trained != 0 else ""
        click.echo(f"{stage.stage:20} {stage.work}; {trains}{memory}; {earlier}")
    for package, table in found.packages.items():
        use = table.get("intended_use", "not stated")
        click.echo(f"package: {package} {table['version']}, intended use: {use}")
    click.echo("downloads: " + ("; ".join(found.downloads) or "none"))
    click.echo("leaves this machine: " + ("; ".join(found.sends) or "nothing"))


def _count(size: int | None) -> str:
    """Return a number of parameters."""
    if size is None:
        return "not known before the download"
    return f"{size / 1e6:.2f} M" if size >= 1e5 else str(size)
