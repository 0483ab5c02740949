"""The commands of this package. What one needs is imported when it is given, so that a list is quick."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from evidcore.errors import PluginError, RecipeError, did_you_mean, printable
from evidcore.registry import LOCK

if TYPE_CHECKING:
    from evidcore.contracts import Checked
    from evidcore.runs.context import Context
    from evidcore_plugin_hub.plugin.installing import Looked

MOST_SHOWN = 64 * 1024  # of a card or manifest
_COLOURS = {"fine": "green", "note": "yellow", "alarm": "red", "not applicable": "dim"}
_lock = click.option(
    "--lock", type=click.Path(path_type=Path, dir_okay=False), default=Path(LOCK), show_default=True,
    help="Where it is pinned: beside the recipes that use it.",
)  # fmt: skip
_yes = click.option("--yes", is_flag=True, help="Do not ask, where your trust.toml allows it.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_fail_under = click.option(
    "--fail-under", type=click.Choice(["alarm", "note"]), default="alarm", show_default=True,
    help="Exit with 1 from this outcome on.",
)  # fmt: skip
_file = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.argument("kind")
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Else evid-<kind>-<name>.")
@_json
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


@click.command()
@click.argument("named", metavar="[NAME|FOLDER]...", nargs=-1)
@click.option("--kind", default="", help="Of the components that are named; else any.")
@click.option(
    "--trl", "functions", multiple=True, metavar="FILE.PY:FUNCTION",
    help="Lint a function with the signature of TRL's rewards.",
)  # fmt: skip
@click.option("--chat", is_flag=True, help="Give functions of --trl lists of messages, not texts.")
@click.option(
    "--recipe", type=_file,
    help="Ask over the data of its grpo stage; by itself: lint its rewards as composed.",
)  # fmt: skip
@click.option("--all", "show_all", is_flag=True, help="Also print checks that are fine.")
@click.option(
    "--time-limit", "time_limit_s", type=click.FloatRange(min=1), default=300.0, show_default=True,
    help="Seconds for one component.",
)  # fmt: skip
@_fail_under
@_json
def lint(
    named: tuple[str, ...],
    kind: str,
    functions: tuple[str, ...],
    chat: bool,
    recipe: Path | None,
    show_all: bool,
    time_limit_s: float,
    fail_under: str,
    as_json: bool,
) -> None:
    """Try components as published failures of others would have been found. Needs no model and no GPU.

    NAME is an installed component or package, FOLDER holds a pyproject.toml; without either everything
    installed is tried. The code runs in a process of its own, which is no sandbox.
    """
    from evidcore_plugin_hub.lint.supervised import lint_all
    from evidcore_plugin_hub.lint.target import targets

    asked = targets(
        named, kind=kind, functions=functions, is_chat=chat, recipe="" if recipe is None else str(recipe)
    )
    results = []
    for result in lint_all(asked, time_limit_s=time_limit_s):
        results.append(result)
        if not as_json:
            _print_linted(result, show_all=show_all)
    if as_json:
        click.echo(json.dumps({"results": results}, indent=1))
    else:
        count = {one: sum(result["outcome"] == one for result in results) for one in ("alarm", "note")}
        click.echo(f"{len(results)} linted: {count['alarm']} with alarms, {count['note']} with notes")
    fatal = {"alarm"} if fail_under == "alarm" else {"alarm", "note"}
    if any(result["outcome"] in fatal for result in results):
        click.get_current_context().exit(1)


def _print_linted(result: dict[str, Any], *, show_all: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    colour = _COLOURS[result["outcome"]]
    package = f" from {result['package']} {result['version']}".rstrip() if result["package"] else ""
    title = f"{result['kind']} {result['name']}{package}: "
    console.print(Text(title) + Text(result["outcome"], style=colour))
    table = Table(show_header=False, box=None, pad_edge=False)
    for check in result["checks"]:
        if show_all or check["outcome"] in ("alarm", "note"):
            name = f"{check['task']}, {check['check']}" if check["task"] else check["check"]
            said = Text(check["says"])
            if check["outcome"] == "alarm" and check["guards"]:
                said += Text(f"\n(guards against: {check['guards']})", style="dim")
            table.add_row(Text(f"  {name}"), Text(check["outcome"], style=_COLOURS[check["outcome"]]), said)
    if table.row_count:
        with contextlib.suppress(BrokenPipeError):
            console.print(table)


@click.command("reward")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key.")
@click.option(
    "--stage", "number", type=click.IntRange(min=1), help="Number of a grpo stage; else all of them."
)
@click.option(
    "--limit", type=click.IntRange(min=2), default=16, show_default=True, help="Cases per data entry."
)
@click.option(
    "--trl", "functions", multiple=True, metavar="FILE.PY:FUNCTION",
    help="Audit a function with TRL's signature in place of the stage's rewards; several are summed.",
)  # fmt: skip
@click.option("--chat", is_flag=True, help="Give functions of --trl lists of messages, not texts.")
@click.option("--rollouts", type=_file, help="A run's rollouts/<stage>.jsonl: also judge its first step.")
@_fail_under
@_json
def audit_reward(
    recipe: Path,
    overrides: tuple[str, ...],
    number: int | None,
    limit: int,
    functions: tuple[str, ...],
    chat: bool,
    rollouts: Path | None,
    fail_under: str,
    as_json: bool,
) -> None:
    """Judge a recipe's rewards over completions of known worth. Needs no model and no GPU."""
    from evidcore.recipe import load

    loaded = load(recipe, overrides)  # a mistake is told before all else is imported

    from evidcore.recipe.check import stage_class
    from evidcore.reward.composer import check_start, most_of
    from evidcore.runs.assembly import Assembly
    from evidcore.runs.context import Context
    from evidcore_plugin_hub.lint.reward_audit import audit_rewards
    from evidcore_plugin_hub.lint.trl_function import read_function

    assembly = Assembly(loaded)
    grpo = stage_class("grpo")
    stages: dict[int, Any] = {
        place: stage for place, stage in enumerate(assembly.recipe.stages, 1) if isinstance(stage, grpo)
    }
    chosen = [place for place in stages if number in (None, place)]
    if not chosen:
        listing = ", ".join(map(str, stages)) or "none"
        raise RecipeError(f"{recipe}: there is no such grpo stage. Numbers of grpo stages: {listing}.")
    found: dict[str, list[Checked]] = {}
    for place in chosen:
        stage, context = stages[place], Context(assembly, assembly.recipe.stage_name(place - 1))
        rewards = stage.rewards(context)
        with contextlib.redirect_stdout(sys.stderr):  # what a reward prints is no result
            if functions:
                rewards = [read_function(one, context.tasks, is_chat=chat) for one in functions]
            checks = audit_rewards(rewards, list(audited_rows(stage, context, limit)))
        if rollouts is not None:
            checks.append(check_start(_first_step(rollouts), most_of(rewards)))
        found[context.where] = checks
    if as_json:
        rows = {name: [dataclasses.asdict(one) for one in checks] for name, checks in found.items()}
        click.echo(json.dumps({"recipe": str(recipe), "stages": rows}, indent=1))
    else:
        for name, checks in found.items():
            _print_audited(name, checks)
    fatal = {"alarm"} if fail_under == "alarm" else {"alarm", "note"}
    if any(one.outcome in fatal for checks in found.values() for one in checks):
        click.get_current_context().exit(1)


def audited_rows(stage: Any, context: Context, limit: int) -> Iterator[Any]:
    """Yield a prompt of each of the first cases of every data entry."""
    from evidcore.prompts.rows import PromptSource, prompt_sets

    for item in prompt_sets(context, stage.data):
        few = dataclasses.replace(item, cases=item.cases[:limit])
        source = PromptSource([few], seed=context.recipe.seed)
        yield from (source[position] for position in range(len(few.cases)))


def _first_step(path: Path) -> list[list[float]]:
    """Return the totals of a run's first answers, by group."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        first = [line for line in lines if line["step"] == lines[0]["step"]]
        totals = [[float(answer["total"]) for answer in line["rollouts"]] for line in first]
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise RecipeError(
            f"{path}: holds no rollouts ({cause!r}). Give a run's rollouts/<stage>.jsonl."
        ) from cause
    if not totals or not all(totals):
        raise RecipeError(f"{path}: holds no rollouts. Give a run's rollouts/<stage>.jsonl.")
    return totals


def _print_audited(name: str, checks: Sequence[Checked]) -> None:
    """Print a stage's checks: of all rewards together, then what single ones are noted for."""
    from rich.console import Console
    from rich.table import Table

    from evidcore_plugin_hub.lint.reward_audit import CHECKS

    console = Console(highlight=False, soft_wrap=True)
    tasks = {one.task for one in checks if one.task}
    table = Table("check", "outcome", "found", box=None, pad_edge=False, title_justify="left")
    table.title = f"{name}, {', '.join(sorted(tasks))}" if tasks else name
    together = [one for one in checks if not one.reward]
    alone = [
        one for one in checks if one.reward and (one.outcome in ("alarm", "note") or one.check not in CHECKS)
    ]
    for one in (*together, *alone):
        whose = f"{one.reward}: {one.check}" if one.reward else one.check
        if len(tasks) > 1:
            whose = f"{one.task}, {whose}"
        colour = _COLOURS[one.outcome]
        table.add_row(whose, f"[{colour}]{one.outcome}[/{colour}]", one.says)
    console.print(table)
    count = {outcome: sum(one.outcome == outcome for one in checks) for outcome in ("alarm", "note")}
    console.print(f"{count['alarm']} alarms, {count['note']} notes", style="red" if count["alarm"] else "")


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


@click.command()
@click.argument("words", nargs=-1)
@click.option("--kind", help="Only plugins with a component of this kind.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="At most so many.")
@_json
def search(words: tuple[str, ...], kind: str | None, limit: int, as_json: bool) -> None:
    """Search the Hub for plugins whose names hold WORDS; their publishers say what they are."""
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
@_json
def info(reference: str, as_json: bool) -> None:
    """Show the card and manifest of a plugin of the Hub as text. Nothing is installed or run."""
    from evidcore_plugin_hub.plugin import manifest, remote

    at = remote.resolve(reference, allow_cached=True)
    texts = {
        path: remote.fetch(at, path, 2 * manifest.MOST_BYTES, allow_cached=True).decode(errors="replace")
        for path in ("README.md", remote.FILE)
    }
    if as_json:
        click.echo(json.dumps({"source": str(at), **texts}, indent=1))
        return
    click.echo(str(at))
    for path, text in texts.items():
        cut = f"\n… cut after {MOST_SHOWN} of {len(text)} characters" if len(text) > MOST_SHOWN else ""
        click.echo(f"\n--- {path}\n{printable(text[:MOST_SHOWN])}{cut}")


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


FUNCTION = '''"""Reward {name!r} of {package} for `trl.GRPOTrainer(reward_funcs=[{function}], …)`.

The data set needs the columns that the task {task!r} holds an answer against, as `letter` and `options`; of
the case, where the reward looks at them, `report` and `findings`. `{{"prompt": …}}` asks as the task does.
"""

from evidcore_plugin_hub.trl_reward import trl_reward

{function} = trl_reward({name!r}, task={task!r}, options={options!r})
'''


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
    from evidcore_plugin_hub.trl_reward import trl_reward

    try:
        table = json.loads(options)
    except ValueError as cause:
        raise RecipeError(
            f"--options: must be a JSON object, got {options!r} ({cause}). Write '{{\"key\": 1}}'."
        ) from cause
    made = trl_reward(name, task=task, options=table)
    place = out or Path(f"{made.__name__}_trl.py")
    if place.exists():
        raise RecipeError(f"{place}: is there already. Remove it, or name another file with --out.")
    text = FUNCTION.format(
        name=name, package=made.reward.package, function=made.__name__, task=task, options=table
    )
    place.write_text(text, encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"file": str(place), "function": made.__name__, "to": trainer}))
    else:
        click.echo(f"{place}: from {place.stem} import {made.__name__}")


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

    from evidcore.runs import open_run
    from evidcore_plugin_hub.export import export_run

    logging.disable_progress_bar()
    written = export_run(open_run(folder), target, form)
    if as_json:
        files = sorted(path.name for path in written.iterdir())
        click.echo(json.dumps({"folder": str(written), "format": form, "files": files}, indent=1))
        return
    click.echo(f"model: {written}\ncard:  {written / 'README.md'}")
    click.echo("Read the card before you pass the model on.")
