"""`evid search` and `evid info`: what others published, read and not run."""

from __future__ import annotations

import json

import click

MOST_SHOWN = 64 * 1024


@click.command()
@click.argument("words", nargs=-1)
@click.option("--kind", help="Only plugins with a component of this kind.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def search(words: tuple[str, ...], kind: str | None, limit: int, as_json: bool) -> None:
    """Search the Hub for plugins whose names hold WORDS; their publishers say what they are."""
    from evidcore.errors import printable
    from evidcore_plugin_hub.plugin import remote

    found = remote.search(" ".join(words), kind, limit)
    if as_json:
        click.echo(json.dumps({"plugins": found}, indent=1))
        return
    for row in found:
        kinds = ", ".join(row["kinds"])
        click.echo(printable(f"hub:{row['repository']:40} {kinds:24} {row['changed']}  {row['downloads']}"))
    click.echo("nothing found" if not found else "evid info hub:OWNER/NAME reads one's card and manifest")


@click.command()
@click.argument("reference", metavar="hub:OWNER/NAME[@REV]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(reference: str, as_json: bool) -> None:
    """Show the card and manifest of a plugin of the Hub as text. Nothing is installed or run."""
    from evidcore.errors import printable
    from evidcore_plugin_hub.plugin import manifest, remote

    at = remote.resolve(reference, known=True)
    texts = {
        path: remote.fetch(at, path, 2 * manifest.MOST_BYTES, known=True).decode(errors="replace")
        for path in ("README.md", remote.FILE)
    }
    if as_json:
        click.echo(json.dumps({"source": str(at), **texts}, indent=1))
        return
    click.echo(str(at))
    for path, text in texts.items():
        cut = f"\n… cut after {MOST_SHOWN} of {len(text)} characters" if len(text) > MOST_SHOWN else ""
        click.echo(f"\n--- {path}\n{printable(text[:MOST_SHOWN])}{cut}")
