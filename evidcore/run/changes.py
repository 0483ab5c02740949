"""What training changed: evaluations that ask the same, compared answer by answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evidcore.contracts import Stage
from evidcore.errors import RunError
from evidcore.evaluate.asking import AskingStage
from evidcore.evaluate.bootstrap import paired_interval
from evidcore.evaluate.reference_lines import cluster, row
from evidcore.recipe import Recipe
from evidcore.run.assembly import Assembly
from evidcore.run.context import Context
from evidcore.run.folder import RunFolder, write
from evidcore.run.record import read_lines

Line = Mapping[str, Any]


def write_changes(folder: RunFolder, assembly: Assembly) -> None:
    """Write `results/changes.json`: each evaluation of the recipe's line minus every earlier one, arms' too.

    Compared are evaluations that ask the same data in the same way, by their headlines, paired by question.
    """
    recipe = assembly.recipe
    rows = [
        item
        for after, before in _pairs(recipe)
        for item in _rows(folder, Context(assembly, recipe.stage_name(after)), after, before)
    ]
    if rows:
        shown = {"stage": "changes", "kind": "changes", "rows": rows}
        write(folder.path / "results" / "changes.json", json.dumps(shown, indent=1) + "\n")


def _pairs(recipe: Recipe) -> Iterator[tuple[int, int]]:
    """Yield the places of two evaluations that ask the same, the later one first."""
    asking = [
        place for place, stage in enumerate(recipe.stages)
        if isinstance(stage, AskingStage) and not stage.compares
    ]  # fmt: skip
    for after in asking:
        for before in asking:
            is_later = before < after and not recipe.stages[after].arm
            if is_later and _asked(recipe.stages[before]) == _asked(recipe.stages[after]):
                yield after, before


def _asked(stage: Stage) -> Sequence[Any]:
    assert isinstance(stage, AskingStage)
    return stage.data, stage.max_new_tokens, stage.options


def _rows(folder: RunFolder, context: Context, after: int, before: int) -> Iterator[dict[str, Any]]:
    stage, name = context.recipe.stages[after], context.recipe.stage_name(before)
    assert isinstance(stage, AskingStage)
    new, old = (
        {(line["task"], line["prompt_id"]): line for line in read_lines(_answers(folder, context, place))}
        for place in (after, before)
    )
    for use in stage.data:
        mine = [key for key in new if key[0] == use.task]
        if missing := [prompt for task, prompt in mine if (task, prompt) not in old]:
            raise RunError(f"{name}: the question {missing[0]!r} was asked by {context.where} alone.")
        values, earlier = ([side[key]["value"] for key in mine] for side in (new, old))
        owners = [cluster(new[key]["patient"], new[key]["case_id"]) for key in mine]
        headline = stage.evaluation(use, context).headline
        note = f"{context.recipe.stage_name(after)} minus {name}"
        yield row(
            use.task, f"{headline}_change", paired_interval(values, earlier, owners), note=note
        ).to_json()


def _answers(folder: RunFolder, context: Context, place: int) -> Any:
    return folder.path / "answers" / f"{context.recipe.stage_name(place)}.jsonl"
