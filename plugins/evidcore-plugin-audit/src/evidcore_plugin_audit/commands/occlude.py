"""`evid occlude`: where covering the scan makes an answer less likely."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from evidcore_plugin_audit.occlusion_map import Line, Measured


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
    from transformers.utils import logging

    from evidcore.cli.run import follow
    from evidcore.runs.folder import open_run
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
    for text in _lines(result):
        click.echo(text)
    click.echo(f"\nmaps: {result.path}\nLook at them: evid view {folder}")


def _lines(found: Measured) -> Iterator[str]:
    """Yield what a terminal shows of the maps."""
    yield f"{found.stage}: {len(found.lines)} answers, drops in nats a token"
    for line in found.lines:
        yield f"  {line['task']}  {line['prompt_id']}  own {line['own_log_prob']:.3f}  {_told(line)}"
    mute = sum(line["largest"] is None for line in found.lines)
    if mute:
        yield f"{mute} of {len(found.lines)} answers stay as likely whichever cell is covered."
    pointing = found.pointing()
    if pointing is None:
        return
    yield (
        f"pointing game: the largest drop touches the mask of what is asked in "
        f"{100 * pointing['accuracy']:.1f} % of {pointing['questions']} questions, by chance in "
        f"{100 * pointing['chance']:.1f} %"
    )
    interval = f"no interval over {pointing['patients']} patients"
    if pointing["low"] is not None:
        low, high = 100 * pointing["low"], 100 * pointing["high"]
        interval = f"95 % over {pointing['patients']} patients: {low:+.1f} to {high:+.1f}"
    yield f"above chance: {100 * pointing['above_chance']:+.1f} points, {interval}"


def _told(line: Line) -> str:
    """Return where the largest drop of a question lies."""
    from evidcore_plugin_audit.occlusion_map import SMALLEST

    largest, pointing = line["largest"], line["pointing"]
    if largest is None:
        return f"no cell matters: every drop is below {SMALLEST:g}"
    spans = (f"{axis} {a:g} to {b:g}" for axis, (a, b) in zip("zyx", largest["mm_zyx"], strict=True))
    told = f"largest drop {largest['drop']:.3f} at {', '.join(spans)} mm"
    if pointing is None:
        return f"{told}; no mask of what is asked"
    touches = "touches" if pointing["hit"] else "does not touch"
    share, chance = 100 * pointing["share"], 100 * pointing["chance"]
    beside = f"{share:.0f} % of the drops lie in its cells, which are {chance:.0f} % of the body's"
    return f"{told}; {touches} the mask; {beside}"
