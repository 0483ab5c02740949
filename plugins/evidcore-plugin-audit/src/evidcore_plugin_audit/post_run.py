"""An audit of a run after it finished, and of answers or models that no run wrote."""

import dataclasses
import json
from typing import Any

from evidcore.api import EvalStage, Policy
from evidcore.compute.processes import pin_threads
from evidcore.contracts.stage import NullSink
from evidcore.errors import RunError
from evidcore.recipe import load
from evidcore.recipe.check import stage_class
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context, StageOutputs
from evidcore.runs.execute import last_asking, outputs_of
from evidcore.runs.folder import RunFolder, append, naming_remedy, write


def audit_run(folder: RunFolder, *, limit: int = 0) -> dict[str, Any]:
    """Audit a run's last model on the questions of its last evaluation; write and return the result.

    `limit` is of cases per data entry; 0: all.
    """
    recipe = load(folder.path / "resolved.toml")
    last = last_asking(tuple(recipe.line.values()))
    if last is None:
        raise RunError(f"{folder.path}: its recipe has no evaluate stage, which asks questions. Add one.")
    assembly, before = Assembly(recipe), outputs_of(folder, recipe, recipe.line)
    before.load_services(assembly)
    arms = [stage.blind_arm for stage in recipe.line.values() if isinstance(stage, stage_class("audit"))]
    stage = auditing(last, limit, blind_arm=arms[-1] if arms else "")
    name = f"{len(recipe.stages) + 1:02d}-audit"
    return write_audit(folder, assembly, stage, name, before=before)


def auditing(stage: EvalStage, limit: int = 0, *, blind_arm: str = "") -> Any:
    """Return an audit of what a stage asks, the stage itself where it is one.

    `limit` is of cases per data entry; 0: as many as the stage asks about.
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
    stage: EvalStage,
    name: str,
    *,
    before: StageOutputs | None = None,
    policy: Policy | None = None,
    **facts: str,
) -> dict[str, Any]:
    """Run an audit stage, and write and return its result.

    A policy, where given, is asked in place of the model whose checkpoints are `before`; `facts` stand beside
    the result.
    """
    pin_threads(assembly.recipe.threads)
    with folder.locked(), naming_remedy(folder):
        work = folder.working(name)
        work.mkdir(parents=True, exist_ok=True)
        (work / "answers.jsonl").unlink(missing_ok=True)
        context = Context(assembly, name, before=before, folder=work, announce=NullSink(), policy=policy)
        result = stage.run(context)
        append(work / "answers.jsonl", result.answers or ())
        (work / "answers.jsonl").replace(folder.path / "answers" / f"{name}.jsonl")
        record = {"stage": name, "kind": "audit", **facts, **result.to_json()}
        write(folder.path / "results" / f"{name}.json", json.dumps(record, indent=1) + "\n")
        work.rmdir()
    return record
