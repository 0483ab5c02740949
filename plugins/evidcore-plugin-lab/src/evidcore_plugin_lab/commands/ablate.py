"""`evid ablate`: a recipe's variants over seeds, and what each is worth."""

from __future__ import annotations

import json
import shlex
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evidcore_plugin_lab.ablation.cells import AblationFolder


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@click.option("--only", multiple=True, metavar="ARM", help="Run only this arm; give each.")
@click.option(
    "--seeds", multiple=True, type=int, metavar="SEED", help="Run only this seed of the file's; give each."
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Cells at a time, each in a process of its own with its share of the cores.",
)  # fmt: skip
@click.option("--plan", is_flag=True, help="Only say which cells and stages are there and which are to do.")
@click.option("--rerun", is_flag=True, help="Run cells anew that have changed since they ran.")
@click.option(
    "--accept-changes", is_flag=True, help="Count cells, and go on with them, although something changed."
)
@click.option(
    "--keep", "kept", type=click.Path(path_type=Path),
    help="Also write tables and hashes of code and data there: no answers, and no paths of this machine.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def ablate(
    file: Path, out: Path, only: tuple[str, ...], seeds: tuple[int, ...], workers: int, plan: bool,
    rerun: bool, accept_changes: bool, kept: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a recipe's variants over seeds, and compare them; the same command goes on after a kill.

    FILE says which recipe, arms, seeds and metrics. Each arm under each seed is an ordinary run of the
    recipe; stages with equal inputs are computed once. Given a folder that an ablation wrote, its tables are
    printed again.
    """
    from evidcore_plugin_lab.ablation.tables import read, written

    if file.is_dir():
        result = read(file)
        click.echo(json.dumps(result, indent=1) if as_json else written(result), nl=as_json)
        return
    from evidcore.compute.signals import stop_request
    from evidcore.errors import EvidError
    from evidcore_plugin_lab.ablation.cells import AblationFolder
    from evidcore_plugin_lab.ablation.definition import load_ablation
    from evidcore_plugin_lab.ablation.outcome import outcome
    from evidcore_plugin_lab.ablation.runner import run_cells
    from evidcore_plugin_lab.ablation.tables import archive, write_up

    folder = AblationFolder(load_ablation(file), out)
    if plan:
        _plan(folder, only, seeds, as_json)
        return
    command = _command(file, out, workers)
    try:
        with stop_request.installed():
            passed = run_cells(
                folder, arms=only, seeds=seeds, tell=lambda line: click.echo(line, err=as_json),
                command=command, is_quiet=as_json, workers=workers, accept_changes=accept_changes,
                rerun=rerun,
            )  # fmt: skip
    except KeyboardInterrupt as stop:
        click.echo(f"\ninterrupted. Go on with: {command}", err=True)
        click.get_current_context().exit(getattr(stop, "exit_status", 130))
    failed = [
        {"cell": cell, "message": str(cause) if isinstance(cause, EvidError) else repr(cause)}
        for cell, cause in passed.failures.items()
    ]
    measured = outcome(folder.ablation, passed.counted, accepted=passed.accepted)
    result = {"command": command, **measured, "failed": failed}
    write_up(folder.path, result)
    if kept is not None:
        # what is archived says nothing of where runs lie on this machine
        again = _command(Path(file.name) if file.is_absolute() else file, Path("runs"), workers=1)
        archive(kept, {**result, "command": again}, folder.ablation.text, passed.counted)
    if as_json:
        click.echo(json.dumps({"folder": str(folder.path), **result}, indent=1))
    else:
        click.echo(f"\n{written(result)}\ntables: {kept or folder.path}")
    for failure, cause in zip(failed, passed.failures.values(), strict=True):
        if not isinstance(cause, EvidError):  # our bug or a component's
            click.echo("".join(traceback.format_exception(cause)), err=True, nl=False)
        click.echo(click.style("failed: ", fg="red") + f"{failure['cell']}: {failure['message']}", err=True)
    if failed:
        count = "1 cell" if len(failed) == 1 else f"{len(failed)} cells"
        click.echo(f"{count} failed; the others are kept. Mend the cause and go on with: {command}", err=True)
        click.get_current_context().exit(2)


def _plan(folder: AblationFolder, only: tuple[str, ...], seeds: tuple[int, ...], as_json: bool) -> None:
    """Say which cells are there, and how many distinct stages they have; runs and writes nothing."""
    from evidcore_plugin_pages.jinja import text

    cells = folder.chosen(only, seeds)
    planned: list[dict[str, Any]] = [
        {
            "arm": cell.arm, "seed": cell.seed, "state": cell.state, "changes": cell.changes(),
            "run": None if cell.run is None else str(cell.run.path),
            "overrides": list(folder.ablation.cell_overrides(cell.arm, cell.seed)),
        }
        for cell in cells
    ]  # fmt: skip
    stages = [stage for cell in cells for stage in cell.stage_folders(folder.root)]
    distinct = set(stages)
    there = sum(stage.is_dir() for stage in distinct)
    result = {"cells": planned, "stages": len(stages), "distinct": len(distinct), "there": there}
    plain = text("evidcore_plugin_lab", "ablate_plan.txt", **result)
    click.echo(json.dumps(result, indent=1) if as_json else plain)


def _command(file: Path, out: Path, workers: int) -> str:
    """Return what to type to go on."""
    words = ["evid", "ablate", str(file), *(["--out", str(out)] if out != Path("runs") else [])]
    words += ["--workers", str(workers)] if workers > 1 else []
    return shlex.join(words)
