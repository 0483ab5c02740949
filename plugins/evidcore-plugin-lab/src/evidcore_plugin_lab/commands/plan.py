"""`evid plan`: memory, time, downloads and licences before spending."""

import dataclasses
import json
from pathlib import Path

import click

from evidcore.cli.check import parameter_count, parameter_list


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

    from evidcore_plugin_pages.jinja import text

    from evidcore_plugin_lab.plan.plan import plan as make_plan

    result = make_plan(loaded, out, processes)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result), indent=1, default=str))
        return
    names = {
        "parameter_list": parameter_list,
        "parameter_count": parameter_count,
        "asdict": dataclasses.asdict,
    }
    click.echo(text("evidcore_plugin_lab", "plan.txt", plan=result, **names))
