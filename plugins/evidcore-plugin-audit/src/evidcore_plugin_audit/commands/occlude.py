"""`evid occlude`: where covering the scan makes an answer less likely."""

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--stage", default="", help="Of the answers; else the last evaluation.")
@click.option("--question", "questions", multiple=True, metavar="PROMPT_ID", help="Only this one; give each.")
@click.option("--limit", type=click.IntRange(min=0), default=0, help="Only the first so many questions.")
@click.option(
    "--cells", "cells_zyx", type=click.IntRange(min=1), nargs=3, default=(4, 6, 6), show_default=True,
    metavar="Z Y X", help="Cells along each axis of the scan.",
)  # fmt: skip
@click.option(
    "--cell-mm", type=click.FloatRange(min=0, min_open=True), default=None,
    help="Size of a cell, in place of --cells.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every question in it.")
def occlude(
    folder: Path, stage: str, questions: tuple[str, ...], limit: int, cells_zyx: tuple[int, int, int],
    cell_mm: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Cover RUN's scans cell by cell: how much less likely does the model's own answer become?

    Each cell of a grid is filled with air, one at a time. The maps lie in RUN/occlusion; `evid view` draws
    them. What is measured is kept, so the same command goes on after Ctrl-C.
    """
    from evidcore_plugin_pages.jinja import text
    from transformers.utils import logging

    from evidcore.cli.run import follow
    from evidcore.runs.folder import open_run
    from evidcore_plugin_audit.occlusion_map import SMALLEST
    from evidcore_plugin_audit.occlusion_map import occlude as measure

    logging.disable_progress_bar()
    run = open_run(folder)
    with follow("occlude", "cells") as tell:
        result = measure(
            run, stage=stage, questions=questions, limit=limit, cells_zyx=cells_zyx, cell_mm=cell_mm or 0.0,
            tell=tell,
        )  # fmt: skip
    for why, count in result.left_out.items():
        click.echo(f"left out: {count} questions, each {why}.", err=True)
    if as_json:
        told = {"stage": result.stage, "path": str(result.path), "left_out": dict(result.left_out)}
        click.echo(json.dumps({**told, "pointing": result.pointing(), "questions": result.lines}, indent=1))
        return
    facts = {"result": result, "pointing": result.pointing(), "smallest": SMALLEST, "folder": folder}
    click.echo(text("evidcore_plugin_audit", "occlude.txt", **facts))
