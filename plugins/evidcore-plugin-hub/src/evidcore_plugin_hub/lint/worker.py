"""Lint targets in this process, which somebody's code may end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_testing import check_construction

from evidcore.contracts import Reward, Task
from evidcore.errors import EvidError
from evidcore.prompts.rows import Row
from evidcore.recipe import load
from evidcore.recipe.check import stage_class
from evidcore.registry import LOCK, Offer, card, card_in, find, offers
from evidcore.reward.composer import NamedReward
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore_plugin_hub.commands import audited_rows
from evidcore_plugin_hub.lint.guards import GUARDS
from evidcore_plugin_hub.lint.linting import lint_rewards
from evidcore_plugin_hub.lint.made_cases import made_rows, made_tasks
from evidcore_plugin_hub.lint.result import LintCheck, LintResult
from evidcore_plugin_hub.lint.target import Target, reach
from evidcore_plugin_hub.lint.trl_function import read_function
from evidcore_plugin_hub.trust import pins

CASES = 8  # of each data entry of a recipe


def lint(target: Target) -> LintResult:
    """Lint one target."""
    if target.folder:
        reach(target.folder)
    if target.form == "recipe":
        return _of_recipe(target)
    if target.form == "function":
        tasks, rows, _ = _asked(target.recipe)
        reward = read_function(target.name, tasks, is_chat=target.is_chat)
        return LintResult(
            kind="reward", name=target.name, package=target.package, checks=lint_rewards([reward], rows)
        )
    checks = list(_of_component(target))
    judges = None
    if target.kind == "reward" and all(one.outcome != "alarm" for one in checks):
        tasks, rows, stage_rewards = _asked(target.recipe)
        try:
            rewards = _composed(target, stage_rewards)
        except (EvidError, TypeError) as cause:
            says = f"cannot be built without options ({cause}). Lint it with --recipe RECIPE"
            checks.append(LintCheck(check="asked", outcome="note", says=says[:400]))
        else:
            said = rewards[-1].reward.judges
            judges = None if said is None else sorted(said)
            checks += lint_rewards(rewards, rows)
    return LintResult(
        kind=target.kind, name=target.name, package=target.package, version=target.version, judges=judges,
        checks=checks,
    )  # fmt: skip


def _of_component(target: Target) -> Iterator[LintCheck]:
    """Yield what is asked of every component: it loads, its construction is light, its package has a card."""
    offer = _offer(target)
    try:
        made = offer.load()
    except EvidError as cause:
        yield LintCheck(check="loads", outcome="alarm", says=str(cause)[:400], guards=GUARDS["loads"])
        return
    yield LintCheck(check="loads", outcome="fine", says=f"{target.target} loads", guards=GUARDS["loads"])
    try:
        check_construction(made)
    except AssertionError as broken:
        says = str(broken)[:400]
        yield LintCheck(check="construction", outcome="alarm", says=says, guards=GUARDS["construction"])
    except Exception as cause:  # needs what a recipe or the core gives
        says = f"is not built without a recipe ({type(cause).__name__}: {cause})"[:300]
        yield LintCheck(check="construction", outcome="not applicable", says=says)
    else:
        says = "its construction reads no file and opens no socket"
        yield LintCheck(check="construction", outcome="fine", says=says, guards=GUARDS["construction"])
    yield _card(target)


def _card(target: Target) -> LintCheck:
    if target.folder:
        readme = Path(target.folder) / "README.md"
        held = readme.is_file() and bool(card_in(readme.read_text(encoding="utf-8"), str(readme)))
    else:
        held = bool(card(target.package)) or target.package == "evidcore"
    says = "its package has a card" if held else "its package has no `toml card` block in its README"
    return LintCheck(check="card", outcome="fine" if held else "note", says=says, guards=GUARDS["card"])


def _offer(target: Target) -> Offer:
    return Offer(**{field.name: getattr(target, field.name) for field in dataclasses.fields(Offer)})


def _composed(target: Target, stage_rewards: Sequence[NamedReward]) -> list[NamedReward]:
    """Return a reward as a recipe has it, or as its defaults make it, behind those that it needs."""
    for place, one in enumerate(stage_rewards):
        if _is_of(one.reward, target):
            before = [dataclasses.replace(item, weight=0.0) for item in stage_rewards[:place]]
            return [*before, dataclasses.replace(one, weight=1.0, gate="")]
    reward: Reward = _offer(target).load()()
    known = {one.name for one in offers("reward")}
    needed = [
        NamedReward(name=name, reward=find("reward", name).load()(), weight=0.0)
        for name in reward.needs_earlier
        if name in known
    ]
    package = f"{target.package} {target.version}".strip()
    return [*needed, NamedReward(name=target.name, reward=reward, package=package)]


def _is_of(reward: Reward, target: Target) -> bool:
    module, _, name = target.target.partition(":")
    return type(reward).__module__ == module and type(reward).__name__ == name


def _asked(recipe: str) -> tuple[Mapping[str, Task], Sequence[Row], Sequence[NamedReward]]:
    """Return tasks and prompts, and the rewards of the recipe's first grpo stage."""
    if not recipe:
        tasks = made_tasks()
        return tasks, made_rows(tasks), ()
    tasks_of, rows, rewards = next(_stages(recipe))
    return tasks_of, rows, rewards


def _stages(recipe: str) -> Iterator[tuple[Mapping[str, Task], Sequence[Row], Sequence[NamedReward]]]:
    assembly = Assembly(load(Path(recipe)))
    found = False
    for place, stage in enumerate(assembly.recipe.stages):
        if isinstance(stage, stage_class("grpo")):
            context = Context(assembly, assembly.recipe.stage_name(place))
            found = True
            yield context.tasks, list(audited_rows(stage, context, CASES)), stage.rewards(context)
    if not found:
        raise EvidError(f"{recipe}: has no grpo stage, so there is no reward to lint.")


def _of_recipe(target: Target) -> LintResult:
    checks: list[LintCheck] = []
    for _, rows, rewards in _stages(target.recipe):
        checks += lint_rewards(rewards, rows)
    return LintResult(kind="reward", name=target.name, checks=checks)


class Linter:
    """What a process of its own is asked: to lint one target after the other."""

    def __init__(self, ask: object) -> None:
        """Hold plugins to the lock of the folder that lint was called in."""
        pins.keep(Path(LOCK).resolve())

    def lint(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a target that is given as a table."""
        return lint(Target(**table)).to_json()
