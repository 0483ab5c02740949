"""`evid compare`: what a stage of training, or another recipe, made better and worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evidcore.cli import printer

if TYPE_CHECKING:
    import pandas as pd


_run = click.Path(path_type=Path)
WIDTH = 10_000  # of a printed table: a terminal wraps its lines, and `grep` finds them


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

    result = compared(run, run2, stage=stage, before=before, metric=metric)
    if finding is not None:
        result = result.about(finding)
    if as_json:
        sides = {"before": result.before, "after": result.after, "metric": result.metric}
        tables = {"tasks": result.by_task(), "findings": result.by_finding(), "questions": result.questions}
        form = {"orient": "records", "double_precision": 15}
        rows = {name: json.loads(table.to_json(**form)) for name, table in tables.items()}
        click.echo(json.dumps({**sides, "notes": result.notes, **rows}, indent=1))
        return
    console = printer()
    console.print(f"{result.after} minus {result.before}, {result.metric}")
    values = result.questions[["before", "after"]].to_numpy()
    is_share = values.min() >= 0 and values.max() <= 1
    _print_table("task", result.by_task(), is_share=is_share)
    if len(findings := result.by_finding()):
        click.echo()
        _print_table("finding", findings, is_share=is_share)
    for note in result.notes:
        console.print(f"note: {note}", style="yellow")
    if wanted is not None:
        signed = result.questions.query("change < 0" if wanted == "worse" else "change > 0")
        click.echo(f"\n{len(signed)} {wanted}")  # the largest change first; texts may be a patient's
        row: Any
        for row in signed.sort_values("change", key=lambda change: -abs(change), kind="stable").itertuples():
            names = ", ".join(row.findings) or "-"
            click.echo(f"  {row.before:.3g} -> {row.after:.3g}  {row.task}  {row.prompt}  {names}")
    runs = " ".join(str(folder) for folder in (run, run2) if folder is not None)
    click.echo(f"What was written, before and after: evid view {runs}")


def _print_table(title: str, changes: pd.DataFrame, *, is_share: bool) -> None:
    from rich.table import Table

    def figure(value: float) -> str:
        return f"{100 * value:.1f} %" if is_share else f"{value:.3f}"

    heads = (title, "questions", "before", "after", "change", "95 %", "better", "worse")
    table = Table(*heads, box=None, pad_edge=False)
    row: Any
    for row in changes.itertuples():
        interval = row.note or f"{figure(row.low)} to {figure(row.high)}"
        table.add_row(
            row.name, str(row.questions), figure(row.before), figure(row.after),
            f"{'+' if row.change > 0 else ''}{figure(row.change)}", interval, str(row.better), str(row.worse),
        )  # fmt: skip
    printer(soft_wrap=False, width=WIDTH).print(table)
