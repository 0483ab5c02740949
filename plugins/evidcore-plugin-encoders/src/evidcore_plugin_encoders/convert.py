"""`evid convert`: published weights as a recipe names them."""

import json
from pathlib import Path

import click

from evidcore.cli import CommandGroup

convert = CommandGroup("convert", help="Turn published weights into those of a component.")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--as", "name", required=True, metavar="NAME", help="Its layout: brgsa, m3d-clip or ctvit.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def encoder(file: Path, name: str, out: Path, as_json: bool) -> None:
    """Write the weights of FILE, a published 3D encoder, into a folder, and print a recipe's table."""
    from evidcore.recipe.resolve import toml_tables
    from evidcore_plugin_encoders.checkpoint_layouts import convert_encoder

    table = {"model": {"encoder": convert_encoder(file, name, out)}}
    click.echo(json.dumps(table) if as_json else toml_tables(table), nl=as_json)


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inputs(recipe: Path, as_json: bool) -> None:
    """Write what encoder `stored` of RECIPE has no features of, for the program that computes them."""
    from evidcore.recipe import load
    from evidcore_plugin_encoders.stored import write_inputs

    result = write_inputs(load(recipe))
    text = "{folder}: {lacking} of {inputs} inputs have no features; each is HASH.npy in its folder inputs"
    click.echo(json.dumps(result) if as_json else text.format(**result))
