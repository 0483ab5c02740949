"""`evid plan`: memory, time, downloads and licences before spending."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evidcore.cli.check import parameter_count, parameter_list

if TYPE_CHECKING:
    from evidcore_plugin_lab.plan.plan import KeptFeatures, PlannedStage


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), help="Where earlier runs lie.")
@click.option(
    "--processes", type=click.IntRange(min=1), default=1,
    help="How many run it together, a device each; memory is that of one.  [default: 1]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(recipe: Path, overrides: tuple[str, ...], out: Path, processes: int, as_json: bool) -> None:
    """Say what a recipe needs: parameters, memory, downloads, licences, and how long it took before."""
    from evidcore.recipe import load

    loaded = load(recipe, overrides)  # a mistake is told before all else is imported

    from evidcore_plugin_lab.plan.plan import plan as make_plan

    result = make_plan(loaded, out, processes)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result), indent=1, default=str))
        return
    click.echo(f"parameters: {parameter_list(result.parameters)}")
    for stage in result.stages:
        trains = f"; trains {parameter_count(stage.trained)}" if stage.trained != 0 else ""
        earlier = f"took {stage.earlier_s:.0f} s here before" if stage.earlier_s else "no earlier time"
        click.echo(f"{stage.stage:20} {stage.work}{trains}; {earlier}")
        for line in filter(None, (stage.power, *_memory(stage))):
            click.echo(f"{'':20} {line}")
    if result.features is not None:
        click.echo(f"features: {_features(result.features)}")
    for package, table in result.packages.items():
        use = table.get("intended_use", "not stated")
        click.echo(f"package: {package} {table['version']}, intended use: {use}")
    click.echo("downloads: " + ("; ".join(result.downloads) or "none"))
    click.echo("leaves this machine: " + ("; ".join(result.sends) or "nothing"))
    if result.network_blocked is not None:
        click.echo(f"isolated components: network {'' if result.network_blocked else 'not '}blocked")


def _features(kept: KeptFeatures) -> str:
    """Say whether each volume is encoded once."""
    each = f"up to {kept.volume_bytes / 1e6:.3g} MB and at least {kept.volume_s:.2g} CPU s a volume"
    if kept.volumes is None:
        return f"{each}; [features] has room for {kept.room} of them, and the data are not here to be counted"
    size = f"{each}, {kept.volumes * kept.volume_bytes / 1e9:.3g} GB for {kept.volumes}"
    if kept.volumes <= kept.room:
        return f"{size}; each is encoded once"
    return (
        f"{size}; [features] has room for {kept.in_memory} in memory and {kept.on_disk} on disk, and the "
        "others are encoded whenever they are shown. Raise EVID_CACHE_GB, or take precision = 'float16'"
    )


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
