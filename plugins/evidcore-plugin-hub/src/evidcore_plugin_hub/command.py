"""`evid export`: a run's model as a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["transformers", "published"]), default="transformers",
    show_default=True, help="Who reads the folder.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def export(folder: Path, target: Path, form: Literal["transformers", "published"], as_json: bool) -> None:
    """Write a run's model to DIR with its card: a folder that transformers loads.

    After `import evidcore.model`, `AutoModelForImageTextToText` and `AutoProcessor` read it. A model whose
    encoder and bridge were published with its language model may be written as it was, for vLLM and others.
    """
    from transformers.utils import logging

    from evidcore.run import open_run
    from evidcore_plugin_hub.export import export_run

    logging.disable_progress_bar()
    written = export_run(open_run(folder), target, form)
    if as_json:
        files = sorted(path.name for path in written.iterdir())
        click.echo(json.dumps({"folder": str(written), "format": form, "files": files}, indent=1))
        return
    click.echo(f"model: {written}\ncard:  {written / 'README.md'}")
    click.echo("Read the card before you pass the model on.")
