"""Supervised fine-tuning on trl's trainer, with a weight for each target token.

The loss is a weighted mean over the target tokens of a whole step: sum(weight x -log p) / sum(weight).
Without a re-weighter trl's own loss is used; weights of one give the same bits. `loss_per = "row"` divides by
the number of rows instead: the mean over rows of each row's weighted sum.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import torch
from torch.nn import functional
from trl import SFTConfig, SFTTrainer

from evidcore.contracts import Reweighter, RolloutStrategy
from evidcore.contracts.stage import EventSink
from evidcore.errors import RecipeError
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSource
from evidcore.prompts.targets import IGNORED, Targets
from evidcore.proof.passes import prove_targets
from evidcore.registry import factory
from evidcore.train.checks import check_start
from evidcore.train.settings import SftSettings
from evidcore.train.trl import stage
from evidcore.train.trl.stage import IndexDataset, StageTrainer
from evidcore.train.trl.timing import timed

WHERE = "stage.sft"
RENAMED = ("loss", "grad_norm", "learning_rate", "entropy")


class WeightedTrainer(StageTrainer, SFTTrainer):  # type: ignore[misc]
    """Trains on gold answers of a stream."""

    settings: SftSettings
    step_part = "optimizer"

    def __init__(
        self,
        model: VolumeVLM,
        processor: VolumeProcessor,
        args: SFTConfig,
        targets: Targets,
        *,
        announce: EventSink,
        settings: SftSettings,
    ) -> None:
        self.targets, self.announce, self.settings = targets, announce, settings
        self._micro_batch = 0
        rows = args.max_steps * args.gradient_accumulation_steps * args.train_batch_size * args.world_size
        super().__init__(
            model=model, args=args, data_collator=targets.batch,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["0"], "images": [[]]}),
            processing_class=processor, peft_config=stage.lora_config(settings),
        )  # fmt: skip
        self.train_dataset = IndexDataset(rows)

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        """Return what a whole step's loss is divided by, of all processes."""
        if not batch_samples or "weights" not in batch_samples[0]:
            return super()._get_num_items_in_batch(batch_samples, device)
        total = torch.stack([self._divisor(batch) for batch in batch_samples]).sum().to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        return total

    @timed("forward_backward")
    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Let trl compute a loss and its gradient, where the pixels are known to count."""
        model.train()  # before the proof: activations are computed again in training mode alone
        self.prove_pixels(prove_targets, self._micro_batch % self.args.gradient_accumulation_steps)
        self._micro_batch += 1
        return super().training_step(model, *args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Weigh each target token's loss; the head computes nothing before the first of them."""
        begin = int((inputs["labels"][:, 1:] != IGNORED).any(0).nonzero()[0])  # trl does so with Triton only
        labels = functional.pad(inputs["labels"][:, begin + 1 :], (0, 1), value=IGNORED)
        given = {**inputs, "skip_positions": begin, "shift_labels": labels}
        if "weights" not in inputs:
            wants_logits = self.label_smoother is not None or return_outputs  # of whole rows
            return super().compute_loss(
                model, inputs if wants_logits else given, return_outputs, num_items_in_batch
            )
        weights = functional.pad(given.pop("weights")[:, begin + 1 :], (0, 1))
        outputs = model(**given, use_cache=False, fused_lm_head=True)
        total = self._divisor(inputs) if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        loss = (-outputs.log_probs * weights.to(outputs.log_probs)).sum() / torch.where(total > 0, total, 1.0)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        counted = outputs.label_mask.sum()
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["entropy"].append((outputs.entropy.detach().sum() / counted).item())
        metrics["mean_token_accuracy"].append((outputs.is_top1.sum() / counted).item())
        return (loss, outputs) if return_outputs else loss

    def _divisor(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weight of a batch's target tokens, or the number of its rows."""
        weights = _weights(batch)
        return weights.sum() if self.settings.loss_per == "token" else weights.new_tensor(len(weights))

    def step_figures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return trl's figures under our names."""
        figures = {name: logs[name] for name in RENAMED if logs.get(name) is not None}
        return {**figures, "token_accuracy": logs["mean_token_accuracy"]}


def _weights(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    weights = batch["weights"][:, 1:]
    return weights * (batch["labels"][:, 1:] != IGNORED)


def sft(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    settings: SftSettings,
    folder: Path,
    *,
    strategy: RolloutStrategy | None = None,
    resume: bool = False,
    **given: Any,
) -> dict[str, float]:
    """Train `model` in place, save it, with its processor, to `folder`, and return figures of the stage.

    Args: those of `make_trainer`, and
        resume: continue from the last complete checkpoint in `folder/steps` where there is one.
    """
    stage.check_sharded(settings.trl, WHERE)
    check_start(model, processor, source, max_new_tokens=0, strategy=strategy, where=WHERE)
    trainer = make_trainer(model, processor, source, settings, folder, strategy=strategy, **given)
    return stage.run_trainer(trainer, model, processor, folder, resume=resume)


def make_trainer(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    settings: SftSettings,
    folder: Path,
    *,
    seed: int,
    announce: EventSink,
    reweighter: Reweighter | None = None,
    reweighter_package: str = "",
    strategy: RolloutStrategy | None = None,
) -> WeightedTrainer:
    """Return the trainer of a stage.

    The tasks' gold answers are the targets. Without a re-weighter each token weighs 1, with a loss per token
    alone; `reweighter_package` is named when it breaks its contract.
    """
    if settings.loss_per == "row" and reweighter is None:
        raise ValueError("trl's own loss is per token: a loss per row needs a re-weighter, such as `uniform`")
    processes = stage.process_count()
    together = settings.rows_per_forward or max(settings.rows_per_step // processes, 1)
    if settings.rows_per_step % (together * processes):
        raise RecipeError(
            f"{WHERE}.rows_per_step: {settings.rows_per_step} rows cannot be dealt to {processes} processes "
            f"of {together} rows per forward pass; take a multiple of {together * processes}."
        )
    owned = stage.stage_arguments(folder, seed, settings) | {
        "per_device_train_batch_size": together,
        "gradient_accumulation_steps": settings.rows_per_step // (together * processes),
        "max_length": None,  # truncation would cut image tokens
        "packing": False,
    }
    model.train_only(settings.train)
    with stage.quiet():
        return WeightedTrainer(
            model, processor, SFTConfig(**stage.arguments(owned, settings.trl)),
            Targets(processor, source, reweighter, reweighter_package, strategy), announce=announce,
            settings=settings,
        )  # fmt: skip


def try_step(settings: SftSettings, where: str) -> None:
    """Take one step over a stand-in; raise RecipeError where a value of the settings is refused."""
    reweighter = factory.build("reweighter", {"use": "uniform"}, given={}, where=where)
    stage.take_one_step(make_trainer, settings, where, reweighter=reweighter)
