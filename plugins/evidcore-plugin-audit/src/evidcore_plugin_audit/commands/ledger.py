"""`evid audit ledger`: what the audits of several runs found, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import click

from evidcore_plugin_audit.commands.compare import WIDTH


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Also write a page there, with each lock."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ledger(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Set the audits of RUNS in one table: own, what does not look, twins, verdicts, and hashes.

    RUNS are run folders or folders that hold some; else those under runs. The audits of outside models, as
    `evid audit policy` writes them, are runs too.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from evidcore.errors import printable
    from evidcore_plugin_audit.ledger import FIGURES, notes, records_of, write_ledger, written
    from evidcore_plugin_audit.ledger import ledger as rows_of

    records = records_of(runs or (Path("runs"),))
    rows = rows_of(records)
    if out is not None:
        write_ledger(out, records)
    if as_json:
        click.echo(json.dumps({"audits": rows, "notes": notes(rows)}, indent=1))
        return
    heads = ("run", "task", *FIGURES.values(), "questions", "code")
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        cells = [
            row["run"],
            row["task"],
            *(written(row, metric) for metric in FIGURES),
            row["questions"],
            row["code"],
        ]
        table.add_row(*(Text(printable(cell, keep="")) for cell in cells))
    Console(highlight=False, width=WIDTH).print(table)
    for row in rows:
        click.echo(f"{row['run']}, {row['task']}: {row['verdict']}")
    for note in notes(rows):
        click.echo(f"note: {note}")
    if out is not None:
        click.echo(f"page: {out}")
