"""`evid resume`: go on with a run."""

from __future__ import annotations

from pathlib import Path

import click

from evidcore.cli.run import go


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--accept-changes", is_flag=True, help="Go on although code, data or versions have changed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def resume(folder: Path, accept_changes: bool, as_json: bool) -> None:
    """Go on with a run that was interrupted or failed. Needs only its folder."""
    from evidcore.run import open_run

    go(open_run(folder), as_json, accept_changes=accept_changes)
