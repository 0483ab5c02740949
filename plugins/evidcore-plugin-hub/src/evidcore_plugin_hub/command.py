"""`evid export`: a run's model as a folder, a reward as a function for another trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click

FUNCTION = '''"""Reward {name!r} of {package} for `trl.GRPOTrainer(reward_funcs=[{function}], …)`.

The data set needs the columns that the task {task!r} holds an answer against, as `letter` and `options`; of
the case, where the reward looks at them, `report` and `findings`. `{{"prompt": …}}` asks as the task does.
"""

from evidcore_plugin_hub.trl_reward import trl_reward

{function} = trl_reward({name!r}, task={task!r}, options={options!r})
'''


class _Export(click.Group):
    """Takes a run where no command of its own is named: `evid export RUN DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` in front of a run's folder."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Export, subcommand_metavar="RUN DIR | reward NAME")
def export() -> None:
    """Write a run's model as a folder for transformers, or a reward for another trainer."""


@export.command("reward")
@click.argument("name")
@click.option("--to", "trainer", type=click.Choice(["trl"]), required=True, help="Who calls it.")
@click.option("--task", default="choice", show_default=True, help="The task that reads the completions.")
@click.option("--options", default="{}", metavar="JSON", help="Of the reward, as a recipe would have them.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Else <name>_trl.py.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reward(name: str, trainer: str, task: str, options: str, out: Path | None, as_json: bool) -> None:
    """Write a file with an installed reward as a function for TRL's GRPO trainer."""
    from evidcore.errors import RecipeError
    from evidcore_plugin_hub.trl_reward import trl_reward

    try:
        table = json.loads(options)
    except ValueError as cause:
        raise RecipeError(
            f"--options: must be a JSON object, got {options!r} ({cause}). Write '{{\"key\": 1}}'."
        ) from cause
    made = trl_reward(name, task=task, options=table)
    place = out or Path(f"{made.__name__}_trl.py")
    if place.exists():
        raise RecipeError(f"{place}: is there already. Remove it, or name another file with --out.")
    text = FUNCTION.format(
        name=name, package=made.reward.package, function=made.__name__, task=task, options=table
    )
    place.write_text(text, encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"file": str(place), "function": made.__name__, "to": trainer}))
    else:
        click.echo(f"{place}: from {place.stem} import {made.__name__}")


@export.command("run")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["transformers", "published"]), default="transformers",
    show_default=True, help="Who reads the folder.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def run(folder: Path, target: Path, form: Literal["transformers", "published"], as_json: bool) -> None:
    """Write a run's model to DIR with its card: a folder that transformers loads.

    After `import evidcore.model`, `AutoModelForImageTextToText` and `AutoProcessor` read it. A model whose
    encoder and bridge were published with its language model may be written as it was, for vLLM and others.
    """
    from transformers.utils import logging

    from evidcore.runs import open_run
    from evidcore_plugin_hub.export import export_run

    logging.disable_progress_bar()
    written = export_run(open_run(folder), target, form)
    if as_json:
        files = sorted(path.name for path in written.iterdir())
        click.echo(json.dumps({"folder": str(written), "format": form, "files": files}, indent=1))
        return
    click.echo(f"model: {written}\ncard:  {written / 'README.md'}")
    click.echo("Read the card before you pass the model on.")
