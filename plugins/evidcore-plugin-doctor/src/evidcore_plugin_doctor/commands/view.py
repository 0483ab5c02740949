"""`evid data view`: a contact sheet of a data set, before anything is trained on it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import click
from evidcore_plugin_tables.target_options import folder_intensity, target_argument

from evidcore.cli.run import follow
from evidcore.errors import DataError, printable


@click.command()
@target_argument
@click.option("--dataset", "only", metavar="NAME", help="Of a recipe, only this data set.")
@folder_intensity
@click.option(
    "--split",
    "splits",
    multiple=True,
    type=click.Choice(["train", "validation", "test"]),
    help="Only this split; may be repeated.",
)
@click.option("--case", "ids", multiple=True, metavar="ID", help="Only this case; may be repeated.")
@click.option("--finding", metavar="NAME", help="Only cases that show this: a finding or a mask.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="At most so many cases of a data set, evenly spaced.",
)
@click.option(
    "--processes", type=click.IntRange(min=1), help="How many read volumes at once. Default: one a core."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page. Default: NAME.html of TARGET, here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the page holds as numbers.")
def view(
    target: Path,
    only: str | None,
    intensity: Literal["hu", "arbitrary"],
    splits: tuple[Any, ...],
    ids: tuple[str, ...],
    finding: str | None,
    limit: int,
    processes: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Write a page of TARGET's cases: three planes, masks, report, questions and faults of each.

    TARGET is a recipe, or a folder that holds cases.csv or questions.csv. The page is one file that opens
    without a network; it may hold patients' data. Files are looked at for the cases on it alone; `evid data
    check` looks at all.
    """
    from evidcore_plugin_tables.target import open_target

    from evidcore_plugin_doctor.contact_page import PICTURES_BYTES, page
    from evidcore_plugin_doctor.contact_sheet import Filters, gather

    path = out or Path(f"{target.resolve().stem}.html")
    _refuse_other_files(path)
    filters = Filters(limit=limit, splits=splits, ids=ids, finding=finding)
    cores = processes or len(os.sched_getaffinity(0))
    sheets = []
    datasets = open_target(target, only, intensity)
    share_bytes = PICTURES_BYTES // len(datasets)
    for name, dataset in datasets.items():
        with follow(name) as done:
            sheets.append(
                gather(dataset, name, filters, pictures_bytes=share_bytes, processes=cores, done=done)
            )
    made = page(sheets, str(target))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.text, encoding="utf-8", errors="backslashreplace")
    size_bytes = path.stat().st_size
    if as_json:
        found = {sheet.name: sheet.record() for sheet in sheets}
        told = {"target": str(target), "page": str(path), "bytes": size_bytes, "no_room": made.no_room}
        click.echo(json.dumps({**told, "datasets": found}, indent=1))
        return
    for sheet in sheets:
        total, shown = sum(sheet.summary.cases.values()), len(sheet.entries)
        faults = sum(sheet.summary.errors.values()) + sum(sheet.summary.warnings.values())
        click.echo(printable(f"{sheet.name}: {shown} of {total} cases, {faults} faults"))
        if shown < total:
            click.echo("  see others with --limit, --split, --case or --finding")
    if made.no_room:
        click.echo(f"{made.no_room} cases found no room on the page, which names them; see one with --case")
    click.echo(f"page: {path} ({size_bytes / 1e6:.1f} MB)")


def _refuse_other_files(path: Path) -> None:
    """Stop where a file lies that is no earlier page of this command."""
    from evidcore_plugin_doctor.contact_page import KICKER

    if path.exists() and KICKER.encode() not in path.read_bytes():
        raise DataError(f"{path}: is there, and no page of this command. Give another --out, or move it.")
