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
    from evidcore_plugin_lab.rescoring import rescored

    with contextlib.redirect_stdout(sys.stderr):  # what a reward prints is no result
        found = rescored(run, rewards, stage=stage, beside=beside)
    if as_json:
        groups = [{**dataclasses.asdict(one), "flipped": one.flipped} for one in found.groups]
        told = {"stage": found.stage, "rewards": found.rewards, "unscored": found.unscored}
        click.echo(json.dumps({**told, "figures": found.figures(), "groups": groups}, indent=1))
        return
    figures = found.figures()
    click.echo(f"{found.stage}: {figures['answers']} answers in {figures['groups']} groups, judged by")
    for name in found.rewards:
        lacking = found.unscored[name]
        click.echo(f"  {name}{f', which left {lacking} unscored' if lacking else ''}")
    shares = {
        "answers whose advantage has the other sign": figures["flipped"],
        "groups with such an answer": figures["groups_flipped"],
        "groups of which another answer is best": figures["best_changed"],
        "groups without a difference, before": figures["dead_before"],
        "groups without a difference, now": figures["dead_after"],
    }
    for name, share in shares.items():
        click.echo(f"{name:44} {100 * share:6.1f} %")
    click.echo(f"{'mean total':44} {figures['mean_before']:.3f} -> {figures['mean_after']:.3f}")
    changed = [group for group in found.groups if group.flipped]
    if changed:
        click.echo("most changed:")
    for group in sorted(changed, key=lambda group: -group.flipped)[:5]:
        of = f"{group.flipped} of {len(group.before)}"
        click.echo(f"  step {group.step}  {group.task}  {group.prompt}  {of}")
