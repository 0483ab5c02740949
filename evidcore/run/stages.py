"""One function per stage kind: take what stands, call the stage, write its result into its folder.

Each writes a checkpoint to `folder/checkpoint` if it trains, answers to `folder/answers.jsonl` if it asks,
and returns what goes to `result.json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from evidcore.audit.policy import PolicyAudit, audit_policy
from evidcore.audit.segmentation import SegmentationAudit, audit_segmentation
from evidcore.case import Case, Prompt
from evidcore.contracts import Reweighter, Scorer, Task
from evidcore.errors import RecipeError
from evidcore.evaluate.choice import evaluate_choice
from evidcore.evaluate.probe import encoder_features, linear_probe
from evidcore.evaluate.reference_lines import reference_lines, training_prompts
from evidcore.evaluate.report import evaluate_report
from evidcore.evaluate.segmentation import evaluate_segmentation
from evidcore.evaluate.thinking import measure_thinking
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import Audit, DataUse, Evaluate, Fit, Grpo, Sft
from evidcore.registry import blame, factory
from evidcore.registry.factory import offer_of
from evidcore.run import model as models
from evidcore.run.measuring import labeler_of, metrics_of, segmenter_of
from evidcore.run.model import Standing
from evidcore.run.parts import Parts
from evidcore.run.record import append
from evidcore.train import fit as fit_stage
from evidcore.train import grpo as grpo_stage
from evidcore.train import sft as sft_stage
from evidcore.train.rows import PromptSource
from evidcore.train.settings import Announce, GrpoSettings, NamedReward, SftSettings

Result = dict[str, Any]


def fit(parts: Parts, standing: Standing, stage: Fit, folder: Path, announce: Announce) -> Result:
    """Train one component by its own `fit`."""
    section, _, name = stage.component.partition(".")
    options = dict(stage.options)
    component: Any
    if stage.component == "model.language":
        component = models.text_fit(parts, stage.data)
        options["shares"] = {use.task: use.share for use in stage.data if use.task}
    elif section == "model":
        component = models.encoder(parts, standing)
    else:
        component = parts.services[name]
    train = [case for use in stage.data for case in parts.cases(use)]
    validation = _validation(parts, stage.data)
    figures = fit_stage.fit(
        component, train, validation, folder / "checkpoint", seed=parts.recipe.seed, announce=announce,
        options=options, where=stage.component,
    )  # fmt: skip
    return {"figures": figures, "rows": []}


def sft(
    parts: Parts, standing: Standing, stage: Sft, folder: Path, announce: Announce, *, resume: bool
) -> Result:
    """Fine-tune on gold answers."""
    model, processor = models.current(parts, standing)
    reweighter: Reweighter = factory.build(
        "reweighter",
        stage.reweighter,
        given={"recipe_folder": parts.recipe.folder},
        where="stage.sft.reweighter",
        services=parts.services,
    )
    source = PromptSource(parts.prompt_sets(stage.data), seed=parts.recipe.seed)
    figures = sft_stage.sft(
        model, processor, source, SftSettings.of(stage), folder / "checkpoint",
        seed=parts.recipe.seed, announce=announce, resume=resume,
        reweighter=reweighter, reweighter_package=_package(reweighter),
    )  # fmt: skip
    return {"figures": figures, "rows": []}


def grpo(
    parts: Parts, standing: Standing, stage: Grpo, folder: Path, announce: Announce, *, resume: bool
) -> Result:
    """Optimise against rewards."""
    model, processor = models.current(parts, standing)
    policy = VLMPolicy(model, processor, seed=parts.recipe.seed)
    rewards, given = [], {"policy": policy, "recipe_folder": parts.recipe.folder}
    for place, table in enumerate(stage.reward):
        where = f"stage.grpo.reward[{place}]"
        reward = factory.build("reward", table, given=given, where=where, services=parts.services)
        name = table["name"] or table["use"].rpartition("/")[2]
        rewards.append(
            NamedReward(
                name=name, reward=reward, weight=table["weight"], gate=table["gate"], package=_package(reward)
            )
        )
    source = PromptSource(parts.prompt_sets(stage.data), seed=parts.recipe.seed, volumes=stage.volumes)
    replay = None
    if stage.replay is not None:
        sets = parts.prompt_sets(stage.replay.data)
        replay = PromptSource(sets, seed=parts.recipe.seed, volumes=stage.volumes)
    figures = grpo_stage.grpo(
        model, processor, source, rewards, GrpoSettings.of(stage), folder / "checkpoint",
        seed=parts.recipe.seed, announce=announce, strategy=models.strategy(parts, stage), resume=resume,
        replay=replay,
    )  # fmt: skip
    return {"figures": figures, "rows": []}


def evaluate(parts: Parts, standing: Standing, stage: Evaluate, folder: Path) -> Result:
    """Answer every question of the data entries, greedily."""
    labeler = labeler_of(parts, stage, "stage.evaluate")
    metrics = metrics_of(parts, stage, labeler, "stage.evaluate")
    segmenter = segmenter_of(parts, stage, "stage.evaluate")
    model, processor = models.current(parts, standing)
    policy = VLMPolicy(model, processor, prompts_per_pass=stage.prompts_per_batch, seed=parts.recipe.seed)
    rescue: Scorer = factory.build(
        "scorer", stage.rescue, given={"recipe_folder": parts.recipe.folder}, where="stage.evaluate.rescue",
        services=parts.services,
    )  # fmt: skip
    rows: list[Result] = []
    lines: dict[str, Any] = {}
    answers = folder / "answers.jsonl"
    asked: list[Prompt] = []
    for use in stage.data:
        prompts, task = parts.prompts(use), parts.tasks[use.task]
        kind = scored_as(task, prompts)
        if kind == "choice":
            choice = evaluate_choice(
                policy, prompts, task, max_new_tokens=stage.max_new_tokens,
                batch_size=stage.prompts_per_batch, rescue=rescue,
            )  # fmt: skip
            blind = reference_lines(prompts, _training(parts, use))
            thought = measure_thinking(metrics, prompts, [answer.text for answer in choice.answers], task)
            rows += choice.rows(lines=blind) + thought.rows(choice.name, choice.clusters)
            lines[use.task] = blind.figures()
            append(answers, thought.beside([answer.line() for answer in choice.answers]))
            asked = asked or prompts
        elif kind == "segmentation":
            segmentation = evaluate_segmentation(
                policy, prompts, task, segmenter, max_new_tokens=stage.max_new_tokens,
                batch_size=stage.prompts_per_batch,
            )  # fmt: skip
            rows += segmentation.rows()
            append(answers, segmentation.lines())
        else:
            report = evaluate_report(
                policy, prompts, task, max_new_tokens=stage.max_new_tokens, labeler=labeler, metrics=metrics,
                batch_size=stage.prompts_per_batch,
            )  # fmt: skip
            rows += report.rows()
            append(answers, report.lines())
    if stage.probe:
        pooled = encoder_features(model.model.encoder, parts.view, model.model.bank)
        use = stage.data[0]
        probe = linear_probe(pooled, parts.split(use.dataset, "train"), parts.cases(use), asked)
        rows += probe.rows()
    return {"rows": rows, "reference_lines": lines}


def audit(parts: Parts, standing: Standing, stage: Audit, folder: Path) -> Result:
    """Ask the same questions over the right, another patient's and blank volumes."""
    model, processor = models.current(parts, standing)
    policy = VLMPolicy(model, processor, prompts_per_pass=stage.prompts_per_batch, seed=parts.recipe.seed)
    rows: list[Result] = []
    lines: dict[str, Any] = {}
    verdicts = {}
    for use in stage.data:
        prompts, task = parts.prompts(use), parts.tasks[use.task]
        settings: dict[str, Any] = {
            "training": _training(parts, use), "max_new_tokens": stage.max_new_tokens,
            "batch_size": stage.prompts_per_batch, "exchanges": stage.exchanges, "seed": parts.recipe.seed,
        }  # fmt: skip
        found: PolicyAudit | SegmentationAudit
        if audited_as(task, prompts) == "segmentation":
            segmenter = segmenter_of(parts, stage, "stage.audit")
            found = audit_segmentation(policy, prompts, task, segmenter, **settings)
            answers = found.answer_lines()
        else:
            found = audit_policy(policy, prompts, task, **settings)
            lines[use.task] = found.lines.figures()
            answers = [answer.line() for answer in found.answers]
        rows += found.rows()
        verdicts[use.task] = found.verdict()
        append(folder / "answers.jsonl", answers)
    return {"rows": rows, "reference_lines": lines, "verdict": verdicts}


def _training(parts: Parts, use: DataUse) -> list[Prompt]:
    """Return the questions about the training cases, from which the blind rules learn."""
    return training_prompts(lambda seed: parts.prompts(use, seed=seed, split="train"))


def _validation(parts: Parts, uses: Sequence[DataUse]) -> list[Case]:
    """Return the validation cases of the data sets in use; each once."""
    datasets = dict.fromkeys(use.dataset for use in uses)
    return [case for name in datasets for case in parts.split(name, "validation")]


def can_be_audited(parts: Parts, use: DataUse) -> bool:
    """Tell whether a data entry asks for choices or segmentations."""
    some = parts.prompts(dataclasses.replace(use, limit=3))
    return scored_as(parts.tasks[use.task], some) != "report"


def audited_as(task: Task, prompts: Sequence[Prompt]) -> Literal["choice", "segmentation"]:
    """Return what an audit compares answers as.

    Raises:
        RecipeError: if there is nothing to compare them by; names the task.
    """
    kind = scored_as(task, prompts)
    if kind == "report":
        raise RecipeError(
            f"task {prompts[0].task!r} ({offer_of(task)}) asks for reports, and an audit compares choices or "
            "segmentations. Audit a task such as 'choice' or 'reasoning-segmentation'."
        )
    return kind


def scored_as(task: Task, prompts: Sequence[Prompt]) -> Literal["choice", "report", "segmentation"]:
    """Return what answers can be scored as.

    Choices have options; a report's gold answer is read as one; that of a segmentation as boxes on a slice,
    beside the names of the masks that answer.

    Raises:
        RecipeError: if they can be scored as none of these; names task and prompt.
    """
    prompt = next((one for one in prompts if not one.reference.get("options")), None)
    if prompt is None:
        return "choice"
    with blame(offer_of(task), f"writing and reading the gold answer of prompt {prompt.id!r}"):
        read = task.parse(prompt, task.gold(prompt)[0])
    if read.report is not None:
        return "report"
    if read.evidence is not None and read.evidence.boxes and prompt.reference.get("masks"):
        return "segmentation"
    raise RecipeError(
        f"task {prompt.task!r} ({offer_of(task)}): prompt {prompt.id!r} has no options, and its gold answer "
        "is read as no report and as no boxes of named masks, so an evaluate stage cannot score it. Evaluate "
        "a task that asks for a choice, a report or a segmentation, such as 'choice', 'report' or "
        "'reasoning-segmentation', and leave this one to sft and grpo."
    )


def _package(component: Any) -> str:
    offer = offer_of(component)
    return f"{offer.package} {offer.version}"
