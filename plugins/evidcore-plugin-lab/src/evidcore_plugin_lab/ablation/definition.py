"""Read an ablation: which recipe is varied, by which overrides, over which seeds, and what is compared."""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, MinLen

from evidcore.errors import RecipeError, did_you_mean
from evidcore.recipe import Recipe, load
from evidcore.recipe.check import table_problems
from evidcore.recipe.lines import key_lines, line_of
from evidcore.recipe.load import read_toml, refuse
from evidcore.registry.factory import show

Overrides = tuple[str, ...]  # what --set takes: "stage.grpo.steps=3"
Key = tuple[str | int, ...]
JOIN = "+"  # between the levels in the name of an arm
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One headline figure: a row of `results/<stage>.json`."""

    stage: str  # as in the run folder: "06-evaluate"
    name: str  # the row's name; mostly a task's
    metric: str
    label: str = ""  # heading of its column; empty: name and metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed before the runs: an arm's figure is above another's."""

    arm: str
    beats: str
    metric: str  # the label of one of `metrics`, or its `metric`
    by: float = 0.0  # more than so much, as results hold it: 0.2 are 20 points of a rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationKeys:
    """The keys of an ablation's file."""

    schema: Literal[1]
    name: str
    recipe: str  # path from the file's own folder
    about: str = ""  # what it asks; the title of the tables
    seeds: tuple[Annotated[int, Ge(0), Le(2**31 - 1)], ...]
    seed_keys: tuple[str, ...] = ("seed",)  # keys of the recipe that each seed sets
    overrides: Overrides = ()  # common to all arms
    arm: Mapping[str, Overrides] = dataclasses.field(default_factory=dict)
    factor: Mapping[str, Mapping[str, Overrides]] = dataclasses.field(default_factory=dict)
    reference: str  # the arm that the others are compared with
    metrics: Annotated[tuple[Metric, ...], MinLen(1)]
    claim: tuple[Claim, ...] = ()  # committed with this file, so before the runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One variant of the recipe."""

    name: str
    overrides: Overrides
    levels: Mapping[str, str] = dataclasses.field(default_factory=dict)  # by factor, where there are factors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ablation(AblationKeys):
    """An ablation, read and checked: every arm's recipe loads."""

    path: Path
    text: str

    @property
    def recipe_path(self) -> Path:
        return Path(os.path.normpath(self.path.parent / self.recipe))

    @functools.cached_property
    def recipe_name(self) -> str:
        return load(self.recipe_path).name

    @functools.cached_property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(_arms(self.arm, self.factor))

    def metric_of(self, claim: Claim) -> Metric:
        """Return the metric that a claim is about."""
        return next(item for item in self.metrics if claim.metric in (item.label, item.metric))

    def cell_overrides(self, arm: str, seed: int) -> Overrides:
        """Return what `--set` would be given for one cell."""
        variant = next(item for item in self.arms if item.name == arm)
        return (*self.overrides, *variant.overrides, *(f"{key}={seed}" for key in self.seed_keys))

    def cell_recipe(self, arm: str, seed: int) -> Recipe:
        return load(self.recipe_path, self.cell_overrides(arm, seed))


def load_ablation(path: str | Path) -> Ablation:
    """Read and check an ablation. Imports the components that its recipe and its arms name."""
    path = Path(path)
    text, raw = read_toml(path)
    lines = key_lines(text)

    def say(mistakes: Iterable[tuple[Key, str]]) -> None:
        listed = []
        for key, mistake in mistakes:
            line, section = line_of(lines, key), show(key).lstrip(".") or "ablation"
            listed.append((line, f"line {line}, {section}: {mistake}"))
        refuse(path, listed)

    wrong = [(problem.key, problem.text) for problem in table_problems(AblationKeys, raw)]
    say(wrong or _disagreements(raw))
    metrics = tuple(Metric(**item) for item in raw["metrics"])
    claims = tuple(Claim(**item) for item in raw.get("claim", ()))
    ablation = Ablation(**{**raw, "metrics": metrics, "claim": claims, "path": path, "text": text})
    say(_recipes(ablation))
    return ablation


def _arms(arms: Mapping[str, Overrides], factors: Mapping[str, Mapping[str, Overrides]]) -> Iterator[Arm]:
    """Yield the arms as they are written, or the product of the factors; the last factor changes fastest."""
    for name, overrides in arms.items():
        yield Arm(name=name, overrides=tuple(overrides))
    for levels in itertools.product(*factors.values()) if factors else ():
        chosen = dict(zip(factors, levels, strict=True))
        overrides = tuple(item for factor, level in chosen.items() for item in factors[factor][level])
        yield Arm(name=JOIN.join(levels), overrides=overrides, levels=chosen)


def _disagreements(raw: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Yield what the tables say against each other; their types were checked."""
    if not raw["seeds"]:
        yield ("seeds",), "must hold at least one seed, got []."
    for index, seed in enumerate(raw["seeds"]):
        if seed in raw["seeds"][:index]:
            yield ("seeds", index), f"names seed {seed!r} twice. Leave one out."
    arms, factors = raw.get("arm", {}), raw.get("factor", {})
    named: dict[Key, str] = {("name",): raw["name"], **{("arm", name): name for name in arms}}
    for factor, levels in factors.items():
        if len(levels) != 2:
            text = f"must have two levels, got {len(levels)} ({', '.join(levels) or 'none'})."
            yield ("factor", factor), f"{text} Write more than two as arms: [arm] name = [overrides]."
        named |= {("factor", factor, level): level for level in levels}
    for key, name in named.items():
        if not _NAME.fullmatch(name):
            rule = "must be letters, digits, '_', '-' or '.', since a folder is called so"
            yield key, f"{rule}, got {name!r}."
    if bool(arms) == bool(factors):
        given = "both" if arms else "neither"
        yield (), f"must have either arms ([arm]) or factors ([factor.<name>]), got {given}."
        return
    names = [arm.name for arm in _arms(arms, factors)]
    if raw["reference"] not in names:
        hint = did_you_mean(raw["reference"], names)
        text = f"must be an arm, got {raw['reference']!r}.{hint} Arms: {', '.join(names)}."
        yield ("reference",), text
    for index, claim in enumerate(raw.get("claim", ())):
        for side in ("arm", "beats"):
            if claim[side] not in names:
                text = f"must be an arm, got {claim[side]!r}.{did_you_mean(claim[side], names)}"
                yield ("claim", index, side), f"{text} Arms: {', '.join(names)}."
        if claim["arm"] == claim["beats"]:
            text = f"must be another arm than {claim['arm']!r}, which beats itself never."
            yield ("claim", index, "beats"), text
        labels = [name for item in raw["metrics"] for name in {item.get("label", ""), item["metric"]} if name]
        if labels.count(claim["metric"]) != 1:
            what = "is named by several of `metrics`" if claim["metric"] in labels else "is none of `metrics`"
            hint = did_you_mean(claim["metric"], labels)
            listing = ", ".join(sorted(name for name in labels if labels.count(name) == 1))
            text = f"{claim['metric']!r} {what}.{hint} Name one by: {listing}."
            yield ("claim", index, "metric"), text


def _recipes(ablation: Ablation) -> Iterator[tuple[Key, str]]:
    """Yield what is wrong with the recipes that the arms make."""
    seeds = tuple(f"{key}={ablation.seeds[0]}" for key in ablation.seed_keys)
    for common, overrides in {"overrides": (), "seed_keys": seeds}.items():
        if isinstance(problem := _recipe(ablation, (*ablation.overrides, *overrides)), str):
            yield (common,), problem
            return
    recipes: dict[str, Recipe] = {}
    for arm in ablation.arms:
        key: Key = ("factor",) if arm.levels else ("arm", arm.name)
        what = "" if not arm.levels else f"arm {arm.name}: "
        recipe = _recipe(ablation, ablation.cell_overrides(arm.name, ablation.seeds[0]))
        if isinstance(recipe, str):
            yield key, f"{what}{recipe}"
            continue
        twin = next((name for name, other in recipes.items() if other == recipe), None)
        if twin is not None:
            yield key, f"{what}makes the same recipe as arm {twin!r}, so there is nothing to compare."
        recipes[arm.name] = recipe
        if arm.name != ablation.reference:
            continue
        known = [recipe.stage_name(at) for at, stage in enumerate(recipe.stages) if stage.traits.measures]
        for index, metric in enumerate(ablation.metrics):
            if metric.stage not in known:
                hint = did_you_mean(metric.stage, known)
                text = f"must be a stage that measures, got {metric.stage!r}.{hint}"
                yield ("metrics", index, "stage"), f"{text} This recipe has: {', '.join(known) or 'none'}."


def _recipe(ablation: Ablation, overrides: Overrides) -> Recipe | str:
    """Return the recipe that overrides make, or what it says against them."""
    try:
        return load(ablation.recipe_path, overrides)
    except RecipeError as cause:
        return f"the recipe refuses it: {cause}".replace("\n", "\n  ")
