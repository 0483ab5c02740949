"""`evid new`: a package around a new component."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("kind")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Else evid-<kind>-<name>.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def new(kind: str, name: str, out: Path | None, as_json: bool) -> None:
    """Write a package with a component of KIND that works, its tests and its card.

    `evid plugins` lists the kinds that are installed; docs/howto has a page for each.
    """
    from evidcore_plugin_hub.new.package import write_package

    folder = out or Path(f"evid-{kind}-{name}")
    files = write_package(kind, name, folder)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "files": [str(one) for one in files]}, indent=1))
        return
    click.echo("\n".join(map(str, files)))
    click.echo(f"Next: pip install -e {folder} && cd {folder} && pytest, then evid lint {folder}")
