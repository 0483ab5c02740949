"""Build the GRPO trainer from a stage's settings and run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl import GRPOConfig

from evidcore.contracts import Announce, RolloutStrategy
from evidcore.errors import RecipeError
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe.trl_fields import DEFAULTS, NO_EFFECT
from evidcore.train.checks import check_start
from evidcore.train.judging import Judge
from evidcore.train.rows import PromptSource
from evidcore.train.settings import GrpoSettings, NamedReward
from evidcore.train.trl import stage
from evidcore.train.trl.logprobs import PromptSharing
from evidcore.train.trl.optimizers import OptimizerKind
from evidcore.train.trl.replay import Replay, ReplayTrainer
from evidcore.train.trl.trainer import GroupTrainer

WHERE = "stage.grpo"


def owned_arguments(
    settings: GrpoSettings,
    folder: Path,
    seed: int,
    rates: Mapping[str, float],
    weights: Sequence[float],
    processes: int,
) -> dict[str, Any]:
    """Return what the core sets, by trl's names.

    Raises:
        RecipeError: if groups cannot be kept whole.
    """
    prompts, answers = settings.prompts_per_step, settings.answers_per_prompt
    together = settings.prompts_per_forward or max(prompts // processes, 1)
    if answers < 2:
        raise RecipeError(f"{WHERE}.answers_per_prompt: must be at least 2, got {answers}.")
    if prompts % (together * processes):
        raise RecipeError(
            f"{WHERE}.prompts_per_step: {prompts} prompts cannot be dealt in whole groups to {processes} "
            f"processes of {together} prompts per forward pass; take a multiple of {together * processes}."
        )
    iterations = settings.trl.get("num_iterations", 1)
    if settings.save_every_steps % iterations:
        raise RecipeError(
            f"{WHERE}.save_every_steps: {settings.save_every_steps} steps would save in the middle of "
            f"num_iterations = {iterations} updates on the same answers; take a multiple of {iterations}."
        )
    accumulation = prompts // (together * processes)
    return stage.stage_arguments(folder, seed, settings.steps, settings.save_every_steps, rates) | {
        "per_device_train_batch_size": together * answers,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation,
        "generation_batch_size": None,
        "num_generations": answers,
        "temperature": settings.temperature,
        "max_completion_length": settings.max_new_tokens,
        "reward_weights": list(weights),
        "shuffle_dataset": False,
        "log_completions": False,
        "log_multimodal": False,
    }


def run_grpo(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    rewards: Sequence[NamedReward],
    settings: GrpoSettings,
    folder: Path,
    *,
    seed: int,
    announce: Announce,
    strategy: RolloutStrategy,
    replay: PromptSource | None,
    resume: bool,
) -> dict[str, float]:
    """See `evidcore.train.grpo.grpo`."""
    check_start(model, processor, source, max_new_tokens=settings.max_new_tokens, where=WHERE)
    trainer = make_trainer(
        model, processor, source, rewards, settings, folder, seed=seed, announce=announce,
        strategy=strategy, replay=replay,
    )  # fmt: skip
    try:
        figures = stage.train(trainer, folder, resume=resume)
    finally:
        stage.unwrap(trainer, model)
    stage.finish(trainer, model, processor, folder)
    return figures


def make_trainer(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    rewards: Sequence[NamedReward],
    settings: GrpoSettings,
    folder: Path,
    *,
    seed: int,
    announce: Announce,
    strategy: RolloutStrategy,
    replay: PromptSource | None = None,
    kind: type[GroupTrainer] = GroupTrainer,
    **options: Any,
) -> GroupTrainer:
    """Return the trainer of a stage."""
    rates = stage.check_parts(settings.train, settings.learning_rate, WHERE)
    judge = Judge(rewards, time_limit_s=settings.reward_time_limit_s)
    processes = stage.process_count()
    owned = owned_arguments(settings, folder, seed, rates, [item.weight for item in rewards], processes)
    stage.check_arguments(GRPOConfig, owned, settings.trl, WHERE)
    for key in settings.trl.keys() & NO_EFFECT:
        raise RecipeError(
            f"{WHERE}.trl.{key}: has no effect here: evidcore samples the answers itself; take it out."
        )
    if settings.replay is not None and replay is not None:
        keys = settings.replay
        replayed = Replay(processor, replay, rows_per_step=keys.rows_per_step, weight=keys.weight)
        replayed.check(owned["gradient_accumulation_steps"] * processes, WHERE)
        kind, options = ReplayTrainer, {**options, "replay": replayed}
    model.train_only(settings.train)
    with stage.quiet():
        return kind(
            model,
            processor,
            GRPOConfig(**stage.arguments(owned, {**DEFAULTS["grpo"], **settings.trl})),
            source,
            judge,
            strategy,
            sharing=PromptSharing(settings.share_prompts, settings.answers_per_prompt),
            announce=announce,
            learning_rates=rates,
            optimizer_kind=OptimizerKind(settings.optimizer, settings.momentum),
            peft_config=stage.lora_config(settings.lora, settings.train, WHERE),
            **options,
        )
