"""`evid plugins`: what is installed."""

from __future__ import annotations

import json

import click

from evidcore.errors import PluginError, did_you_mean, printable
from evidcore.registry import KIND_NAMES, Offer, broken, offers


@click.command()
@click.argument("kind", required=False)
@click.option("--check", "load", is_flag=True, help="Also import each component and say which fail.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(kind: str | None, load: bool, as_json: bool) -> None:
    """List installed components (of KIND). Nothing of theirs is imported, unless --check asks for it."""
    if kind is not None and kind not in KIND_NAMES:
        hint = did_you_mean(kind, KIND_NAMES)
        raise PluginError(f"no component kind is called {kind!r}.{hint} Kinds: {', '.join(KIND_NAMES)}.")
    rows = [(offer, offer.fault() or (_failure(offer) if load else None)) for offer in offers(kind)]
    unreadable = broken()
    if as_json:
        listing = [{**vars(offer), "broken": fault} for offer, fault in rows]
        click.echo(json.dumps({"components": listing, "broken_packages": unreadable}, indent=1))
        return
    for offer, fault in rows:
        source = f"{offer.package} {offer.version}"
        click.echo(printable(f"{offer.kind:11} {offer.name:22} {source:34} {offer.target}"))
        if fault:
            click.echo(click.style(f"{'':11} broken: {fault}", fg="red"))
    for package, reason in unreadable.items():
        click.echo(click.style(printable(f"broken package {package}: {reason}"), fg="red"))
    if not rows:
        click.echo(f"no {kind or 'component'} is installed")


def _failure(offer: Offer) -> str | None:
    try:
        offer.load()
    except PluginError as cause:
        return str(cause)
    return None
