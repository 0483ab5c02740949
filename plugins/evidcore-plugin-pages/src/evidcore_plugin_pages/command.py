"""`evid page`: write the page of a run again."""

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--show-reports", is_flag=True, help="Put real patients' reports on the page too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def page(folder: Path, show_reports: bool, as_json: bool) -> None:
    """Write a run's evidence page again: static, offline."""
    from evidcore_plugin_pages.document import write_page

    path = write_page(folder, show_reports=show_reports)
    click.echo(json.dumps({"page": str(path)}) if as_json else str(path))
