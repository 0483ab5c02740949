"""`evid predict`: a trained model on a scan."""

import json
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("scan", required=False)
@click.option(
    "--task", default="", help="A task of the run's recipe.  [default: choice with options, else report]"
)
@click.option("--question", default="", help="What to ask, for a task that takes questions.")
@click.option("--option", "options", multiple=True, help="An option to choose from; give each.")
@click.option("--series", help="SeriesInstanceUID, where SCAN is a folder of several series.")
@click.option(
    "--tilted", type=click.Choice(["refuse", "resample"]), default="refuse", show_default=True,
    help="What to do with axes that lean from the body's, as under a tilted gantry.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="A new folder for the answer.  [default: predictions/<scan>-<task>]",
)  # fmt: skip
@click.option("--unlike", is_flag=True, help="Answer also about a scan far outside of the training scans.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def predict(folder: Path, scan: str | None, out: Path | None, as_json: bool, **asked: Any) -> None:
    """Ask a run's model about a scan. Research software, not for clinical use.

    SCAN is a NIfTI file, a folder with one DICOM series, or another volume that evidcore reads. The model
    writes the report, answers a question with options, or shows where something is. Beside the answer lie
    what it points at (key slice, boxes, a mask on the scan's own grid), a page, and whether the answer
    changes on a volume of air.

    A scan that is unlike those of the training is warned of, and refused where it is far outside of them.
    Without SCAN the command says what the model was trained on. It measures the training scans once and
    keeps that in RUN, so run it once where the data is.
    """
    from evidcore_plugin_pages.jinja import text
    from transformers.utils import logging

    from evidcore.cli.run import follow
    from evidcore_plugin_lab.predict import Inquiry, describe_training, predict_scan
    from evidcore_plugin_lab.predict.answer_page import looking_sentence, training_lines, unlike_lines

    logging.disable_progress_bar()
    with follow("measuring training scans", "scans") as tell:
        if scan is None:
            training = describe_training(folder, tell)
        else:
            result = predict_scan(folder, Inquiry(scan=scan, **asked), out, tell)
    if scan is None:
        lines = "\n".join(training_lines(training))
        click.echo(json.dumps(training, indent=1) if as_json else lines)
        return
    if as_json:
        click.echo(json.dumps({"folder": str(result.folder), **result.record}, indent=1))
        return
    facts: dict[str, Any] = {"record": result.record, "folder": result.folder}
    facts |= {"looking": looking_sentence(result.record), "unlike_lines": [*unlike_lines(result.record)]}
    facts["training_lines"] = [*training_lines(result.record["training"])]
    click.echo(text("evidcore_plugin_lab", "predict.txt", **facts))
