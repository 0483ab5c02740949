"""Argument and options of commands that are pointed at a recipe or at a folder with a table of cases."""

from pathlib import Path

import click


def _checked(context: click.Context, parameter: click.Parameter, target: Path) -> Path:
    """Tell a recipe's mistake before all else is imported."""
    if target.suffix == ".toml" and not context.resilient_parsing:
        from evidcore.recipe import load

        load(target)
    return target


target_argument = click.argument("target", type=click.Path(path_type=Path), callback=_checked)
folder_intensity = click.option(
    "--intensity", type=click.Choice(["hu", "arbitrary"]), default="hu", show_default=True,
    help="Of a folder: what its values are. A recipe says it itself.",
)  # fmt: skip
