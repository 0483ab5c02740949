"""The commands of this package. What one needs is imported when it is given, so that a list is quick."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from evidcore.cli import printer
from evidcore.errors import PluginError, RecipeError, did_you_mean, printable
from evidcore.registry import LOCK

if TYPE_CHECKING:
    from evidcore_plugin_hub.plugin.installing import Looked

MOST_SHOWN = 64 * 1024  # of a card or manifest
_COLOURS = {"fine": "green", "note": "yellow", "alarm": "red", "not applicable": "dim"}
_lock = click.option(
    "--lock", type=click.Path(path_type=Path, dir_okay=False), default=Path(LOCK), show_default=True,
    help="Where it is pinned: beside the recipes that use it.",
)  # fmt: skip
_yes = click.option("--yes", is_flag=True, help="Do not ask, where your trust.toml allows it.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_chat = click.option("--chat", is_flag=True, help="Give functions of --trl lists of messages, not texts.")
_fail_under = click.option(
    "--fail-under", type=click.Choice(["alarm", "note"]), default="alarm", show_default=True,
    help="Exit with 1 from this outcome on.",
)  # fmt: skip
_file = click.Path(path_type=Path, exists=True, dir_okay=False)


def _print(as_json: bool, table: Mapping[str, Any], *lines: str) -> None:
    """Print a table as JSON, or lines for people."""
    click.echo(json.dumps(table, indent=1) if as_json else "\n".join(lines))


def _tell(
    results: Iterable[Mapping[str, Any]], done: str, *, shows_fine: bool, fail_under: str, as_json: bool
) -> None:
    """Print results as they come, a row a check, or as JSON, and exit with 1 from an outcome on.

    Alarms and notes are shown; with `shows_fine` also what is fine of all rewards together, and of what one
    reward checks of itself.
    """
    from rich.table import Table
    from rich.text import Text

    console, told = printer(), []
    for result in results:
        told.append(result)
        package = f" from {result['package']} {result['version']}".rstrip() if result["package"] else ""
        stage = f", {result['stage']}" if result["stage"] else ""
        title = Text(f"{result['kind']} {result['name']}{package}{stage}: ")
        table = Table(show_header=False, box=None, pad_edge=False)
        for check in result["checks"]:
            is_fine = shows_fine and not (check["reward"] and check["guards"])
            if not is_fine and check["outcome"] not in ("alarm", "note"):
                continue
            name = ", ".join(filter(None, [check["task"], check["check"]]))
            whose = f"{check['reward']}: {name}" if check["reward"] else name
            says = Text(check["says"])
            if check["outcome"] == "alarm" and check["guards"]:
                says.append(f"\n(guards against: {check['guards']})")
            table.add_row(Text(whose), Text(check["outcome"], style=_COLOURS[check["outcome"]]), says)
        if not as_json:
            with contextlib.suppress(BrokenPipeError):
                console.print(title + Text(result["outcome"], style=_COLOURS[result["outcome"]]))
                if table.row_count:
                    console.print(table)
    outcomes = [result["outcome"] for result in told]
    summary = (
        f"{len(told)} {done}: {outcomes.count('alarm')} with alarms, {outcomes.count('note')} with notes"
    )
    _print(as_json, {"results": told}, summary)
    if not {"alarm", fail_under}.isdisjoint(outcomes):
        click.get_current_context().exit(1)


@click.command()
@click.argument("kind")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Else evid-<kind>-<name>.")
@_json
def new(kind: str, name: str, out: Path | None, as_json: bool) -> None:
    """Write a package with a component of KIND that works, its tests and its card.

    `evid plugins` lists the kinds that are installed; docs/howto has a page for each.
    """
    from evidcore_plugin_hub.new import write_package

    folder = out or Path(f"evid-{kind}-{name}")
    names = [str(file) for file in write_package(kind, name, folder)]
    hint = f"Next: pip install -e {folder} && cd {folder} && pytest, then evid lint {folder}"
    _print(as_json, {"folder": str(folder), "files": names}, *names, hint)


@click.command()
@click.argument("named", metavar="[NAME|FOLDER]...", nargs=-1)
@click.option("--kind", default="", help="Of the components that are named; else any.")
@click.option(
    "--trl", "functions", multiple=True, metavar="FILE.PY:FUNCTION",
    help="Lint a function with the signature of TRL's rewards.",
)  # fmt: skip
@_chat
@click.option(
    "--recipe", type=_file,
    help="Ask over the data of its grpo stage; by itself: lint its rewards as composed.",
)  # fmt: skip
@_fail_under
@_json
def lint(
    named: tuple[str, ...], kind: str, functions: tuple[str, ...], chat: bool, recipe: Path | None,
    fail_under: str, as_json: bool,
) -> None:  # fmt: skip
    """Try components as published failures of others would have been found. Needs no model and no GPU.

    NAME is an installed component or package, FOLDER holds a pyproject.toml; without either everything
    installed is tried. The code runs in a process of its own, which is no sandbox.
    """
    from evidcore_plugin_hub.lint.target import lint_all, targets

    path = "" if recipe is None else str(recipe)
    asked = targets(named, kind=kind, functions=functions, is_chat=chat, recipe=path)
    _tell(lint_all(asked), "linted", shows_fine=False, fail_under=fail_under, as_json=as_json)


@click.command("reward")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key.")
@click.option(
    "--limit", type=click.IntRange(min=2), default=16, show_default=True, help="Cases per data entry."
)
@click.option(
    "--trl", "functions", multiple=True, metavar="FILE.PY:FUNCTION",
    help="Audit a function with TRL's signature in place of the stage's rewards; several are summed.",
)  # fmt: skip
@_chat
@click.option("--rollouts", type=_file, help="A run's rollouts/<stage>.jsonl: also judge its first step.")
@_fail_under
@_json
def audit_reward(
    recipe: Path, overrides: tuple[str, ...], limit: int, functions: tuple[str, ...], chat: bool,
    rollouts: Path | None, fail_under: str, as_json: bool,
) -> None:  # fmt: skip
    """Judge a recipe's rewards over completions of known worth. Needs no model and no GPU."""
    from evidcore.recipe import load

    load(recipe, overrides)  # a mistake is named before all else is imported

    from evidcore_plugin_hub.lint.linting import examined
    from evidcore_plugin_hub.lint.target import rewards_target

    target = rewards_target(
        str(recipe), functions=functions, overrides=overrides, cases=limit, is_chat=chat,
        rollouts=str(rollouts or ""),
    )  # fmt: skip
    with contextlib.redirect_stdout(sys.stderr):  # what a reward prints is no result
        results = examined(target)
    _tell(results, "audited", shows_fine=True, fail_under=fail_under, as_json=as_json)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("repository", metavar="OWNER/NAME")
@click.option(
    "--dry-run", "out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Only write what would be published there.",
)  # fmt: skip
@_json
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
        table = {"folder": str(out), "files": sorted(files)}
        _print(as_json, table, f"{out}: {len(files)} files, nothing was sent")
        return
    tag = f"v{manifest.version}"
    at = remote.upload(repository, files, f"{manifest.name} {manifest.version}", tag)
    uses = [f"{at}#{name.partition('/')[2]}" for name in sorted(manifest.components)]
    lines = [f"published {at}, tag {tag}", f"install:  evid install {at}"]
    lines += [f'recipe:   use = "{use}"' for use in uses]
    _print(as_json, {"source": str(at), "tag": tag, "use": uses}, *lines)


@click.command()
@click.argument("words", nargs=-1)
@click.option("--kind", help="Only plugins with a component of this kind.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="At most so many.")
@_json
def search(words: tuple[str, ...], kind: str | None, limit: int, as_json: bool) -> None:
    """Search the Hub for plugins whose names hold WORDS; their publishers say what they are."""
    from evidcore_plugin_hub.plugin import remote

    found = remote.search(" ".join(words), kind, limit)
    form = "hub:{repository:40} {kinds:24} {changed}  {downloads}"
    lines = [printable(form.format(**{**row, "kinds": ", ".join(row["kinds"])})) for row in found]
    lines.append("evid info hub:OWNER/NAME reads one's card and manifest" if found else "nothing found")
    _print(as_json, {"plugins": found}, *lines)


@click.command()
@click.argument("reference", metavar="hub:OWNER/NAME[@REV]")
@_json
def info(reference: str, as_json: bool) -> None:
    """Show the card and manifest of a plugin of the Hub as text. Nothing is installed or run."""
    from evidcore_plugin_hub.plugin import manifest, remote

    at = remote.resolve(reference)
    texts = {
        path: remote.fetch(at, path, 2 * manifest.MOST_BYTES).decode(errors="replace")
        for path in ("README.md", remote.FILE)
    }
    lines = [str(at)]
    for path, text in texts.items():
        cut = f"\n… cut after {MOST_SHOWN} of {len(text)} characters" if len(text) > MOST_SHOWN else ""
        lines.append(f"\n--- {path}\n{printable(text[:MOST_SHOWN])}{cut}")
    _print(as_json, {"source": str(at), **texts}, *lines)


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
    looked = []
    for package, table in installing.tables(lock).items():
        found = installing.look(remote.reference(table["source"]))
        keys = ("version", "record", "wheel", "manifest")
        wrong = [key for key in keys if found.table()[key] != table.get(key)]
        if wrong or found.wheel.package != package:
            what = ", ".join(wrong) or "name"
            raise PluginError(f"{found.at}: its {what} is not what {lock} pins for {package}.")
        looked.append(found)
    _install(looked, lock, yes=yes, as_json=as_json)


@click.command()
@click.argument("package")
@_lock
@_yes
@_json
def update(package: str, lock: Path, yes: bool, as_json: bool) -> None:
    """Show what changed in a pinned plugin since it was looked at, and install it if you agree."""
    from evidcore_plugin_hub.plugin import installing, remote

    pinned = installing.tables(lock)
    if package not in pinned:
        hint = did_you_mean(package, pinned)
        raise PluginError(f"{package}: not pinned in {lock}.{hint} Pinned: {', '.join(pinned) or 'none'}.")
    before = remote.reference(pinned[package]["source"])
    now = remote.resolve(f"hub:{before.repository}")
    if now == before:
        _print(as_json, {"installed": [], "changes": []}, f"{package}: is at {before}")
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
    _print(as_json, {"uninstalled": package}, f"uninstalled {package}")


def _install(
    looked: list[Looked], lock: Path, *, yes: bool, as_json: bool, changes: list[str] | None = None
) -> None:
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
    rows = [{"package": one.wheel.package, **one.table()} for one in looked]
    lines = [f"installed {row['package']} {row['version']}, pinned in {lock}" for row in rows]
    _print(as_json, {"installed": rows, "lock": str(lock), "changes": changes or []}, *lines)


def _agree(found: Looked, *, yes: bool) -> None:
    """Go on only if the user typed the package's name, or allowed it in their own trust.toml."""
    from evidcore_plugin_hub.trust import pins

    if yes:
        if not pins.names(str(found.at), pins.trust()["allow"]):
            entry = f'allow = ["{found.at.repository}@{found.at.commit}"]'
            raise PluginError(f"{found.at}: --yes asks for an entry in your own trust.toml, as {entry}.")
        return
    question = "Its code will run with your rights. Type its name to install it"
    typed = click.prompt(question, err=True, default="", show_default=False).strip()
    if typed != found.wheel.package:
        raise PluginError(f"{found.at}: not installed; {typed!r} is not {found.wheel.package!r}.")


class _Export(click.Group):
    """Takes a run where no command of its own is named: `evid export RUN DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` in front of a run's folder."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Export, subcommand_metavar="RUN DIR | reward NAME")
def export() -> None:
    """Write a run's model as a folder for transformers, or a reward for another trainer."""


@export.command("reward")
@click.argument("name")
@click.option("--to", "trainer", type=click.Choice(["trl"]), required=True, help="Who calls it.")
@click.option("--task", default="choice", show_default=True, help="The task that reads the completions.")
@click.option("--options", default="{}", metavar="JSON", help="Of the reward, as a recipe would have them.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Else <name>_trl.py.")
@_json
def reward(name: str, trainer: str, task: str, options: str, out: Path | None, as_json: bool) -> None:
    """Write a file with an installed reward as a function for TRL's GRPO trainer."""
    from evidcore.runs.folder import write
    from evidcore_plugin_hub.trl_reward import trl_reward

    try:
        table = json.loads(options)
    except (ValueError, RecursionError) as cause:
        must = f"must be a JSON object, got {options!r} ({cause})"
        raise RecipeError(f"--options: {must}. Write '{{\"key\": 1}}'.") from cause
    made = trl_reward(name, task=task, options=table)
    place = out or Path(f"{made.__name__}_trl.py")
    if place.exists():
        raise RecipeError(f"{place}: is there already. Remove it, or name another file with --out.")
    template = resources.files(__package__) / "templates" / "trl_reward.py.txt"
    text = template.read_text(encoding="utf-8").format(
        name=name, package=made.reward.package, function=made.__name__, task=task, options=table
    )
    write(place, text)
    written = {"file": str(place), "function": made.__name__, "to": trainer}
    _print(as_json, written, f"{place}: from {place.stem} import {made.__name__}")


@export.command("run")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(["transformers", "published"]), default="transformers",
    show_default=True, help="Who reads the folder.",
)  # fmt: skip
@_json
def run(folder: Path, target: Path, form: Literal["transformers", "published"], as_json: bool) -> None:
    """Write a run's model to DIR with its card: a folder that transformers loads.

    After `import evidcore.model`, `AutoModelForImageTextToText` and `AutoProcessor` read it. A model whose
    encoder and bridge were published with its language model may be written as it was, for vLLM and others.
    """
    from transformers.utils import logging

    from evidcore_plugin_hub.export import export_run

    logging.disable_progress_bar()
    written = export_run(folder, target, form)
    files = sorted(path.name for path in written.iterdir())
    lines = [f"model: {written}", f"card:  {written / 'README.md'}", "Read it before you pass the model on."]
    _print(as_json, {"folder": str(written), "format": form, "files": files}, *lines)
