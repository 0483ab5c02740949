"""`evid compare`: what a stage of training, or another recipe, made better and worse."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evidcore_plugin_audit.comparison import Change, Comparison

_run = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=_run)
@click.argument("run2", metavar="[RUN2]", required=False, type=_run)
@click.option("--stage", default="", help="The evaluation; else the last.")
@click.option("--before", default="", help="What it is compared with; else the first that asked the same.")
@click.option("--metric", default="", help="A figure of each answer; else the headline's.")
@click.option("--finding", help="Only questions about this one.")
@click.option(
    "--list", "wanted", type=click.Choice(["worse", "better"]), help="Name the questions that changed so."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every question in it.")
def compare(
    run: Path, run2: Path | None, stage: str, before: str, metric: str, finding: str | None,
    wanted: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compare the answers of RUN2 with those of RUN, or of RUN's last evaluation with an earlier one.

    Question by question, with 95 % over patients; findings that fell come first.
    """
    from evidcore_plugin_audit.comparison import compared

    found = compared(run, run2, stage=stage, before=before, metric=metric)
    if finding is not None:
        found = found.about(finding)
    if as_json:
        click.echo(json.dumps(_json(found), indent=1))
        return
    _print(found)
    if wanted is not None:
        _print_questions(found, wanted)
    runs = " ".join(str(one) for one in (run, run2) if one is not None)
    click.echo(f"What was written, before and after: evid view {runs}")


def _json(found: Comparison) -> dict[str, Any]:
    return {
        "before": found.before, "after": found.after, "metric": found.metric, "notes": found.notes,
        "tasks": [dataclasses.asdict(one) for one in found.by_task()],
        "findings": [dataclasses.asdict(one) for one in found.by_finding()],
        "questions": [{**dataclasses.asdict(one), "change": one.change} for one in found.questions],
    }  # fmt: skip


def _print(found: Comparison) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{found.after} minus {found.before}, {found.metric}", markup=False)
    worths = [value for one in found.questions for value in (one.before, one.after)]
    is_share = min(worths) >= 0 and max(worths) <= 1
    _print_table("task", found.by_task(), is_share=is_share)
    if findings := found.by_finding():
        click.echo()
        _print_table("finding", findings, is_share=is_share)
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", markup=False)


def _print_table(title: str, rows: Sequence[Change], *, is_share: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from evidcore_plugin_audit.wide_table import print_table

    def figure(value: float) -> str:
        return f"{100 * value:.1f} %" if is_share else f"{value:.3f}"

    table = Table(
        title, "questions", "before", "after", "change", "95 %", "better", "worse", box=None, pad_edge=False
    )
    for one in rows:
        change = one.change
        known = change.low is not None and change.high is not None
        span = f"{figure(change.low or 0.0)} to {figure(change.high or 0.0)}" if known else change.note
        table.add_row(
            escape(one.name), str(change.values), figure(one.before), figure(one.after),
            f"{'+' if change.value > 0 else ''}{figure(change.value)}", span, str(one.better), str(one.worse),
        )  # fmt: skip
    print_table(table)


def _print_questions(found: Comparison, wanted: str) -> None:
    """Print the ids of questions, the largest change first; texts may be a patient's."""
    from evidcore.errors import printable

    chosen = [one for one in found.questions if (one.change < 0 if wanted == "worse" else one.change > 0)]
    click.echo(f"\n{len(chosen)} {wanted}")
    for one in sorted(chosen, key=lambda one: -abs(one.change)):
        told = f"{one.task}  {one.prompt}  {', '.join(one.findings) or '-'}"
        click.echo(printable(f"  {one.before:.3g} -> {one.after:.3g}  {told}"))
