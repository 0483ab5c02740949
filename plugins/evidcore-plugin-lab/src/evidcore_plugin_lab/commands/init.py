"""`evid init`: a checked recipe for own scans, questions and vision-language model."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import click

_UNSHOWN = ("out", "force", "no_check", "as_json")


@click.command()
@click.option(
    "--data", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="A table of questions (.csv, .json, .jsonl), or a folder with questions.csv or cases.csv.",
)  # fmt: skip
@click.option(
    "--scans", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
    help="Where a table's files are named from; its own folder if left out.",
)  # fmt: skip
@click.option(
    "--model", required=True, metavar="ID|DIR", help="A vision-language model on the Hub, or its folder."
)
@click.option("--revision", default="", metavar="COMMIT", help="Of a model on the Hub. [the newest]")
@click.option(
    "--gpu", "gpu_gb", required=True, type=click.FloatRange(min=0, min_open=True), metavar="GB",
    help="Memory of the GPU, for instance 24, 48 or 80.",
)  # fmt: skip
@click.option(
    "--column", "columns", multiple=True, metavar="WHAT=NAME",
    help="Which column holds what, where its name does not tell: image=scan_file.",
)  # fmt: skip
@click.option("--intensity", type=click.Choice(["hu", "arbitrary"]), help="Of the scans. [looked at]")
@click.option("--name", default="", help="Of the recipe. [as the data]")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The recipe. [NAME.toml]")
@click.option("--force", is_flag=True, help="Write over a file.")
@click.option("--no-check", is_flag=True, help="Do not run `evid check` on it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def init(context: click.Context, /, as_json: bool, **given: Any) -> None:
    """Write a recipe for your own scans, questions and vision-language model, and check it."""
    from evidcore.api import DataError
    from evidcore.cache import write_atomically
    from evidcore.cli.check import check
    from evidcore_plugin_lab.init.own_data import own_data
    from evidcore_plugin_lab.init.own_model import own_model
    from evidcore_plugin_lab.init.written_recipe import fit, name_of, recipe_text

    name = given["name"] or name_of(given["data"])
    out: Path = given["out"] or Path(f"{name}.toml")
    if out.exists() and not given["force"]:
        raise DataError(f"{out}: is there already. --force writes over it, --out FILE writes another.")
    for item in given["columns"]:
        if "=" not in item:
            message = f"must be WHAT=NAME, as image=scan_file, got {item!r}."
            raise click.BadParameter(message, param_hint="--column")
    columns = dict(item.split("=", 1) for item in given["columns"])
    data = own_data(given["data"], scans=given["scans"], columns=columns, intensity=given["intensity"])
    model = own_model(given["model"], given["revision"])
    words = ["evid", "init"]  # the command as it was given, but for where it wrote
    for option in context.command.params:
        value = context.params[option.name or ""]
        for item in value if isinstance(value, tuple) else [value]:
            if option.name not in _UNSHOWN and item not in (None, ""):
                words += [option.opts[0], f"{item:g}" if isinstance(item, float) else str(item)]
    known: dict[str, Any] = {"gpu_gb": given["gpu_gb"], "command": shlex.join(words)}
    nowhere = Path(os.devnull)  # nothing lies in it, so paths stay absolute
    result = fit(
        lambda tried: recipe_text(name, data, model, tried, folder=nowhere, **known),
        gpu_gb=given["gpu_gb"], context_tokens=model.context_tokens,
    )  # fmt: skip
    text = recipe_text(name, data, model, result, folder=out.resolve().parent, **known)
    write_atomically(out, text.encode(), or_else="name another file with --out")
    if as_json:
        click.echo(json.dumps({"recipe": str(out), "placed": data.said, "slices": result.slices}, indent=1))
    else:
        for line in data.said:
            click.echo(line)
        click.echo(f"scans: {'CT in HU' if data.is_ct else 'values are no HU'} ({data.ground})")
        click.echo(f"written: {out}, with {result.slices} slices a scan")
    if not given["no_check"] and not as_json:
        context.invoke(check, recipe=out, overrides=(), resolved=False, as_json=False)
