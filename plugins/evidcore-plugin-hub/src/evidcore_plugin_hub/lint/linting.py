"""Lint targets in this process, which somebody's code may end: rewards are tried, others built."""

import dataclasses
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore_testing import check_construction

from evidcore.api import Case, Finding, Report, Reward, Task, VolumeRef, find
from evidcore.cache import plain_file
from evidcore.contracts.judging import Checked
from evidcore.errors import EvidError, RecipeError
from evidcore.prompts.rows import PromptSet, PromptSource, Row, prompt_sets
from evidcore.recipe import Recipe, load
from evidcore.recipe.check import stage_class
from evidcore.registry import LOCK, Offer, card, card_in, offers
from evidcore.reward.composer import NamedReward, check_start, most_of
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore_plugin_hub.lint.paid import PROBES
from evidcore_plugin_hub.lint.reward_audit import audit_rewards
from evidcore_plugin_hub.lint.target import CASES, Target
from evidcore_plugin_hub.trl_reward import read_function
from evidcore_plugin_hub.trust import pins

GUARDS = {
    **{probe.name: probe.guards for probe in PROBES},
    "construction": "gptme #3193: start-up takes 15 s because plugins are imported and built to be listed",
    "loads": "MMEngine #1013: a component that cannot be found or loaded is told without its reason",
    "card": "MedVol-R1's notes: downloads, licences and hardware are not said",
}
FINDINGS = ("emphysema", "lung nodule", "pleural effusion", "cardiomegaly", "atelectasis", "consolidation")


class Linter:
    """What a process of its own is asked: to lint one target after the other."""

    def __init__(self, ask: object) -> None:
        """Hold plugins to the lock of the folder that lint was called in."""
        pins.keep(Path(LOCK).resolve())

    def lint(self, target: Target) -> list[dict[str, Any]]:
        return examined(target)


def examined(target: Target) -> list[dict[str, Any]]:
    """Try a target in this thread and without a limit of time: rewards over each grpo stage of a recipe.

    Raises:
        EvidError: if a recipe, a function or rollouts cannot be read.
    """
    if target.folder:
        sys.path[:0] = [str(Path(target.folder, "src").resolve()), str(Path(target.folder).resolve())]
    own = list(_of_component(target)) if target.offer.target else []
    if target.offer.kind != "reward" or any(one.outcome == "alarm" for one in own):
        return [target.result(_guarded(own))]
    results = []
    for where, tasks, rows, rewards in _stages(target):
        if target.functions:
            rewards = [read_function(place, tasks, is_chat=target.is_chat) for place in target.functions]
        elif own:
            try:
                rewards = _composed(target.offer, rewards)
            except (EvidError, TypeError) as cause:
                says = f"cannot be built without options ({cause}). Lint it with --recipe RECIPE"
                own.append(Checked(check="asked", outcome="note", says=says[:400]))
                return [target.result(_guarded(own))]
        found = audit_rewards(rewards, rows)
        if not target.recipe:
            found = over_made_prompts(found)
        if target.rollouts:
            found.append(check_start(_first_step(Path(target.rollouts)), most_of(rewards)))
        if own:  # what the rewards that it needs do is not its own
            found = [*own, *(one for one in found if one.reward in ("", rewards[-1].name))]
        judges = rewards[-1].reward.judges if own else None
        said = None if judges is None else sorted(judges)
        results.append(target.result(_guarded(found), said, stage=where))
        if own:
            break  # a component is tried where the first stage has it
    return results


def over_made_prompts(found: Sequence[Checked]) -> list[Checked]:
    """Return as notes what made prompts lack, and as not applicable a task where another one is judged."""
    is_judged = any(one.task and one.check not in ("asked", "judged") for one in found)
    result = []
    for one in found:
        if one.outcome == "alarm" and one.check in ("asked", "judged"):
            is_noted = one.check == "asked" or not is_judged
            says = f"{one.says}. Lint it over a recipe with it: --recipe RECIPE"
            one = dataclasses.replace(one, outcome="note" if is_noted else "not applicable", says=says)
        result.append(one)
    return result


def _guarded(checks: Sequence[Checked]) -> list[dict[str, Any]]:
    """Return checks as plain values, with the published failure that each guards against."""
    return [{**vars(one), "guards": GUARDS.get(one.check, "")} for one in checks]


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
        readme = plain_file(Path(target.folder) / "README.md")
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


Stage = tuple[str, Mapping[str, Task], Sequence[Row], Sequence[NamedReward]]


def _stages(target: Target) -> Iterator[Stage]:
    """Yield name, tasks, prompts and rewards of each grpo stage; without a recipe what is made."""
    if not target.recipe:
        yield "", *made_prompts(), ()
        return
    for stage, context in grpo_stages(load(Path(target.recipe), target.overrides)):
        rows = audited_rows(stage, context, target.cases)
        yield context.where, context.tasks, rows, stage.rewards(context)


def _first_step(path: Path) -> list[list[float]]:
    """Return the totals of a run's first answers, by group."""
    try:
        lines = [json.loads(line) for line in plain_file(path).read_text("utf-8").split("\n") if line]
        first = [line for line in lines if line["step"] == lines[0]["step"]]
        totals = [[float(answer["total"]) for answer in line["rollouts"]] for line in first]
        if not totals or not all(totals):
            raise ValueError("a group without answers")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
        what = f"holds no rollouts ({cause!r})"
        raise RecipeError(f"{path}: {what}. Give a run's rollouts/<stage>.jsonl.") from cause
    return totals


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
