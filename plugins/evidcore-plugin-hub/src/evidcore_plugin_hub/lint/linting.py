"""Lint targets in this process, which somebody's code may end: rewards are tried, others built."""

import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_testing import check_construction

from evidcore.api import Case, DataError, Finding, Report, Reward, Task, VolumeRef, find
from evidcore.contracts.judging import Checked
from evidcore.errors import ContractError, EvidError, RecipeError
from evidcore.prompts.rows import PromptSet, PromptSource, Row, prompt_sets
from evidcore.recipe import Recipe, load
from evidcore.recipe.check import stage_class
from evidcore.registry import LOCK, Offer, card, card_in, offers
from evidcore.reward.composer import NamedReward
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore_plugin_hub.lint.lint_rules import LINT_RULES, process
from evidcore_plugin_hub.lint.reward_audit import Found, Subject, audit, excused, without_costs
from evidcore_plugin_hub.lint.target import GUARDS, Target
from evidcore_plugin_hub.trl_reward import read_function
from evidcore_plugin_hub.trust import pins

CASES = 8  # made, or of each data entry of a recipe
FINDINGS = ("emphysema", "lung nodule", "pleural effusion", "cardiomegaly", "atelectasis", "consolidation")


class Linter:
    """What a process of its own is asked: to lint one target after the other."""

    def __init__(self, ask: object) -> None:
        """Hold plugins to the lock of the folder that lint was called in."""
        pins.keep(Path(LOCK).resolve())

    def lint(self, target: Target) -> dict[str, Any]:
        """Return the result of a target, with the published failure that each check guards against."""
        if target.folder:
            sys.path[:0] = [str(Path(target.folder, "src").resolve()), str(Path(target.folder).resolve())]
        judges: Sequence[str] | None = None
        if target.form == "recipe":
            checks = [one for _, rows, them in _stages(target.recipe) for one in lint_rewards(them, rows)]
        elif target.form == "function":
            tasks, rows, _ = _asked(target.recipe)
            checks = lint_rewards([read_function(target.offer.name, tasks, is_chat=target.is_chat)], rows)
        else:
            checks = list(_of_component(target))
            if target.offer.kind == "reward" and all(check.outcome != "alarm" for check in checks):
                _, rows, stage_rewards = _asked(target.recipe)
                try:
                    rewards = _composed(target.offer, stage_rewards)
                except (EvidError, TypeError) as cause:
                    says = f"cannot be built without options ({cause}). Lint it with --recipe RECIPE"
                    checks.append(Checked(check="asked", outcome="note", says=says[:400]))
                else:
                    judged = rewards[-1].reward.judges
                    judges = None if judged is None else sorted(judged)
                    checks += lint_rewards(rewards, rows)
        return target.result([{**vars(one), "guards": GUARDS.get(one.check, "")} for one in checks], judges)


def lint_rewards(rewards: Sequence[NamedReward], rows: Sequence[Row]) -> list[Checked]:
    """Try everything on rewards as they are composed, in this thread and without a limit of time.

    Rewards of weight 0 are only asked because others need them.
    """
    asked, left_out = without_costs(rewards)
    found = [dataclasses.replace(one, says=f"{one.reward} {one.says}", reward="") for one in left_out]
    if not any(one.weight for one in asked):
        return found
    tasks = list(dict.fromkeys(row.prompt.task for row in rows))
    for task in tasks:
        found += _of_task(Subject(asked, [row for row in rows if row.prompt.task == task]), task)
    judged = [one for one in found if one.task and one.outcome != "not applicable"]
    if not judged and not any(one.outcome == "alarm" for one in found):
        listing = ", ".join(tasks)
        says = f"judges no answer to the tasks {listing}. Lint it over a recipe with it: --recipe RECIPE"
        found.append(Checked(check="asked", outcome="note", says=says))
    return found


def _of_task(subject: Subject, task: str) -> Iterator[Checked]:
    try:
        first = process(subject)  # before any other call, which may leave something behind too
        is_judged = any(value is not None for one in subject.counted for value in subject.values[one.name])
    except (ContractError, DataError) as cause:
        yield _unasked(cause, task)
        return
    except (ValueError, EvidError) as cause:
        yield Checked(check="asked", task=task, outcome="not applicable", says=str(cause)[:300])
        return
    if not is_judged:
        return
    for name, rule in LINT_RULES.items():
        found = first if rule is process else _tried(rule, subject)
        declared = [one for one in subject.counted if name in one.reward.declared]
        if found is not None and found.outcome == "alarm" and declared:
            found = excused(found, declared, name)
        if found is not None:
            yield Checked(check=name, task=task, **vars(found))
    yield from (one for one in audit(subject, task) if not one.reward or one.check not in GUARDS)


def _tried(rule: Callable[[Subject], Found | None], subject: Subject) -> Found | None:
    try:
        return rule(subject)
    except (EvidError, ValueError) as cause:
        return Found("alarm", str(cause)[:400])


def _unasked(cause: EvidError, task: str) -> Checked:
    """Say why a reward could not be asked: its data are elsewhere, or it breaks its contract."""
    inner: BaseException | None = cause
    while inner is not None:
        if isinstance(inner, DataError | FileNotFoundError):
            says = f"needs scans that made prompts do not have ({inner}). Lint it with --recipe RECIPE"
            return Checked(check="asked", task=task, outcome="note", says=says[:400])
        inner = inner.__cause__
    return Checked(check="contract", task=task, outcome="alarm", says=str(cause)[:400])


def _of_component(target: Target) -> Iterator[Checked]:
    """Yield what is asked of every component: it loads, its construction is light, its package has a card."""
    try:
        made = target.offer.load()
    except EvidError as cause:
        yield Checked(check="loads", outcome="alarm", says=str(cause)[:400])
        return
    yield Checked(check="loads", outcome="fine", says=f"{target.offer.target} loads")
    try:
        check_construction(made)
    except AssertionError as broken:
        yield Checked(check="construction", outcome="alarm", says=str(broken)[:400])
    except Exception as cause:  # needs what a recipe or the core gives
        says = f"is not built without a recipe ({type(cause).__name__}: {cause})"[:300]
        yield Checked(check="construction", outcome="not applicable", says=says)
    else:
        says = "its construction reads no file and opens no socket"
        yield Checked(check="construction", outcome="fine", says=says)
    if target.folder:
        readme = Path(target.folder) / "README.md"
        has_card = readme.is_file() and bool(card_in(readme.read_text(encoding="utf-8"), str(readme)))
    else:
        has_card = bool(card(target.offer.package)) or target.offer.package == "evidcore"
    says = "its package has a card" if has_card else "its package has no `toml card` block in its README"
    yield Checked(check="card", outcome="fine" if has_card else "note", says=says)


def _composed(offer: Offer, stage_rewards: Sequence[NamedReward]) -> list[NamedReward]:
    """Return a reward as a recipe has it, or as its defaults make it, behind those that it needs."""
    for place, one in enumerate(stage_rewards):
        if f"{type(one.reward).__module__}:{type(one.reward).__name__}" == offer.target:
            before = [dataclasses.replace(item, weight=0.0) for item in stage_rewards[:place]]
            return [*before, dataclasses.replace(one, weight=1.0, gate="")]
    reward: Reward = offer.load()()
    known = {row.name for row in offers("reward")}
    needed = [
        NamedReward(name=name, reward=find("reward", name).load()(), weight=0.0)
        for name in reward.requires
        if name in known
    ]
    package = f"{offer.package} {offer.version}".strip()
    return [*needed, NamedReward(name=offer.name, reward=reward, package=package)]


Asked = tuple[Mapping[str, Task], Sequence[Row], Sequence[NamedReward]]


def _asked(recipe: str) -> Asked:
    """Return tasks and prompts, and the rewards of the recipe's first grpo stage."""
    return next(_stages(recipe)) if recipe else (*made_prompts(), ())


def _stages(recipe: str) -> Iterator[Asked]:
    for stage, context in grpo_stages(load(Path(recipe))):
        yield context.tasks, audited_rows(stage, context, CASES), stage.rewards(context)


def grpo_stages(recipe: Recipe) -> list[tuple[Any, Context]]:
    """Return the grpo stages of a recipe, each with its context.

    Raises:
        RecipeError: if it has none.
    """
    assembly = Assembly(recipe)
    result = [
        (stage, Context(assembly, assembly.recipe.stage_name(place)))
        for place, stage in enumerate(assembly.recipe.stages)
        if isinstance(stage, stage_class("grpo"))
    ]
    if not result:
        raise RecipeError(f"{recipe.name}: has no grpo stage, so there is no reward to judge.")
    return result


def audited_rows(stage: Any, context: Context, limit: int) -> list[Row]:
    """Return a prompt of each of the first cases of every data entry."""
    rows = []
    for item in prompt_sets(context, stage.data):
        few = dataclasses.replace(item, cases=item.cases[:limit])
        source = PromptSource([few], seed=context.recipe.seed)
        rows += [source[position] for position in range(len(few.cases))]
    return rows


def made_cases(count: int) -> list[Case]:
    """Return cases without scans: two of six findings are present in each, and its report says so."""
    cases = []
    for number in range(count):
        rng = random.Random(f"lint/{number}")
        sides = {name: rng.choice(("left", "right")) for name in rng.sample(FINDINGS, 2)}
        sentences = [
            f"There is {name} on the {sides[name]} side." if name in sides else f"There is no {name}."
            for name in FINDINGS
        ]
        findings = tuple(
            Finding(name=name, state="present" if name in sides else "absent", side=sides.get(name))  # type: ignore[arg-type]
            for name in FINDINGS
        )
        volumes = (VolumeRef(path=f"/nowhere/scan-{number}.nii.gz"),)  # a reward that reads it needs a recipe
        cases.append(
            Case(
                id=f"case-{number}", patient=f"patient-{number}", volumes=volumes,
                report=Report(text=" ".join(sentences)), findings=findings,
            )
        )  # fmt: skip
    return cases


def made_prompts() -> tuple[dict[str, Task], list[Row]]:
    """Return two of the core's tasks, and prompts of each about made cases."""
    view, rows = find("view", "volume").load()(), []
    tasks = {name: find("task", name).load()() for name in ("choice", "report")}
    for name, task in tasks.items():
        source = PromptSource([PromptSet(name=name, task=task, view=view, cases=made_cases(CASES))], seed=3)
        rows += [source[position] for position in range(CASES)]
    return tasks, rows
