"""`evid data`: look at a data set before anything is trained on it."""

from __future__ import annotations

import click

from evidcore.cli import CommandGroup

data = CommandGroup("data", help="Check, profile and prepare a data set.")

folder_intensity = click.option(
    "--intensity",
    type=click.Choice(["hu", "arbitrary"]),
    default="hu",
    show_default=True,
    help="Of a folder: what its values are. A recipe says it itself.",
)
