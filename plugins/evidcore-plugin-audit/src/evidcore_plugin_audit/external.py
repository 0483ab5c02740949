"""Audits of models that no stage here trained: a file of answers, a model's folder, a model on the Hub."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidcore.api import Bridge, Encoder, EvalStage, Policy, find
from evidcore.audit.stage import AuditStage
from evidcore.data import file_hash
from evidcore.errors import RecipeError, RunError
from evidcore.model.language import Pretrained
from evidcore.model.processor import VolumeImageProcessor
from evidcore.model.vlm import VolumeVLMConfig
from evidcore.recipe import Recipe, load
from evidcore.recipe.resolve import stage_table, toml_value
from evidcore.registry.signature import component_class
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import recording_exit, start
from evidcore.runs.context import Context, StageOutputs
from evidcore.runs.folder import RunFolder, sha256
from evidcore.runs.inputs import named_services
from evidcore_plugin_audit.handout import questions_of, read_answers, read_key
from evidcore_plugin_audit.post_run import auditing, write_audit

NAME = "01-audit"


def audit_answers(path: Path, answers: Path, key: Path, root: Path) -> tuple[RunFolder, dict[str, Any]]:
    """Audit a file of answers; write a run folder of the audit alone and return it with the result.

    The questions were prepared from the recipe at `path`; `evid audit prepare` left the `key` behind.
    """
    known = read_key(key)
    policy = read_answers(answers, known)
    _, assembly, stage = audit_alone(load(path, known["overrides"]), known["stage"], int(known["limit"]))
    questions_of(stage, Context(assembly, NAME)).refuse_other_key(known, key)
    return write_alone(assembly, stage, root, f"answers of a file, sha256 {sha256(answers)}", policy=policy)


def audit_model(
    path: Path, name: str, root: Path, overrides: Sequence[str] = (), *, stage: str = "", limit: int = 0
) -> tuple[RunFolder, dict[str, Any]]:
    """Audit a model in place of the recipe's; no stage is run but the audit.

    The recipe at `path` says what is asked, and of what parts a published model is made. `name` is a folder,
    or a name on the Hugging Face Hub with its commit, "owner/name@commit".
    """
    folder = Path(name)
    if not folder.is_dir() and (folder.is_absolute() or name.startswith(".")):
        raise RunError(f"{name}: no such folder. Name one, or a model on the Hub as owner/name@commit.")
    is_own = folder.is_dir() and isinstance(Pretrained(folder=name).vision(), VolumeVLMConfig)
    if not is_own:
        language = dict(zip(("id", "revision"), name.split("@", 1), strict=False))
        table = {"folder": str(folder.resolve())} if folder.is_dir() else language
        overrides = [*overrides, f"model.language={toml_value(table)}"]
    _, assembly, audited = audit_alone(load(path, overrides), stage, limit)
    before = StageOutputs(model=folder.resolve()) if is_own else StageOutputs()
    view = dict(assembly.recipe.model.view)
    if not is_own:
        for part, contract in (("encoder", Encoder), ("bridge", Bridge)):  # else its eyes would be random
            use = getattr(assembly.recipe.model, part)["use"]
            if component_class(find(part, use).load()).load_from is contract.load_from:
                raise RecipeError(
                    f"{path}: model.{part} {use!r} takes no weights from {name}, so it would be "
                    "untrained. Name parts that do, as --set 'model.encoder={use=\"published-vision\"}' "
                    "--set 'model.bridge={use=\"published-tokens\"}'."
                )
    elif (own := dict(VolumeImageProcessor.from_pretrained(folder).view or {})) != view:
        why = f"was trained in the view {own}, and model.view of {path} is {view}"
        raise RecipeError(f"{folder}: {why}. Put its own into the recipe, or give it with --set.")
    audited.check(Context(assembly, NAME))
    asked = f"model {name}"
    if folder.is_dir():
        hashes = "".join(file_hash(file) for file in sorted(folder.glob("*.safetensors"))).encode()
        asked += f", weights {hashlib.blake2b(hashes, digest_size=8).hexdigest()}"
    return write_alone(assembly, audited, root, asked, before=before)


def write_alone(
    assembly: Assembly,
    stage: AuditStage,
    root: Path,
    asked: str,
    *,
    before: StageOutputs | None = None,
    policy: Policy | None = None,
) -> tuple[RunFolder, dict[str, Any]]:
    """Audit into a new run folder."""
    folder = start(assembly.recipe, root, assembly=assembly)
    folder.set_status("running", stage=NAME)
    with recording_exit(folder):
        result = write_audit(folder, assembly, stage, NAME, before=before, policy=policy, asked=asked)
    folder.set_status("finished", message=f"audit of {asked}")
    return folder, result


def audit_alone(recipe: Recipe, stage: str, limit: int) -> tuple[str, Assembly, AuditStage]:
    """Return the name of a recipe's stage, the assembly of a recipe of its audit alone, and that audit.

    `stage` is "05-audit", or its number; empty: the recipe's last audit, else its last evaluation. `limit` is
    of cases per data entry; 0: all.
    """
    names = recipe.stage_names
    asking = [
        (name, item)
        for number, (name, item) in enumerate(zip(names, recipe.stages, strict=True), start=1)
        if isinstance(item, EvalStage) and stage in ("", name, str(number))
    ]
    audits = [pair for pair in asking if isinstance(pair[1], AuditStage)]
    if not asking:
        what = f"stage {stage!r} asks no questions" if stage else "no stage asks questions"
        there = f"there are {', '.join(names)}. Name an audit or evaluate stage, or add one."
        raise RunError(f"{recipe.path}: {what}; {there}")
    result, asked = (audits or asking)[-1]
    audited = auditing(asked, limit)
    tasks = {use.task: recipe.tasks[use.task] for use in audited.data}
    fitted = {item.output for item in recipe.stages if (item.output or "").startswith("service.")}
    for name in named_services(recipe, stage_table(audited), tasks):
        if f"service.{name}" in fitted:
            why = f"{result} needs service {name!r}, which a fit stage trains, and no stage is run"
            raise RecipeError(f"{recipe.path}: {why} for an audit from outside. Name one that needs none.")
    places = {key: value for key, value in recipe.origins.items() if key[:1] != ("stage",)}
    alone = dataclasses.replace(recipe, stages=(audited,), origins=places)
    return result, Assembly(alone), audited
