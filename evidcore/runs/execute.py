"""Go through a recipe's stages, one after another, using those again whose inputs are unchanged.

Order of events for a stage: its inputs are hashed, which are all that its result depends on; a stage folder
of that hash is used as it is; otherwise the stage writes into the run's `working/` folder, its inputs first,
which becomes the stage folder in one move. Then the run links to it. What a killed process left in `working/`
is gone on with where it had the same inputs; else the stage starts anew.
"""

import contextlib
import dataclasses
import gc
import json
import logging
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import set_seed

from evidcore.cache import publish
from evidcore.compute.processes import processes
from evidcore.contracts import Stage
from evidcore.errors import RunError
from evidcore.evaluate.eval_stage import EvalStage
from evidcore.hooks import Announcer
from evidcore.model import step_graph
from evidcore.recipe import Recipe, load
from evidcore.registry import watch
from evidcore.runs.assembly import Assembly
from evidcore.runs.changes import write_changes
from evidcore.runs.context import Context, StageOutputs
from evidcore.runs.fitted import Fitted
from evidcore.runs.folder import (
    RunFolder,
    StageEvents,
    append,
    difference,
    link,
    rewrite,
    write,
    write_object,
)
from evidcore.runs.inputs import INPUTS, after, as_json, hashed_inputs, inputs_hash
from evidcore.runs.read import lines as read_lines
from evidcore.runs.read import read_object, refuse_moved
from evidcore.runs.shared_policy import serve, worker_group

StageState = tuple[StageOutputs, dict[str, str]]  # checkpoints, and the hashes of the stages that wrote them
log = logging.getLogger(__name__)


class Execution:
    """One pass over a recipe's stages."""

    def __init__(
        self, folder: RunFolder, assembly: Assembly, lock: dict[str, Any], announcer: Announcer
    ) -> None:
        self.folder, self.assembly, self.lock, self.announcer = folder, assembly, lock, announcer
        self.recipe = assembly.recipe
        self.salt = folder.path.name if lock["run"]["fresh"] else ""
        self.before = StageOutputs()
        self.upstream: dict[str, str] = {}
        self.fitted = Fitted(None if self.salt else self.recipe.fitted_folder, self.recipe.origins)

    def all(self) -> None:
        """Run every stage: those of an arm from where the arm stands, which starts where the recipe stood."""
        arms: dict[str, StageState] = {}
        line: StageState = (StageOutputs(), {})
        for index, stage in enumerate(self.recipe.stages):
            outputs, upstream = arms.get(stage.arm, line)
            models = {name: arm.model for name, (arm, _) in arms.items() if arm.model is not None}
            self.before = dataclasses.replace(outputs, arms=models)
            self.upstream = {**upstream, **{f"arm.{name}": arms[name][1]["model"] for name in models}}
            key = self.run_stage(self.recipe.stage_name(index), stage)
            state = outputs.after(stage, self.folder.store / key / "checkpoint"), after(stage, key, upstream)
            if stage.arm:
                arms[stage.arm] = state
            else:
                line = state
                line[0].load_services(self.assembly)
        if processes().is_first:
            write_changes(self.folder, self.assembly)

    def run_stage(self, name: str, stage: Stage) -> str:
        """Run one stage, or take it from the store; show it in the run folder and return its hash."""
        inputs = hashed_inputs(self.assembly, stage, self.lock, self.upstream)
        key = inputs_hash(inputs, self.salt)
        stored, is_first = self.folder.store / key, processes().is_first
        if is_first:
            self.fitted.restore(inputs, stored)
        if processes().share(not stored.is_dir()):
            self._compute(name, stage, stored, inputs)
            processes().wait()
        if not is_first:
            return key
        root = self.folder.path
        self.folder.set_status("running", stage=name, message=f"finished, in {stored}")
        result = read_object(stored / "result.json")
        own_name = result["stage"]  # of the run that computed it, where the stage may have another number
        if not (root / "results" / f"{name}.json").is_file():
            known = {line["stage"] for line in read_lines(root / "metrics.jsonl")}
            lines = () if name in known else read_lines(stored / "metrics.jsonl")
            append(root / "metrics.jsonl", [{**line, "stage": name, "reused": True} for line in lines])
        record = {**result, "stage": name, "inputs": stored.name}
        write_object(root / "results" / f"{name}.json", record)
        if (stored / "checkpoint").is_dir():
            link(stored / "checkpoint", root / "checkpoints" / name)
        for kind in ("rollouts", "answers"):
            source, target = stored / f"{kind}.jsonl", root / kind / f"{name}.jsonl"
            if source.is_file() and own_name == name:
                link(source, target)
            elif source.is_file():
                target.unlink(missing_ok=True)
                shutil.copyfile(source, target)
                rewrite(target, lambda line: {**line, "stage": name} if "stage" in line else line)
        self.announcer.stage_finished(name, stored, {**result, "stage": name})
        return key

    def _compute(self, name: str, stage: Stage, stored: Path, inputs: dict[str, Any]) -> None:
        """Run a stage in its working folder: training in all processes, else in the first, helped by them.

        The working folder becomes the stage folder in one move, at the end.
        """
        work, is_first = self.folder.working(name), processes().is_first
        resume = processes().share(is_first and _can_go_on(work, inputs))
        announce = StageEvents(self.announcer, name)
        context = Context(
            self.assembly, name, before=self.before, folder=work, announce=announce, resume=resume
        )
        # the models of the stages before are let go of, else a stage needs memory for two
        trained = self.before.trained_by is not None
        self.assembly.policy.bind(context.local_policy if trained else None)
        self.assembly.start_policy.close()
        step_graph.forget()
        gc.collect()  # a trainer and its model hold each other
        if is_first:
            work.mkdir(parents=True, exist_ok=True)
            write(work / INPUTS, as_json(inputs))
            (work / "answers.jsonl").unlink(missing_ok=True)  # of a stage that was cut short
            self.folder.set_status("running", stage=name)
            steps = stage.workload().steps
            self.announcer.stage_started(name, work, steps, len(self.recipe.stages))
        set_seed(self.recipe.seed)  # a stage draws the same whatever ran before it in this process
        if not stage.traits.is_distributed and not is_first:
            serve(context.local_policy)
            return
        start_s = time.monotonic()
        alone = contextlib.nullcontext() if stage.traits.is_distributed else worker_group()
        with alone, isolation_ended():
            result = stage.run(context)
        if not is_first:
            return
        shutil.rmtree(work / "checkpoint" / "steps", ignore_errors=True)
        lines = [line for line in read_lines(self.folder.path / "metrics.jsonl") if line["stage"] == name]
        (work / "metrics.jsonl").unlink(missing_ok=True)
        append(work / "metrics.jsonl", lines)
        rollouts = self.folder.path / "rollouts" / f"{name}.jsonl"
        if rollouts.is_file() and not rollouts.is_symlink():
            shutil.copyfile(rollouts, work / "rollouts.jsonl")
        if result.answers is not None:
            append(work / "answers.jsonl", result.answers)
        took_s = None if resume else time.monotonic() - start_s
        record = {"stage": name, "kind": stage.kind, "took_s": took_s, **result.to_json()}
        write_object(work / "result.json", record)
        stored.parent.mkdir(exist_ok=True)
        publish(work, stored)  # another run of the recipe may have finished the same stage first


def _can_go_on(work: Path, inputs: dict[str, Any]) -> bool:
    """Tell whether what a killed process left has these inputs; else clear it away, and say so."""
    if not work.is_dir():
        return False
    before = read_object(work / INPUTS)
    changes = difference(before, json.loads(as_json(inputs)))
    if not changes:
        return True
    listing = "; ".join(changes[:3]) + ("; …" if len(changes) > 3 else "") if before else "unknown"
    log.warning("%s: begun with other inputs (%s), so the stage starts anew", work, listing)
    shutil.rmtree(work)
    return False


def isolation_ended() -> contextlib.AbstractContextManager[None]:
    """End the processes of isolated components behind it; one that is asked again starts another."""
    isolation = watch("isolation")
    return contextlib.nullcontext() if isolation is None else isolation.workers_ended()


def outputs_of(folder: RunFolder, recipe: Recipe, stages: Mapping[int, Stage]) -> StageOutputs:
    """Return the checkpoints that finished stages lead to; `recipe.line` are those of the run's model."""
    result = StageOutputs()
    arms = {}
    for index, stage in enumerate(recipe.stages):
        name = recipe.stage_name(index)
        checkpoint = folder.path / "checkpoints" / name
        if stage.arm and stage.output == "model" and checkpoint.exists():
            arms[stage.arm] = checkpoint.resolve()
        if index in stages and stage.output is not None:
            refuse_moved(folder.path)
            if not checkpoint.exists():
                raise RunError(f"{folder.path}: {name} has not finished. `evid resume {folder.path}`.")
            result = result.after(stage, checkpoint.resolve())
    return dataclasses.replace(result, arms=arms)


def last_model(folder: RunFolder) -> Path:
    """Return the folder of the model that a run's last training stage wrote."""
    recipe = load(folder.path / "resolved.toml")
    model = outputs_of(folder, recipe, recipe.line).model
    if model is None:
        why = "its recipe trains no model that could answer: it has no sft and no grpo stage"
        raise RunError(f"{folder.path}: {why}. Add one, then `evid run` again.")
    return model


def last_asking(stages: tuple[Stage, ...]) -> EvalStage | None:
    """Return the last stage that evaluates answers, None where there is none."""
    result = [stage for stage in stages if isinstance(stage, EvalStage) and not stage.traits.compares]
    return result[-1] if result else None
