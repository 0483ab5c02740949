"""The rollouts of a run, judged by other rewards: whose advantages would have another sign?"""

import dataclasses
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from evidcore_plugin_pages.record import Line

from evidcore.api import Crop, Rollout, TextPart, Unscored, VisualPart
from evidcore.case import Action, Part, Turn
from evidcore.errors import RecipeError, RunError
from evidcore.prompts.rows import PromptSource, Row, prompt_sets
from evidcore.recipe import load
from evidcore.recipe.check import stage_class
from evidcore.reward.composer import EQUAL, RewardComposer
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.folder import open_run, read_lines

_SIDES = ("before", "after")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The answers to one prompt: what they earned, and what they would."""

    step: int
    prompt: str
    task: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def flipped(self) -> int:
        """Return how many answers lay above the group's mean and lie below it now, or the other way."""
        return sum(old * new < 0 for old, new in zip(_sides(self.before), _sides(self.after), strict=True))

    @property
    def best_changed(self) -> bool:
        """Tell whether none of the best answers is among the best now; not where all are equal."""
        best = [
            {place for place, total in enumerate(totals) if max(totals) - total < EQUAL}
            for totals in (self.before, self.after)
        ]
        return best[0].isdisjoint(best[1]) and not _is_dead(self.before) and not _is_dead(self.after)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rescored:
    """A stage's rollouts under other rewards."""

    stage: str
    rewards: tuple[str, ...]
    groups: tuple[Group, ...]
    unscored: Mapping[str, int]  # by reward

    def figures(self) -> dict[str, float]:
        """Return what changed: shares are of answers, and of groups whose answers differ on either side."""
        before, after = ([total for item in self.groups for total in getattr(item, side)] for side in _SIDES)
        live = [group for group in self.groups if not (_is_dead(group.before) and _is_dead(group.after))]
        return {
            "answers": len(before),
            "groups": len(self.groups),
            "mean_before": statistics.fmean(before),
            "mean_after": statistics.fmean(after),
            "flipped": sum(group.flipped for group in self.groups) / len(before),
            "groups_flipped": sum(group.flipped > 0 for group in live) / max(1, len(live)),
            "best_changed": sum(group.best_changed for group in live) / max(1, len(live)),
            "dead_before": sum(_is_dead(group.before) for group in self.groups) / len(self.groups),
            "dead_after": sum(_is_dead(group.after) for group in self.groups) / len(self.groups),
        }


def rescored(folder: Path, rewards: Sequence[str] = (), *, stage: str = "", beside: bool = False) -> Rescored:
    """Judge what a run's answers would have earned.

    Each step's groups are judged together, as in training. Prompts are made again by the run's recipe.

    Args:
        folder: of the run.
        rewards: names of components, or their tables in TOML, in the recipe's order; none: the run's own.
        stage: of the rollouts; empty: the last that has any.
        beside: the run's own rewards are asked too, before these.
    """
    run = open_run(folder)
    known = sorted(path.stem for path in (run.path / "rollouts").glob("*.jsonl"))
    name = stage or (known[-1] if known else "")
    if name not in known:
        raise RunError(f"{folder}: stage {name!r} has no rollouts. Stages with rollouts: {known or 'none'}.")
    context, grpo = _stage(run.path / "resolved.toml", name, rewards, beside=beside)
    judged = grpo.rewards(context)
    if asking := [reward.name for reward in judged if reward.asks_policy]:
        raise RecipeError(f"reward {asking[0]!r} asks the model while it is trained, which is gone by now.")
    lines = read_lines(run.path / "rollouts" / f"{name}.jsonl")
    if not lines:
        raise RunError(f"{folder}: {name} has no rollouts yet.")
    source = PromptSource(prompt_sets(context, grpo.data), seed=context.recipe.seed, volumes=grpo.volumes)
    rows = {}  # of all prompts of the stage: no case is recorded, and rewards need its masks
    for number in range(grpo.steps * grpo.prompts_per_step):
        prompt = source[number].prompt
        rows[prompt.task, prompt.id, json.dumps(dict(prompt.reference), sort_keys=True)] = source[number]
    judge = RewardComposer(judged)
    groups: list[Group] = []
    unscored = dict.fromkeys((reward.name for reward in judged), 0)
    for step, of_step in groupby(lines, key=lambda line: int(line["step"])):
        asked = list(of_step)
        answers = (_rollouts(line, number, rows) for number, line in enumerate(asked))
        judgement = judge([*chain.from_iterable(answers)])
        totals = iter(judgement.totals(judged))
        for reward, verdicts in judgement.verdicts.items():
            unscored[reward] += sum(isinstance(verdict, Unscored) for verdict in verdicts)
        groups += [
            Group(
                step=step, prompt=str(line["prompt_id"]), task=str(line["task"]),
                before=tuple(float(item["total"]) for item in line["rollouts"]),
                after=tuple(next(totals) for _ in line["rollouts"]),
            )
            for line in asked
        ]  # fmt: skip
    return Rescored(stage=name, rewards=tuple(unscored), groups=tuple(groups), unscored=unscored)


def _stage(path: Path, name: str, rewards: Sequence[str], *, beside: bool) -> tuple[Context, Any]:
    """Return a run's grpo stage with other rewards, and what it is built in."""
    recipe = load(path)
    place = next(at for at in range(len(recipe.stages)) if recipe.stage_name(at) == name)
    own: Any = recipe.stages[place]
    if not isinstance(own, stage_class("grpo")):
        raise RunError(f"{path.parent}: {name} is no grpo stage, so nothing was judged in it.")
    if rewards:
        number = sum(type(one) is type(own) for one in recipe.stages[:place])
        tables = ", ".join(
            one if one.lstrip().startswith("{") else f"{{use={json.dumps(one)}}}" for one in rewards
        )
        recipe = load(path, [f"stage.{own.kind}[{number}].reward=[{tables}]"])
        new: Any = recipe.stages[place]
        own = dataclasses.replace(own, reward=(*own.reward, *new.reward)) if beside else new
    return Context(Assembly(recipe), name), own


def _rollouts(line: Line, group: int, rows: Mapping[tuple[str, str, str], Row]) -> Iterator[Rollout]:
    """Yield a line's answers to the question of the recipe that was asked."""
    key = str(line["task"]), str(line["prompt_id"]), json.dumps(line["reference"], sort_keys=True)
    if key not in rows:
        what = f"the question {line['prompt_id']!r} is not asked by the run's recipe today"
        raise RunError(f"{what}: its data or its task has changed. `evid resume` tells what.")
    row = rows[key]
    for item in line["rollouts"]:
        parent = item.get("parent")
        yield Rollout(
            prompt=row.prompt,
            group=group,
            text=item["text"],
            answer=row.task.parse(row.prompt, item["text"]),
            turns=tuple(map(_turn, item["turns"])),
            parent=None if parent is None else (int(parent[0]), int(parent[1])),
        )


def _turn(table: Line) -> Turn:
    """Return a turn as it was judged: what tools said, `<image>` where they showed a crop."""
    first, *texts = str(table["reply"]).split("<image>", len(table["crops"]))
    reply: list[Part] = [TextPart(text=first)]
    for uri, text in zip(table["crops"], texts, strict=True):
        reply += [VisualPart(crop=Crop.parse_uri(uri)), TextPart(text=text)]
    return Turn(
        text=table["text"],
        actions=tuple(Action(**action) for action in table["actions"]),
        reply=tuple(part for part in reply if not isinstance(part, TextPart) or part.text),
    )


def _sides(totals: Sequence[float]) -> list[float]:
    """Return how far each total lies from the mean; 0 where all are equal."""
    apart, mean = not _is_dead(totals), statistics.fmean(totals)
    return [total - mean if apart and abs(total - mean) >= EQUAL else 0.0 for total in totals]


def _is_dead(totals: Sequence[float]) -> bool:
    """Tell whether all answers of a group earned the same, so that it gives no advantage."""
    return max(totals) - min(totals) < EQUAL
