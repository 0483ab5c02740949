"""`evid check` and `evid plan`: everything before spending time."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evidcore.cli import main

if TYPE_CHECKING:
    from evidcore.run.plan import PlannedStage
    from evidcore.run.throughput import Throughput

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

    found = rehearse(loaded)
    if as_json:
        click.echo(json.dumps({"recipe": str(recipe), **dataclasses.asdict(found)}, indent=1))
        return
    grid = " x ".join(map(str, found.patch_grid_zyx))
    patches = math.prod(found.patch_grid_zyx)
    click.echo(f"a volume: {grid} = {patches} patches -> {found.visual_tokens} visual tokens")
    if found.parameters is not None:
        click.echo(f"parameters: {_parameters(found.parameters)}")
    for weights in found.stages:
        click.echo(
            f"{weights.stage:20} trains {_count(weights.trained)}, leaves {_count(weights.frozen)} frozen"
        )
    for row in found.data:
        what = f"{row.dataset} {row.split}" + (f", {row.task}" if row.task else "")
        about = "about " if row.are_estimated else ""
        tokens = (
            f"prompt {about}{row.prompt_tokens} tokens ({row.image_tokens} visual), "
            f"answer {about}{row.answer_tokens}"
        )
        click.echo(
            f"{row.stage:20} {what:28} {row.cases} cases, {row.patients} patients"
            + (f"; {tokens}" if row.task else "")
        )
    for text in found.unchecked:
        click.echo(click.style("not checked: ", fg="yellow") + text)
    rest = ", but not all could be checked" if found.unchecked else ""
    click.echo(f"{recipe}: nothing wrong found{rest}")


@main.command()
@_recipe
@_set
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), help="Where earlier runs lie.")
@click.option(
    "--throughput",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Times measured where it would run, as benchmarks/gpu.sh writes them.",
)
@_json
def plan(recipe: Path, overrides: tuple[str, ...], out: Path, throughput: Path | None, as_json: bool) -> None:
    """Say what a recipe needs: parameters, memory, downloads, licences, and how long it takes."""
    from evidcore.recipe import load
    from evidcore.run.plan import plan as make_plan
    from evidcore.run.throughput import Throughput

    measured = None if throughput is None else Throughput.read(throughput)
    found = make_plan(load(recipe, overrides), out, measured)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1, default=str))
        return
    click.echo(f"parameters: {_parameters(found.parameters)}")
    for stage in found.stages:
        trains = f"; trains {_count(stage.trained)}" if stage.trained != 0 else ""
        click.echo(f"{stage.stage:20} {stage.work}{trains}; {_time(stage, measured)}")
        for line in _memory(stage):
            click.echo(f"{'':20} {line}")
    for package, table in found.packages.items():
        use = table.get("intended_use", "not stated")
        click.echo(f"package: {package} {table['version']}, intended use: {use}")
    click.echo("downloads: " + ("; ".join(found.downloads) or "none"))
    click.echo("leaves this machine: " + ("; ".join(found.sends) or "nothing"))


def _time(stage: PlannedStage, measured: Throughput | None) -> str:
    """Say how long a stage takes, as far as anything tells."""
    if stage.earlier_s:
        return f"took {stage.earlier_s:.0f} s here before"
    if stage.expected_s is not None and measured is not None:
        return f"about {stage.expected_s / 3600:.1f} h on {measured.device}, as measured there"
    return "no earlier time"


def _memory(stage: PlannedStage) -> Iterator[str]:
    """Yield lines about a stage's memory: for each precision the peak and what it is made of."""
    if stage.memory is None:
        if stage.state_bytes is None:
            yield "memory not known before the download"
        else:
            yield f"{stage.state_bytes / 1e9:.2f} GB of weights, gradients and optimizer, and its activations"
        return
    if stage.lengths is not None:
        rows = stage.lengths
        yield f"rows of {rows.prompt_tokens} + {rows.answer_tokens} tokens ({_GROUNDS[rows.ground]})"
    for precision, memory in stage.memory.items():
        parts = {name: size for name, size in dataclasses.asdict(memory).items() if name != "peak" and size}
        listing = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
        yield f"{memory.peak / 1e9:.2f} GB at the peak in {precision}: {listing}"


_GROUNDS = {
    "counted": "counted in the first prompts",
    "estimated": "estimated from the letters of the first prompts: the tokenizer is not here",
    "assumed": "assumed: the data are not here",
}


def _parameters(by_part: Mapping[str, int | None]) -> str:
    return ", ".join(f"{part} {_count(size)}" for part, size in by_part.items())


def _count(size: int | None) -> str:
    """Return a number of parameters."""
    if size is None:
        return "not known before the download"
    return f"{size / 1e6:.2f} M" if size >= 1e5 else str(size)
