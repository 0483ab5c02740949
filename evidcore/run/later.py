"""What is asked of a run after it finished."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from evidcore.errors import RunError
from evidcore.recipe import Audit, Evaluate, load
from evidcore.run import stages
from evidcore.run.execute import final_standing, load_services
from evidcore.run.folder import RunFolder, naming_full_disk, write
from evidcore.run.parts import build


def last_model(folder: RunFolder) -> Path:
    """Return the folder of the model that a run's last sft or grpo stage wrote.

    Raises:
        RunError: if a stage that trains has not finished, or none trains a whole model.
    """
    model = final_standing(folder).model
    if model is None:
        raise RunError(
            f"{folder.path}: its recipe trains no model that could answer: it has no sft and no grpo stage. "
            "Add one, then `evid run` again."
        )
    return model


def audit_run(folder: RunFolder, *, limit: int = 0) -> dict[str, Any]:
    """Audit a run's last model on the questions of its last evaluation; write and return the result.

    Args:
        folder: a finished run.
        limit: cases per data entry; 0: all.

    Raises:
        RunError: if the run has not finished, or evaluates no questions.
    """
    recipe = load(folder.path / "resolved.toml")
    measured = [stage for stage in recipe.stages if isinstance(stage, Evaluate)]
    if not measured:
        raise RunError(
            f"{folder.path}: its recipe has no evaluate stage, so there are no questions to ask. Add one."
        )
    last = measured[-1]
    parts, standing = build(recipe), final_standing(folder)
    load_services(parts, standing)
    uses = [dataclasses.replace(use, limit=limit or use.limit) for use in last.data]
    asked = tuple(use for use in uses if stages.can_be_audited(parts, use))
    if not asked:
        raise RunError(
            f"{folder.path}: its last evaluation asks for no choices and no segmentations. Evaluate task = "
            "'choice' or 'reasoning-segmentation'."
        )
    stage = Audit(
        data=asked,
        max_new_tokens=last.max_new_tokens,
        prompts_per_batch=last.prompts_per_batch,
        segmenter=last.segmenter,
    )
    name = f"{len(recipe.stages) + 1:02d}-audit"
    with folder.held(), naming_full_disk(folder):
        work = folder.working(name)
        work.mkdir(parents=True, exist_ok=True)
        (work / "answers.jsonl").unlink(missing_ok=True)
        result = {"stage": name, "kind": "audit", **stages.audit(parts, standing, stage, work)}
        (work / "answers.jsonl").replace(folder.path / "answers" / f"{name}.jsonl")
        write(folder.path / "results" / f"{name}.json", json.dumps(result, indent=1) + "\n")
        work.rmdir()
    return result
