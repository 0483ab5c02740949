"""`evid audit reward`: does a reward pay for what it should?"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evidcore.errors import RecipeError

if TYPE_CHECKING:
    from evidcore.contracts import Checked
    from evidcore.runs.context import Context

_file = click.Path(path_type=Path, exists=True, dir_okay=False)
_COLOURS = {"fine": "green", "note": "yellow", "alarm": "red", "not applicable": "dim"}


@click.command()
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
@click.option(
    "--fail-under", type=click.Choice(["alarm", "note"]), default="alarm", show_default=True,
    help="Exit with 1 from this outcome on.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reward(
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
            _print(name, checks)
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


def _print(name: str, checks: Sequence[Checked]) -> None:
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
