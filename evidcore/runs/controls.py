"""Training controls: what the same steps buy when the reward or the volumes can teach nothing.

For each grpo stage three arms start from what the stage started from, with its seed, steps and order of
data: a random reward, a reward for the format alone, and every case shown over another patient's volumes.
Start, trained model and arms are then measured by the first evaluate stage below. A rise of an arm's
option-log-likelihood accuracy, of bare letters or of whole answers, is not seeing. How often two sets of
answers to the same questions are right is read from lines of `answers/<stage>.jsonl`, in any two ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from evidcore.compute.processes import processes
from evidcore.contracts import Stage
from evidcore.errors import RunError
from evidcore.evaluate.bootstrap import Interval, paired_interval
from evidcore.evaluate.reference_lines import cluster, row
from evidcore.recipe import Recipe
from evidcore.runs.folder import write
from evidcore.runs.model import StageOutputs
from evidcore.runs.record import read_lines

if TYPE_CHECKING:
    from evidcore.runs.execute import Execution


Line = Mapping[str, Any]
Reading = Literal[
    "choice", "lenient_choice", "rescue_choice", "log_likelihood_choice", "verdict_log_likelihood_choice"
]


def correctness(lines: Iterable[Line], reading: Reading = "choice") -> dict[str, tuple[str, float]]:
    """Return cluster and correctness by prompt; a prompt that was asked several times gets the mean.

    Args:
        lines: answers to choice questions.
        reading: which reading of the answer counts.

    Raises:
        ValueError: if a line holds no such reading; names its prompt.
    """
    found: dict[str, tuple[str, list[float]]] = {}
    for line in lines:
        if reading not in line or "answer" not in line:
            raise ValueError(f"the answer to prompt {line.get('prompt_id')!r} holds no {reading!r}")
        owner = cluster(line["patient"], line["case_id"])
        hits = found.setdefault(line["prompt_id"], (owner, []))[1]
        hits.append(float(line[reading] == line["answer"]))
    return {prompt: (patient, sum(hits) / len(hits)) for prompt, (patient, hits) in found.items()}


def change(
    before: Iterable[Line],
    after: Iterable[Line],
    *,
    reading: Reading = "choice",
    before_reading: Reading | None = None,
) -> Interval:
    """Estimate how much more often `after` is right than `before`, over the questions that both answer.

    Args:
        before: answers to choice questions.
        after: answers to the same questions.
        reading: how `after` is read.
        before_reading: how `before` is read, if otherwise; "log_likelihood_choice" sets what a policy saw
            before training against what it says after.

    Raises:
        ValueError: if they answer different questions; tells how many.
    """
    old, new = correctness(before, before_reading or reading), correctness(after, reading)
    if old.keys() != new.keys():
        raise ValueError(
            f"a comparison needs the same questions: {len(old.keys() - new.keys())} are only before, "
            f"{len(new.keys() - old.keys())} only after, {len(old.keys() & new.keys())} by both"
        )
    return paired_interval(
        [right for _, right in new.values()],
        [old[prompt][1] for prompt in new],
        [patient for patient, _ in new.values()],
    )


_CHANGES: Mapping[str, Reading] = {
    "log_likelihood_change": "log_likelihood_choice",
    "verdict_log_likelihood_change": "verdict_log_likelihood_choice",
}


def check_controls(recipe: Recipe) -> None:
    """Refuse a recipe whose controls could not be measured.

    Raises:
        RunError: if it has no grpo stage, or no evaluate stage below one.
    """
    stages = [place for place, stage in recipe.line.items() if stage.controls()]
    if not stages:
        raise RunError(
            f"{recipe.path}: --with-controls needs a grpo stage, and the recipe has none. Leave it out."
        )
    for place in stages:
        if _measure_after(recipe, place) is None:
            raise RunError(
                f"{recipe.path}: --with-controls needs an evaluate stage below "
                f"{recipe.stage_name(place)}. Add one."
            )


def run_controls(run: Execution, started_from: Mapping[int, tuple[StageOutputs, dict[str, str]]]) -> None:
    """Train and measure the arms of each grpo stage; write `results/controls.json`."""
    recipe = run.recipe
    rows: list[dict[str, Any]] = []
    lines: dict[str, Any] = {}
    trained_by = [(place, stage) for place, stage in recipe.line.items() if stage.controls()]
    for place, stage in trained_by:
        measure = _measure_after(recipe, place)
        assert measure is not None  # check_controls has seen it
        name = recipe.stage_name(place)
        prefix = f"{name}, " if len(trained_by) > 1 else ""
        before, upstream = started_from[place]
        trained = run.run_detached(name, stage, before, upstream)
        measured = {
            "start": run.run_detached(f"{name}-start", measure, before, upstream),
            "trained": run.run_detached(
                f"{name}-trained", measure, *run.after_detached(stage, trained, before, upstream)
            ),
        }
        for arm, control in stage.controls().items():
            slug = f"{name}-{arm.replace(' ', '-').replace(chr(39), '')}"
            key = run.run_detached(slug, control, before, upstream)
            measured[arm] = run.run_detached(
                f"{slug}-evaluate", measure, *run.after_detached(control, key, before, upstream)
            )
        if not processes().is_first:
            continue
        answers = {arm: read_lines(run.folder.store / key / "answers.jsonl") for arm, key in measured.items()}
        for arm, key in measured.items():
            result = json.loads((run.folder.store / key / "result.json").read_text(encoding="utf-8"))
            for item in result["rows"]:
                if item.get("headline"):
                    rows.append({**item, "name": f"{prefix}{arm}", "task": item["name"]})
            lines |= result.get("reference_lines") or {}
            if arm != "start":
                rows += _changes(f"{prefix}{arm}", answers["start"], answers[arm])
    if not processes().is_first:
        return
    result = {"stage": "controls", "kind": "controls", "rows": rows, "reference_lines": lines}
    write(run.folder.path / "results" / "controls.json", json.dumps(result, indent=1) + "\n")


def _measure_after(recipe: Recipe, place: int) -> Stage | None:
    """Return the first stage below that measures answers, each given once: no audit."""
    below = (
        stage for at, stage in recipe.line.items() if at > place and stage.measures and not stage.compares
    )
    found = next(below, None)
    return None if found is None else found.bare()


def _changes(name: str, start: list[dict[str, Any]], arm: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how the option-log-likelihood accuracies moved from the start, per task, paired by question."""
    rows = []
    for task in dict.fromkeys(line["task"] for line in start):
        for metric, reading in _CHANGES.items():
            sides = [
                [line for line in side if line["task"] == task and line.get(reading)] for side in (start, arm)
            ]
            if not sides[0]:
                continue
            moved = change(*sides, reading=reading)
            note = f"{reading.removesuffix('_choice').replace('_', ' ')} of options, minus the start's"
            rows.append(row(name, metric, moved, note=note, task=task).to_json())
    return rows
