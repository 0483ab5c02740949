"""`evid check`: do everything but train."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path

import click

from evidcore.cli import printer


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key.")
@click.option(
    "--resolved", is_flag=True, help="Only print the recipe with every default and where it came from."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(recipe: Path, overrides: tuple[str, ...], resolved: bool, as_json: bool) -> None:
    """Do everything but train: read the recipe, build its parts, read first cases, look at every row."""
    if not as_json:
        click.echo(f"{recipe}: reading it and importing its components", err=True)  # which takes seconds
    from evidcore.recipe import load, to_toml

    loaded = load(recipe, overrides)
    if resolved:
        text = to_toml(loaded)
        click.echo(json.dumps({"resolved": text}) if as_json else text, nl=as_json)
        return
    from evidcore.runs.dry_run import dry_run

    result = dry_run(loaded)
    if as_json:
        click.echo(json.dumps({"recipe": str(recipe), **dataclasses.asdict(result)}, indent=1))
        return
    grid = " x ".join(map(str, result.patch_grid_zyx))
    patches = math.prod(result.patch_grid_zyx)
    click.echo(f"a volume: {grid} = {patches} patches -> {result.visual_tokens} visual tokens")
    if result.parameters is not None:
        click.echo(f"parameters: {parameter_list(result.parameters)}")
    for weights in result.stages:
        trained, frozen = parameter_count(weights.trained), parameter_count(weights.frozen)
        click.echo(f"{weights.stage:20} trains {trained}, leaves {frozen} frozen")
    for row in result.data:
        what = f"{row.dataset} {row.split}" + (f", {row.task}" if row.task else "")
        about = "about " if row.are_estimated else ""
        prompt = f"prompt {about}{row.prompt_tokens} tokens ({row.image_tokens} visual)"
        tokens = f"; {prompt}, answer {about}{row.answer_tokens}" if row.task else ""
        if row.task and row.prompt_tokens is None:
            tokens = "; tokens not known before the download"
        click.echo(f"{row.stage:20} {what:28} {row.cases} cases, {row.patients} patients{tokens}")
    for text in result.unchecked:
        printer().print(f"not checked: {text}", style="yellow")
    rest = ", but not all could be checked" if result.unchecked else ""
    click.echo(f"{recipe}: nothing wrong found{rest}")


def parameter_list(by_part: Mapping[str, int | None]) -> str:
    """Return the parts of a model with their parameters."""
    return ", ".join(f"{part} {parameter_count(size)}" for part, size in by_part.items())


def parameter_count(size: int | None) -> str:
    """Return a number of parameters in words."""
    if size is None:
        return "not known before the download"
    return f"{size / 1e6:.2f} M" if size >= 1e5 else str(size)
