"""`evid rescore`: what other rewards would have paid a run's answers."""

import contextlib
import dataclasses
import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--reward", "rewards", multiple=True, metavar="NAME|{use=…}",
    help="A reward, by name or as its table in TOML; several are summed. None: the run's own.",
)  # fmt: skip
@click.option("--beside", is_flag=True, help="Ask the run's own rewards too.")
@click.option("--stage", default="", help="Of the rollouts; else the last that has any.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every group in it.")
def rescore(run: Path, rewards: tuple[str, ...], beside: bool, stage: str, as_json: bool) -> None:
    """Judge the rollouts of RUN by other rewards: whose advantages would have the other sign?

    Nothing is sampled and no model is loaded.
    """
    from evidcore_plugin_pages.jinja import text

    from evidcore_plugin_lab.rescoring import rescored

    with contextlib.redirect_stdout(sys.stderr):  # what a reward prints is no result
        found = rescored(run, rewards, stage=stage, beside=beside)
    if as_json:
        groups = [{**dataclasses.asdict(one), "flipped": one.flipped} for one in found.groups]
        told = {"stage": found.stage, "rewards": found.rewards, "unscored": found.unscored}
        click.echo(json.dumps({**told, "figures": found.figures(), "groups": groups}, indent=1))
        return
    figures = found.figures()
    click.echo(text("evidcore_plugin_lab", "rescore.txt", result=found, figures=figures))
