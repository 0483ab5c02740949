"""`evid tour`: an audit of two small models side by side, without training and without a download."""

import json
from pathlib import Path

import click


@click.command()
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True,
    help="Where runs lie.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def tour(out: Path, as_json: bool) -> None:
    """Audit two small trained models that ship with evidcore: which of them reads the scan?"""
    click.echo("About a minute on 2 CPU cores. Nothing is trained and nothing is downloaded.", err=True)
    from evidcore_plugin_audit.ledger import records_of, write_ledger
    from transformers.utils import logging

    from evidcore.hooks import write_pages
    from evidcore_plugin_tour.shipped import SCAN, WORDS, audit
    from evidcore_plugin_tour.side_by_side import ending, figures

    logging.disable_progress_bar()
    runs, results = {}, {}
    for number, model in enumerate((SCAN, WORDS), start=1):
        click.echo(f"{number} of 2: {model.name}, {model.trained_on}", err=True)
        folder, results[model.name] = audit(model, out)
        runs[model] = folder.path
        write_pages(folder.path)
    page = out / "tour" / "index.html"
    write_ledger(page, records_of(runs.values()))
    if as_json:
        result = {
            model.name: {"run": str(folder), **figures(results[model.name])} for model, folder in runs.items()
        }
        click.echo(json.dumps({"page": str(page), "models": result}, indent=1))
        return
    for line in [*ending(results), f"page: {page}"]:
        click.echo(line)
