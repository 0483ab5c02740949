"""`evid plugins`: what is installed."""

import json
from pathlib import Path

import click

from evidcore.cli import printer
from evidcore.cli.show import apart
from evidcore.errors import PluginError, did_you_mean
from evidcore.registry import KIND_NAMES, LOCK, Offer, broken, offers, watch


@click.command()
@click.argument("kind", required=False)
@click.option("--check", "load", is_flag=True, help="Also import each component and say which fail.")
@click.option(
    "--verify", is_flag=True, help="Compare installed packages with their RECORD, and with the lock."
)
@click.option(
    "--lock", type=click.Path(path_type=Path, dir_okay=False), default=Path(LOCK), show_default=True,
    help="What --verify compares with.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(kind: str | None, load: bool, verify: bool, lock: Path, as_json: bool) -> None:
    """List installed components (of KIND). Nothing of theirs is imported, unless --check asks for it."""
    if verify:
        watch("pins", "--verify").print_verified(lock, as_json=as_json)
        return
    if kind is not None and kind not in KIND_NAMES:
        hint = did_you_mean(kind, KIND_NAMES)
        raise PluginError(f"no component kind is called {kind!r}.{hint} Kinds: {', '.join(KIND_NAMES)}.")
    rows = [(offer, offer.fault() or (_failure(offer) if load else None)) for offer in offers(kind)]
    unreadable, names = broken(), watch("names")
    alike = {} if names is None else names.look_alikes(offers(kind))
    if as_json:
        listing = [
            {**vars(offer), "broken": fault} | ({"looks_like": str(alike[offer])} if offer in alike else {})
            for offer, fault in rows
        ]
        click.echo(json.dumps({"components": listing, "broken_packages": unreadable}, indent=1))
        return
    for offer, fault in rows:
        source = f"{offer.package} {offer.version}"
        click.echo(f"{offer.kind:11} {offer.name:22} {source:34} {offer.target}")
        if offer in alike:
            printer().print(f"{'':11} can be mistaken for {alike[offer]}", style="yellow")
        if fault:
            printer().print(f"{'':11} broken: {fault}", style="red")
    for package, reason in unreadable.items():
        printer().print(f"broken package {package}: {reason}", style="red")
    if not rows:
        click.echo(f"no {kind or 'component'} is installed")


def _failure(offer: Offer) -> str | None:
    try:
        apart(offer).load()
    except PluginError as cause:
        return str(cause)
    return None
