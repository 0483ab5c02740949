"""Options of commands that are pointed at a recipe or at a folder with a table of cases."""

from __future__ import annotations

import click

folder_intensity = click.option(
    "--intensity",
    type=click.Choice(["hu", "arbitrary"]),
    default="hu",
    show_default=True,
    help="Of a folder: what its values are. A recipe says it itself.",
)
