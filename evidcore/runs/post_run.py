"""What is asked of a run after it finished: its model, and an audit of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from evidcore.compute.processes import pin_threads
from evidcore.contracts import Policy, Stage
from evidcore.errors import RunError
from evidcore.evaluate.asking import AskingStage
from evidcore.hooks import Announcer
from evidcore.recipe import load
from evidcore.recipe.check import stage_class
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import refuse_changes
from evidcore.runs.context import Context
from evidcore.runs.execute import Execution, outputs_of
from evidcore.runs.folder import RunFolder, naming_full_disk, write
from evidcore.runs.lock import lock_table
from evidcore.runs.model import StageOutputs
from evidcore.runs.record import Recorder, append
from evidcore.train.settings import Silent


def last_model(folder: RunFolder) -> Path:
    """Return the folder of the model that a run's last training stage wrote.

    Raises:
        RunError: if a stage that trains has not finished, or none trains a whole model.
    """
    recipe = load(folder.path / "resolved.toml")
    model = outputs_of(folder, recipe, recipe.line).model
    if model is None:
        raise RunError(
            f"{folder.path}: its recipe trains no model that could answer: it has no sft and no grpo stage. "
            "Add one, then `evid run` again."
        )
    return model


def audit_run(folder: RunFolder, *, limit: int = 0, blind_arm: bool = False) -> dict[str, Any]:
    """Audit a run's last model on the questions of its last evaluation; write and return the result.

    Args:
        folder: a finished run.
        limit: cases per data entry; 0: all.
        blind_arm: first train a policy as the run did, but over blank volumes, and compare with it.

    Raises:
        RunError: if the run has not finished, or evaluates no questions; for a blind arm, if code, data or
            versions changed since, or a stage cannot be trained so.
    """
    recipe = load(folder.path / "resolved.toml")
    last = last_asking(tuple(recipe.line.values()))
    if last is None:
        raise RunError(
            f"{folder.path}: its recipe has no evaluate stage, so there are no questions to ask. Add one."
        )
    assembly, before = Assembly(recipe), outputs_of(folder, recipe, recipe.line)
    before.load_services(assembly)
    stage = auditing(last, limit, blind_arm=blind_arm)
    name = f"{len(recipe.stages) + 1:02d}-audit"
    if blind_arm:
        with folder.held(), naming_full_disk(folder):
            before = _blind_arm(folder, assembly, before)
    return write_audit(folder, assembly, stage, name, before=before)


def auditing(stage: AskingStage, limit: int = 0, *, blind_arm: bool = False) -> Any:
    """Return an audit of what a stage asks, the stage itself where it is one.

    Args:
        stage: asks.
        limit: cases per data entry; 0: as many as the stage asks about.
        blind_arm: whether it compares with a trained one.
    """
    data = tuple(dataclasses.replace(use, limit=limit or use.limit) for use in stage.data)
    audit = stage_class("audit")
    if isinstance(stage, audit):
        return dataclasses.replace(stage, data=data, blind_arm=blind_arm)
    return audit(
        kind="audit", data=data, max_new_tokens=stage.max_new_tokens,
        prompts_per_batch=stage.prompts_per_batch, options=stage.options, blind_arm=blind_arm,
    )  # fmt: skip


def write_audit(
    folder: RunFolder,
    assembly: Assembly,
    stage: AskingStage,
    name: str,
    *,
    before: StageOutputs | None = None,
    policy: Policy | None = None,
    **facts: str,
) -> dict[str, Any]:
    """Run an audit stage, and write and return its result.

    Args:
        folder: of the run.
        assembly: of its recipe.
        stage: what is asked.
        name: of the result's files.
        before: checkpoints of the model that is asked.
        policy: asked in place of that model.
        facts: of what is asked, beside the result.
    """
    pin_threads(assembly.recipe.threads)
    with folder.held(), naming_full_disk(folder):
        work = folder.working(name)
        work.mkdir(parents=True, exist_ok=True)
        (work / "answers.jsonl").unlink(missing_ok=True)
        result = stage.run(
            Context(assembly, name, before=before, folder=work, announce=Silent(), policy=policy)
        )
        append(work / "answers.jsonl", result.answers or ())
        (work / "answers.jsonl").replace(folder.path / "answers" / f"{name}.jsonl")
        shown = {"stage": name, "kind": "audit", **facts, **result.to_json()}
        write(folder.path / "results" / f"{name}.json", json.dumps(shown, indent=1) + "\n")
        work.rmdir()
    return shown


def _blind_arm(folder: RunFolder, assembly: Assembly, before: StageOutputs) -> StageOutputs:
    """Train a policy as the run did, but over blank volumes; return it beside the run's outputs."""
    recipe = assembly.recipe
    if before.model is None:
        raise RunError(f"{folder.path}: its recipe trains no policy, so none can be trained alike.")
    lock = lock_table(recipe, assembly.datasets)
    refuse_changes(folder, lock)
    results = [folder.path / "results" / f"{name}.json" for name in recipe.stage_names]
    keys = [json.loads(path.read_text(encoding="utf-8"))["inputs"] for path in results]
    announcer = Announcer.from_names([Recorder(folder)], recipe.observers)
    execution = Execution(folder, assembly, {**lock, "run": folder.lock()["run"]}, announcer)
    execution.before, status = before, folder.status()
    try:
        found, _ = execution.with_blind_arm(keys)
    finally:  # the run itself is as finished as it was
        folder.set_status("finished", message=status.get("message", ""))
    return found


def last_asking(stages: tuple[Stage, ...]) -> AskingStage | None:
    """Return the last stage that evaluates answers, None where there is none."""
    found = [stage for stage in stages if isinstance(stage, AskingStage) and not stage.compares]
    return found[-1] if found else None
