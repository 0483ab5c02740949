"""`evid install`, `update` and `uninstall`: plugins of the Hub in this environment, pinned in evid.lock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evidcore.registry import LOCK

if TYPE_CHECKING:
    from evidcore_plugin_hub.plugin.installing import Looked

_lock = click.option(
    "--lock", type=click.Path(path_type=Path, dir_okay=False), default=Path(LOCK), show_default=True,
    help="Where it is pinned: beside the recipes that use it.",
)  # fmt: skip
_yes = click.option("--yes", is_flag=True, help="Do not ask, where your trust.toml allows it.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("reference", metavar="[hub:OWNER/NAME@REV]", required=False)
@_lock
@_yes
@_json
def install(reference: str | None, lock: Path, yes: bool, as_json: bool) -> None:
    """Look at a plugin of the Hub, install the very files that were looked at, and pin them.

    Without a reference: install what the lock pins. Nothing else is installed, and no code is run before
    you agree.
    """
    from evidcore_plugin_hub.plugin import installing, remote

    if reference is not None:
        _install([installing.look(remote.resolve(reference))], lock, yes=yes, as_json=as_json)
        return
    pinned = installing.tables(lock)
    looked = []
    for package, table in pinned.items():
        found = installing.look(remote.reference(table["source"]), table.get("manifest", ""))
        _refuse_other(found, package, table, lock)
        looked.append(found)
    _install(looked, lock, yes=yes, as_json=as_json)


def _refuse_other(found: Looked, package: str, table: Mapping[str, Any], lock: Path) -> None:
    """Refuse what is not what a lock pins."""
    from evidcore.errors import PluginError

    wrong = [
        key for key in ("version", "record", "wheel", "manifest") if found.table()[key] != table.get(key)
    ]
    if wrong or found.wheel.package != package:
        what = ", ".join(wrong) or "name"
        raise PluginError(f"{found.at}: its {what} is not what {lock} pins for {package}.")


@click.command()
@click.argument("package")
@click.option("--revision", help="Else the newest.")
@_lock
@_yes
@_json
def update(package: str, revision: str | None, lock: Path, yes: bool, as_json: bool) -> None:
    """Show what changed in a pinned plugin since it was looked at, and install it if you agree."""
    from evidcore.errors import PluginError, did_you_mean, printable
    from evidcore_plugin_hub.plugin import installing, remote

    pinned = installing.tables(lock)
    if package not in pinned:
        hint = did_you_mean(package, pinned)
        raise PluginError(f"{package}: not pinned in {lock}.{hint} Pinned: {', '.join(pinned) or 'none'}.")
    before = remote.reference(pinned[package]["source"])
    asked = f"hub:{before.repository}" + (f"@{revision}" if revision else "")
    now = remote.resolve(asked)
    if now == before:
        click.echo(json.dumps({"installed": [], "changes": []}) if as_json else f"{package}: is at {before}")
        return
    found = installing.look(now)
    if found.wheel.package != package:
        raise PluginError(f"{now}: holds {found.wheel.package} now, not {package}.")
    changes = installing.changes(installing.look(before), found)
    for line in changes:
        click.echo(printable(line, keep=""), err=as_json)
    _install([found], lock, yes=yes, as_json=as_json, changes=changes)


@click.command()
@click.argument("package")
@_lock
@_json
def uninstall(package: str, lock: Path, as_json: bool) -> None:
    """Take a plugin out of this environment and out of the lock."""
    from evidcore_plugin_hub.plugin import installing

    installing.uninstall(package)
    if package in installing.tables(lock):
        installing.pin(lock, {package: None})
    click.echo(json.dumps({"uninstalled": package}) if as_json else f"uninstalled {package}")


def _install(
    looked: list[Looked], lock: Path, *, yes: bool, as_json: bool, changes: list[str] | None = None
) -> None:
    """Show, ask, install and pin."""
    from evidcore.errors import printable
    from evidcore_plugin_hub.plugin import installing

    for found in looked:
        for line in installing.lines(found):
            click.echo(printable(line, keep=""), err=True)
    for found in looked:
        installing.refuse_taken(found, lock)
        _agree(found, yes=yes)
    for found in looked:
        installing.install(found)
        installing.pin(lock, {found.wheel.package: found.table()})
    if as_json:
        rows = [{"package": one.wheel.package, **one.table()} for one in looked]
        click.echo(json.dumps({"installed": rows, "lock": str(lock), "changes": changes or []}, indent=1))
        return
    for found in looked:
        click.echo(f"installed {found.wheel.package} {found.wheel.version}, pinned in {lock}")


def _agree(found: Looked, *, yes: bool) -> None:
    """Go on only if the user typed the package's name, or allowed it in their own trust.toml."""
    from evidcore.errors import PluginError
    from evidcore_plugin_hub.trust import pins

    if yes:
        if not pins.names(str(found.at), pins.trust()["allow"]):
            raise PluginError(
                f"{found.at}: --yes asks for an entry in your own trust.toml, as "
                f'allow = ["{found.at.repository}@{found.at.commit}"].'
            )
        return
    said = click.prompt(
        "Its code will run with your rights. Type its name to install it",
        err=True,
        default="",
        show_default=False,
    )
    if said.strip() != found.wheel.package:
        raise PluginError(f"{found.at}: not installed; {said.strip()!r} is not {found.wheel.package!r}.")
