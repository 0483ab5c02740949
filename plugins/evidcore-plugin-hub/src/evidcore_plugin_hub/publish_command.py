"""`evid publish`: a package as a repository of the Hub."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("repository", metavar="OWNER/NAME")
@click.option(
    "--dry-run", "out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Only write what would be published there.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def publish(folder: Path, repository: str, out: Path | None, as_json: bool) -> None:
    """Publish the package in FOLDER as OWNER/NAME on the Hub: wheel, readable source, manifest, card.

    It is built twice from its commit, looked at as `evid install` does, and linted. Log in with `hf auth
    login`.
    """
    from evidcore_plugin_hub.plugin import publishing, remote

    remote.parse(f"hub:{repository}")
    manifest, files = publishing.prepare(folder)
    if out is not None:
        publishing.write(files, out)
        said = {"folder": str(out), "files": sorted(files)}
        click.echo(json.dumps(said, indent=1) if as_json else f"{out}: {len(files)} files, nothing was sent")
        return
    tag = f"v{manifest.version}"
    at = remote.upload(repository, files, f"{manifest.name} {manifest.version}", tag)
    uses = [f"{at}#{name.partition('/')[2]}" for name in sorted(manifest.components)]
    if as_json:
        click.echo(json.dumps({"source": str(at), "tag": tag, "use": uses}, indent=1))
        return
    click.echo(f"published {at}, tag {tag}\ninstall:  evid install {at}")
    click.echo("\n".join(f'recipe:   use = "{use}"' for use in uses))
