"""Build the GRPO trainer from a stage's settings and run it; replay of other tasks.

Replay holds a policy that learns from rewards to what it gave to other rows' answers at the start. A reward
says nothing about tasks that it does not judge, and each step moves them too. The distance from the start is
measured over the whole vocabulary at every token of those tasks' gold answers (distillation from oneself: Li
and Hoiem 2016, Learning without Forgetting, arXiv:1606.09282, section 3). It is 0 at the start, so the gold
answers teach nothing that the model did not give them already: a training control that replays learns no
more than one that does not.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional
from trl import GRPOConfig

from evidcore.contracts import Engine, RolloutStrategy, Workload
from evidcore.contracts.stage import EventSink
from evidcore.errors import RecipeError
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSource
from evidcore.prompts.targets import IGNORED, Targets
from evidcore.registry import factory
from evidcore.reward.composer import NamedReward, RewardComposer
from evidcore.train.checks import check_start
from evidcore.train.settings import GrpoSettings, Replay
from evidcore.train.tiny_model import tiny_model
from evidcore.train.trl import stage
from evidcore.train.trl.logprobs import PromptSharing
from evidcore.train.trl.timing import timed
from evidcore.train.trl.trainer import GroupTrainer


class ReplayTrainer(GroupTrainer):
    """Adds the distance from the start, on the rows that `keys` tell of, to the loss of each pass."""

    needs_start = True

    def __init__(self, *args: Any, keys: Replay, targets: Targets, **options: Any) -> None:
        super().__init__(*args, **options)
        self.keys, self.targets = keys, targets

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Add the weighted divergence; the pixel-flow proof looks at the policy's own loss alone."""
        loss = super()._compute_loss(model, inputs)
        if self.proof is not None or not self.model.training:
            return loss
        divergence = self._divergence(model)
        mean = self.accelerator.reduce(divergence.detach(), "mean").item()
        self._metrics["train"]["replay_kl"].append(mean)
        return loss + self.keys.weight * divergence / self.current_gradient_accumulation_steps

    @timed("replay")
    def _divergence(self, model: Any) -> Float[Tensor, ""]:
        """Return the mean over this pass's rows of KL(start || policy)."""
        passes, processes = self.current_gradient_accumulation_steps, self.accelerator.num_processes
        number = self._step % passes * processes + self.accelerator.process_index
        rows = self.keys.rows_per_step // (passes * processes)
        first = self.state.global_step * self.keys.rows_per_step + number * rows
        batch = self.targets.batch([{"prompt": str(first + index)} for index in range(rows)])
        inputs, is_answer = self.answers_of(batch)
        self.prove_images(inputs, self.targets.given)
        start, beneath = self.ref_model, contextlib.nullcontext()
        if start is None:  # the model as it was at the start is what lies beneath PEFT's additions
            start, beneath = self.model, self.accelerator.unwrap_model(self.model).disable_adapter()
        with torch.no_grad(), beneath:
            wanted = start(**inputs).logits[:, :-1]
        given = model(**inputs).logits[:, :-1]
        return row_divergence(wanted, given, is_answer).mean()

    def answers_of(self, batch: dict[str, Tensor]) -> tuple[dict[str, Any], Bool[Tensor, "row token"]]:
        """Return what the model is given to get the logits of answers alone, and which tokens these are."""
        is_answer = batch.pop("labels")[:, 1:] != IGNORED
        begin = int(is_answer.any(dim=0).nonzero()[0])  # of the first answer; before it no logits are needed
        is_answer = is_answer[:, begin:].to(self.accelerator.device)
        del batch["weights"]
        inputs: dict[str, Any] = {name: value.to(is_answer.device) for name, value in batch.items()}
        inputs |= {"use_cache": False, "logits_to_keep": is_answer.shape[1] + 1}  # the last predicts nothing
        return inputs, is_answer

    def step_figures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return the divergence beside the other figures."""
        return {**super().step_figures(logs), "replay_kl": logs["replay_kl"]}


def row_divergence(
    wanted: Float[Tensor, "row token word"],
    given: Float[Tensor, "row token word"],
    is_answer: Bool[Tensor, "row token"],
) -> Float[Tensor, " row"]:
    """Return each row's mean of KL(wanted || given) over its answer's tokens, in nats, from logits."""
    after, before = (item[is_answer].float().log_softmax(-1) for item in (given, wanted))
    divergence = functional.kl_div(after, before, reduction="none", log_target=True).sum(-1)
    per_token = torch.zeros(is_answer.shape, device=given.device).masked_scatter(is_answer, divergence)
    return per_token.sum(-1) / is_answer.sum(-1)


WHERE = "stage.grpo"


def grpo(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    rewards: Sequence[NamedReward],
    settings: GrpoSettings,
    folder: Path,
    *,
    strategy: RolloutStrategy,
    resume: bool = False,
    measure: Callable[[], dict[str, float]] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Train `model` in place, save it, with its processor, to `folder`, and return figures of the stage.

    Among these are `failed_calls` of each reward where any failed.

    Args: those of `make_trainer`, and
        resume: continue from the last complete checkpoint in `folder/steps` where there is one.
        measure: gives the figures of `settings.evaluate`.
    """
    stage.check_sharded(settings.trl, WHERE)
    most = settings.max_new_tokens
    check_start(model, processor, source, max_new_tokens=most, strategy=strategy, where=WHERE)
    trainer = make_trainer(model, processor, source, rewards, settings, folder, strategy=strategy, **given)
    figures = stage.run_trainer(trainer, model, processor, folder, resume=resume, measure=measure)
    failed = {name: total for name, counts in trainer.failed_calls().items() if (total := sum(counts))}
    return {**figures, "failed_calls": failed} if failed else {**figures}


def make_trainer(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    rewards: Sequence[NamedReward],
    settings: GrpoSettings,
    folder: Path,
    *,
    seed: int,
    announce: EventSink,
    strategy: RolloutStrategy,
    replay: PromptSource | None = None,
    engine: Engine | None = None,
    kind: type[GroupTrainer] = GroupTrainer,
    **options: Any,
) -> GroupTrainer:
    """Return the trainer of a stage.

    The model as it is now is the KL reference where beta is above 0 or rows are replayed. `folder/steps`
    holds what a resume needs, `options` are of the `kind` of trainer.
    """
    work = Workload(text="", limits=settings.limits)
    for says in () if engine is None else engine.refusals(work, strategy):
        raise RecipeError(f"{WHERE}.sampler: {says}")
    judge = RewardComposer(rewards, max_failure_rate=settings.max_failure_rate or 0.0)
    processes = stage.process_count()
    prompts, answers = settings.prompts_per_step, settings.answers_per_prompt
    together = settings.prompts_per_forward or max(prompts // processes, 1)
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
    owned = {
        "per_device_train_batch_size": together * answers, "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation, "generation_batch_size": None, "num_generations": answers,
        "temperature": settings.temperature, "max_completion_length": settings.max_new_tokens,
        "reward_weights": [item.weight for item in rewards], "shuffle_dataset": False,
        "log_completions": False, "log_multimodal": False,
    }  # fmt: skip
    if (keys := settings.replay) is not None and replay is not None:
        if keys.rows_per_step % (passes := accumulation * processes):
            raise RecipeError(
                f"{WHERE}.replay.rows_per_step: {keys.rows_per_step} rows cannot be dealt evenly to the "
                f"{passes} passes of a step, over all processes; take a multiple of {passes}."
            )
        kind, options = ReplayTrainer, {**options, "keys": keys, "targets": Targets(processor, replay)}
    model.train_only(settings.train)
    with stage.quiet():
        return kind(
            model, processor, GRPOConfig(**stage.arguments("grpo", folder, seed, settings, owned)),
            source, judge, strategy, engine=engine,
            sharing=PromptSharing(settings.share_prompts, answers), announce=announce,
            settings=settings, **options,
        )  # fmt: skip


def try_step(settings: GrpoSettings, where: str) -> None:
    """Take one step over a stand-in; raise RecipeError where a value of the settings is refused."""
    strategy = factory.build("rollout", {"use": "plain"}, given={"tools": []}, where=where)
    reward = factory.build("reward", {"use": "random"}, given={}, where=where)
    rewards = [NamedReward(name="random", reward=reward, package="evidcore")]
    replay = None if settings.replay is None else tiny_model()[2]
    short = dataclasses.replace(settings, max_new_tokens=2)
    stage.take_one_step(make_trainer, short, where, rewards=rewards, strategy=strategy, replay=replay)
