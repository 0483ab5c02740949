"""Supervised fine-tuning on trl's trainer, with a weight for each target token.

The loss is a weighted mean over the target tokens of a whole step: sum(weight x -log p) / sum(weight).
Weights of one give the bits of trl's own loss. `loss_per = "row"` divides by the number of rows instead: the
mean over rows of each row's weighted sum.

With `questions_per_volume` so many rows in turn are of one volume. What they begin with alike is computed
once, and each question sees it and itself alone: loss and gradient are those of rows apart.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import torch
from torch.nn import functional
from trl import SFTConfig, SFTTrainer

from evidcore.contracts import Reweighter, RolloutStrategy
from evidcore.contracts.stage import EventSink
from evidcore.errors import RecipeError
from evidcore.model.packed_attention import pack_rows, packing_blocker
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSource
from evidcore.prompts.targets import IGNORED, Targets
from evidcore.proof.passes import prove_targets
from evidcore.registry import Offer
from evidcore.train.checks import check_start
from evidcore.train.settings import SftSettings
from evidcore.train.trl import stage
from evidcore.train.trl.stage import IndexDataset, StageTrainer
from evidcore.train.trl.timing import timed

_tell_once = functools.cache(logging.getLogger(__name__).warning)
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
            processing_class=processor, peft_config=stage.lora_config(settings, model),
        )  # fmt: skip
        self.train_dataset = IndexDataset(rows)

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        """Return what a whole step's loss is divided by, of all processes."""
        total = torch.as_tensor(sum(map(self._divisor, batch_samples)), device=device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            total = self.accelerator.gather(total).sum()
        return total

    @timed("forward_backward")
    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Let trl compute a loss and its gradient, where the pixels are known to count."""
        model.train()  # before the proof: activations are computed again in training mode alone
        self.prove_pixels(prove_targets, self._micro_batch % self.args.gradient_accumulation_steps)
        self._micro_batch += 1
        self.prove_images(inputs, self.targets.given)
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Weigh each target token's loss; the head computes nothing before the first of them."""
        packed = self._packed(inputs) if self.settings.questions_per_volume > 1 else None
        given, weights = packed or _apart(inputs)
        outputs = model(**{**given, "use_cache": False}, fused_lm_head=True)
        total = self._divisor(inputs) if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        loss = (-outputs.log_probs * weights.to(outputs.log_probs)).sum() / torch.where(total > 0, total, 1.0)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        counted = outputs.label_mask.sum()
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["entropy"].append((outputs.entropy.detach().sum() / counted).item())
        metrics["mean_token_accuracy"].append((outputs.is_top1.sum() / counted).item())
        return (loss, outputs) if return_outputs else loss

    def _packed(self, rows: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], torch.Tensor] | None:
        """Return what the model is given, a row a volume, and the weights; None where rows stay apart."""
        vlm, ids, pixels = self.vlm, rows["input_ids"], rows.get("pixel_values")
        many, image = self.settings.questions_per_volume, vlm.config.image_token_id
        packed, weights = pack_rows(rows, vlm.model.positions(ids, rows["attention_mask"], pixels), many)
        skip, labels = packed.layout.skip, packed.labels.masked_fill(weights == 0, IGNORED)
        order = (labels == IGNORED).byte().argsort(dim=1, stable=True)
        targets = order[:, : max(int((labels != IGNORED).sum(1).max()), 1)]  # the head is dear
        labels, weights = (item.take_along_dim(targets, 1) for item in (labels, weights))
        given = {**packed.inputs(vlm), "labels": labels, "shift_labels": labels}
        given |= {"skip_positions": skip, "targets": targets}
        if pixels is not None:
            tokens = torch.tensor(vlm.model.image_tokens(pixels)).cumsum(0)
            ends = torch.searchsorted(tokens, (ids == image).sum(1).cumsum(0).cpu(), right=True).tolist()
            images = [pixels[start:end] for start, end in itertools.pairwise([0, *ends])]
            is_late = bool((packed.input_ids[:, skip:] == image).any())
            if is_late or not all(torch.equal(images[n - n % many], item) for n, item in enumerate(images)):
                _tell_once("computed row by row: not all rows of a volume begin with the same images")
                return None
            given["pixel_values"] = torch.cat(images[::many])
        return given, weights

    def _divisor(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weight of a batch's target tokens, or the number of its rows."""
        weights = batch["weights"][:, 1:] * (batch["labels"][:, 1:] != IGNORED)
        return weights.sum() if self.settings.loss_per == "token" else weights.new_tensor(len(weights))

    def step_figures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return trl's figures under our names."""
        figures = {name: logs[name] for name in RENAMED if logs.get(name) is not None}
        return {**figures, "token_accuracy": logs["mean_token_accuracy"]}


def _apart(rows: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], torch.Tensor]:
    """Return what the model is given, and the weights, from the first target on."""
    begin = int((rows["labels"][:, 1:] != IGNORED).any(0).nonzero()[0])  # trl does so with Triton only
    labels = functional.pad(rows["labels"][:, begin + 1 :], (0, 1), value=IGNORED)
    given: dict[str, Any] = {**rows, "skip_positions": begin, "shift_labels": labels}
    return given, functional.pad(given.pop("weights")[:, begin + 1 :], (0, 1))


def sft(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    settings: SftSettings,
    folder: Path,
    *,
    strategy: RolloutStrategy | None = None,
    resume: bool = False,
    measure: Callable[[], dict[str, float]] | None = None,
    **given: Any,
) -> dict[str, float]:
    """Train `model` in place, save it, with its processor, to `folder`, and return figures of the stage.

    Args: those of `make_trainer`, and
        resume: continue from the last complete checkpoint in `folder/steps` where there is one.
        measure: gives the figures of `settings.evaluate`.
    """
    stage.check_sharded(settings.trl, WHERE)
    check_start(model, processor, source, max_new_tokens=0, strategy=strategy, where=WHERE)
    trainer = make_trainer(model, processor, source, settings, folder, strategy=strategy, **given)
    return stage.run_trainer(trainer, model, processor, folder, resume=resume, measure=measure)


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
    offer: Offer | None = None,
    strategy: RolloutStrategy | None = None,
) -> WeightedTrainer:
    """Return the trainer of a stage.

    The tasks' gold answers are the targets. Without a re-weighter each token weighs 1; its `offer` is named
    when it breaks its contract.
    """
    processes = stage.process_count()
    together = settings.rows_per_forward or max(settings.rows_per_step // processes, 1)
    if settings.rows_per_step % (together * processes):
        raise RecipeError(
            f"{WHERE}.rows_per_step: {settings.rows_per_step} rows cannot be dealt to {processes} processes "
            f"of {together} rows per forward pass; take a multiple of {together * processes}."
        )
    if settings.questions_per_volume > 1 and (why_not := packing_blocker(model)):
        raise RecipeError(f"{WHERE}.questions_per_volume: {why_not}. Take 1, and several rows of a volume.")
    if together % settings.questions_per_volume:
        raise RecipeError(
            f"{WHERE}.questions_per_volume: {together} rows of a forward pass are no whole number of volumes "
            f"with {settings.questions_per_volume} questions; make rows_per_forward a multiple of it."
        )
    owned = {
        "per_device_train_batch_size": together,
        "gradient_accumulation_steps": settings.rows_per_step // (together * processes),
        "max_length": None,  # truncation would cut image tokens
        "packing": False,
        "train_sampling_strategy": "sequential",  # the stream's positions are shuffled already
    }
    model.train_only(settings.train)
    with stage.quiet():
        return WeightedTrainer(
            model, processor, SFTConfig(**stage.arguments("sft", folder, seed, settings, owned)),
            Targets(processor, source, reweighter, offer, strategy), announce=announce,
            settings=settings,
        )  # fmt: skip


def try_step(settings: SftSettings, where: str) -> None:
    """Take one step over a stand-in; raise RecipeError where a value of the settings is refused."""
    stage.take_one_step(make_trainer, settings, where)
