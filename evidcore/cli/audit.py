"""`evid audit`: is a score earned by the pixels?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from evidcore.cli import CommandGroup

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_run = click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))


audit = CommandGroup(
    "audit", help="Ask whether a score is earned by the pixels, and what a segmenter can give."
)


@click.command()
@_run
@click.option("--limit", type=click.IntRange(min=0), default=0, help="Cases per data entry; 0 = all.")
@click.option("--blind-arm", is_flag=True, help="First train a policy alike over blank volumes.")
@_json
def policy(folder: Path, limit: int, blind_arm: bool, as_json: bool) -> None:
    """Ask a run's model the same questions over the right, another patient's and blank volumes."""
    from evidcore.cli.summary import summary
    from evidcore.page import write_page
    from evidcore.run import audit_run, open_run

    run = open_run(folder)
    result = audit_run(run, limit=limit, blind_arm=blind_arm)
    write_page(run.path)
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    for line in summary(run, only=result["stage"])["lines"]:
        click.echo(line)
