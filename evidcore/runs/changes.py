"""What training changed: evaluations that ask the same, compared answer by answer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evidcore.contracts import Row
from evidcore.errors import RunError
from evidcore.evaluate.bootstrap import paired_interval
from evidcore.evaluate.eval_stage import EvalStage
from evidcore.evaluate.reference_lines import cluster
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.folder import RunFolder, read_lines, write_object

Line = Mapping[str, Any]


def write_changes(folder: RunFolder, assembly: Assembly) -> None:
    """Write `results/changes.json`: each evaluation of the recipe's line minus every earlier one, arms' too.

    Compared are evaluations that ask the same data in the same way, by their headlines, paired by question.
    """
    recipe = assembly.recipe
    asking = {
        recipe.stage_name(place): stage
        for place, stage in enumerate(recipe.stages)
        if isinstance(stage, EvalStage) and not stage.traits.compares
    }
    lines = {name: read_lines(folder.path / "answers" / f"{name}.jsonl") for name in asking}
    rows: list[dict[str, Any]] = []
    for number, (after, stage) in enumerate(asking.items()):
        headlines = {use.task: stage.evaluation(use, Context(assembly, after)).headline for use in stage.data}
        for before, earlier in list(asking.items())[:number]:
            if not stage.arm and _asked(stage) == _asked(earlier):
                rows += _rows(headlines, (after, lines[after]), (before, lines[before]))
    if rows:
        result = {"stage": "changes", "kind": "changes", "rows": rows}
        write_object(folder.path / "results" / "changes.json", result)


def _asked(stage: EvalStage) -> tuple[Any, ...]:
    return stage.data, stage.max_new_tokens, stage.options


def _rows(
    headlines: Mapping[str, str], after: tuple[str, Sequence[Line]], before: tuple[str, Sequence[Line]]
) -> Iterator[dict[str, Any]]:
    """Yield the change of each task's headline."""
    note = f"{after[0]} minus {before[0]}"
    new, old = ({(line["task"], line["prompt_id"]): line for line in lines} for _, lines in (after, before))
    for name, headline in headlines.items():
        mine = [key for key in new if key[0] == name]
        if missing := [prompt for task, prompt in mine if (task, prompt) not in old]:
            raise RunError(f"{before[0]}: the question {missing[0]!r} was asked by {after[0]} alone.")
        values, earlier = ([side[key]["value"] for key in mine] for side in (new, old))
        owners = [cluster(new[key]["patient"], new[key]["case_id"]) for key in mine]
        change = paired_interval(values, earlier, owners)
        yield Row.of(name, f"{headline}_change", change, note=note).to_json()
