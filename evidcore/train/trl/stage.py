"""What both trainers share: settings for transformers, a learning rate per part, steps told and kept.

`folder/steps/checkpoint-N` holds model, optimizer, schedule, random states and position after step N; a file
`complete` is written last, so that a checkpoint cut short by a kill is not resumed from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import accelerate
import torch
from peft import LoraConfig, PeftModel
from torch import distributed
from torch.utils.data import Dataset, SequentialSampler
from transformers import PrinterCallback

from evidcore.contracts import Announce
from evidcore.errors import RecipeError, did_you_mean, tells_full_disk
from evidcore.model import assemble
from evidcore.model.parts import matrices_of, part_of
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.train.settings import PARTS, Lora
from evidcore.train.trl.optimizers import OptimizerKind, with_muon
from evidcore.train.trl.timing import TimedTrainer, encoding_counted, timed

COMPLETE = "complete"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a stage."""
    found = [place.parent for place in (folder / "steps").glob(f"checkpoint-*/{COMPLETE}")]
    return max(found, key=lambda place: int(place.name.rpartition("-")[2]), default=None)


@contextlib.contextmanager
def written_whole(place: Path, *, marks: bool) -> Iterator[None]:
    """Mark a checkpoint that was written to its end; remove one that the disk has no room for.

    Args:
        place: its folder.
        marks: this process is the one that says so.

    Raises:
        OSError: if the disk is full, however a library puts it; names the folder.
    """
    try:
        yield
        if marks:
            with (place / COMPLETE).open("w") as file:
                file.flush()
                os.fsync(file.fileno())
    except Exception as cause:
        if not tells_full_disk(cause):
            raise
        shutil.rmtree(place, ignore_errors=True)  # it could not be resumed from, and takes room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)) from cause


LORA_TARGETS = r".*language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


def process_count() -> int:
    """Return how many processes train together.

    Not accelerate's own count alone: asked before a trainer has told accelerate that it is to use CPUs, that
    is 1 in a group of CPU processes that is there already, or that a launcher has announced.
    """
    if distributed.is_initialized():
        return distributed.get_world_size()
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    return max(announced, int(accelerate.PartialState().num_processes))


class Positions(Dataset[dict[str, str]]):
    """Rows that hold their position in the stream alone; prompts are made where they are needed."""

    def __init__(self, count: int) -> None:
        """Make `count` rows."""
        self.count = count

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.count

    def __getitem__(self, position: int) -> dict[str, str]:
        """Return a row; trl wants a prompt in it."""
        return {"prompt": str(position)}


class StageTrainer(TimedTrainer):
    """Mixed in before a trl trainer."""

    announce: Announce
    learning_rates: Mapping[str, float]
    optimizer_kind: OptimizerKind
    optimizer: Any  # made by create_optimizer
    prove_every_steps: int
    _proven: int | None = None  # the last step whose passes were proven; set by prove_pixels

    @property
    def vlm(self) -> VolumeVLM:
        """Return the model itself."""
        return vlm_of(self.accelerator.unwrap_model(self.model))

    def prove_pixels(self, prove: Callable[..., Mapping[str, float]], micro_batch: int) -> None:
        """Run the pixel-flow proof where it is due: at the start, and before each Nth step.

        Each time it is another micro-batch that it runs before.
        """
        step, every = self.state.global_step, self.prove_every_steps
        turn = step // every if every else 0
        is_first = self._proven is None
        is_due = is_first or (every > 0 and step % every == 0 and step != self._proven)
        if is_due and (is_first or micro_batch == turn % self.args.gradient_accumulation_steps):
            self._proven = step
            prove(self, turn, slopes=is_first)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Read the stream in order: its positions are shuffled already."""
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def create_optimizer(self, model: Any = None) -> Any:
        """Make one parameter group for each part with and without weight decay."""
        if self.optimizer is not None:
            return self.optimizer
        trained = self.model if model is None else model
        decays = set(self.get_decay_parameter_names(trained))
        groups: dict[tuple[str, bool], list[torch.nn.Parameter]] = {}
        for name, weight in trained.named_parameters():
            if weight.requires_grad:
                groups.setdefault((part_of(name), name in decays), []).append(weight)
        kind, options = self.get_optimizer_cls_and_kwargs(self.args, trained)
        told = [
            {
                "params": weights,
                "lr": self.learning_rates[part],
                "weight_decay": self.args.weight_decay if does_decay else 0.0,
            }
            for (part, does_decay), weights in groups.items()
        ]
        if self.optimizer_kind.name == "muon":
            self.optimizer = with_muon(
                told,
                matrices_of(trained),
                lambda rest: kind(rest, **options),
                momentum=self.optimizer_kind.momentum,
            )
        else:
            self.optimizer = kind(told, **options)
        return self.optimizer

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: a checkpoint is not published."""

    @timed("save")
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint that is whole, or none."""
        place = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with written_whole(place, marks=self.args.should_save):
            super()._save_checkpoint(model, trial)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Tell the figures of a step; the summary after the last step is the stage's own."""
        super().log(logs, start_time)
        if self.is_world_process_zero() and "loss" in logs:
            self.announce.step_finished(self.state.global_step, {**self.step_figures(logs), **self.lap()})

    def step_figures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return what is told of a step."""
        raise NotImplementedError


def placeholder(name: str) -> Any:
    """Return a function that carries a name for trl and is never called."""

    def never(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} is not for trl to call")

    never.__name__ = name
    return never


def check_parts(parts: tuple[str, ...], rates: float | Mapping[str, float], where: str) -> dict[str, float]:
    """Return the learning rate of each trained part.

    Raises:
        RecipeError: if a part is unknown, or has no learning rate.
    """
    for part in parts:
        if part not in PARTS:
            raise RecipeError(
                f"{where}.train: no part is called {part!r}.{did_you_mean(part, PARTS)} Parts: "
                f"{', '.join(PARTS)}."
            )
    if not parts:
        raise RecipeError(f"{where}.train: names no part; give at least one of {', '.join(PARTS)}.")
    if not isinstance(rates, Mapping):
        return {part: float(rates) for part in parts}
    if set(rates) != set(parts):
        raise RecipeError(
            f"{where}.learning_rate: must give one number for each trained part ({', '.join(parts)}), got "
            f"{dict(rates)!r}."
        )
    return {part: float(rates[part]) for part in parts}


def stage_arguments(
    folder: Path, seed: int, steps: int, save_every_steps: int, rates: Mapping[str, float]
) -> dict[str, Any]:
    """Return what the core sets for every stage, by the names of transformers."""
    return {
        "output_dir": str(folder / "steps"),
        "max_steps": steps,
        "seed": seed,
        "data_seed": seed,
        "learning_rate": max(rates.values()),
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_first_step": False,
        "save_strategy": "steps",
        "save_steps": save_every_steps,
        "save_total_limit": 2,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
    }


def arguments(owned: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return trl's settings: what the core sets, over a recipe's `trl` table, over our defaults."""
    # a GPU without bfloat16 may emulate it, slowly
    has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    usual: dict[str, Any] = {"bf16": has_bf16 and not given.get("fp16")}
    if "gradient_checkpointing" not in given:
        usual["activation_checkpointing"] = False  # its new name; trl's default is on
    return {**usual, **given, **owned}


def check_arguments(kind: type, owned: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    """Refuse keys of a `trl` table that do not exist, or that the core sets.

    Raises:
        RecipeError: naming the key, and the recipe's own key where there is one.
    """
    fields = {field.name for field in dataclasses.fields(kind)}
    for key in given:
        if key in owned:
            raise RecipeError(
                f"{where}.trl.{key}: is set by the core from the stage's own keys; take it out."
            )
        if key not in fields:
            raise RecipeError(
                f"{where}.trl.{key}: {kind.__name__} has no such field.{did_you_mean(key, fields)}"
            )


def lora_config(lora: Lora | None, parts: tuple[str, ...], where: str) -> LoraConfig | None:
    """Return PEFT's configuration; other trained parts are trained in full beside it.

    Raises:
        RecipeError: if the language model is not trained at all.
    """
    if lora is None:
        return None
    if "language" not in parts:
        raise RecipeError(
            f"{where}.lora: adds to the language model, but train = {list(parts)!r} leaves it out."
        )
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=LORA_TARGETS,
        modules_to_save=[part for part in ("encoder", "bridge") if part in parts] or None,
    )


def vlm_of(model: Any) -> VolumeVLM:
    """Return the model inside a PEFT wrapper, whose layers it carries."""
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    if not isinstance(inner, VolumeVLM):
        raise TypeError(f"expected a VolumeVLM, got {type(inner).__name__}")
    return inner


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back warnings about names by which trl and peft call transformers, and which are going away."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
        yield


def train(trainer: Any, folder: Path, *, resume: bool) -> dict[str, float]:
    """Run a trainer from the start or from the last complete checkpoint; return steps and seconds."""
    trainer.remove_callback(PrinterCallback)
    start = last_checkpoint(folder) if resume else None
    if start is None and trainer.is_world_process_zero():
        shutil.rmtree(folder / "steps", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    began = time.perf_counter()
    done = 0 if start is None else int(start.name.rpartition("-")[2])
    with quiet(), encoding_counted(trainer, vlm_of(trainer.model).model.encoder):
        result = trainer.train(resume_from_checkpoint=None if start is None else str(start))
    seconds = time.perf_counter() - began
    taken = max(result.global_step - done, 1)
    return {
        "steps": float(result.global_step),
        "seconds": seconds,
        "seconds_per_step": seconds / taken,
        "loss": float(result.training_loss),
    }


def unwrap(trainer: Any, model: VolumeVLM) -> None:
    """Leave `model` as a plain, trained model: LoRA merged, trl's forward taken off."""
    if isinstance(trainer.model, PeftModel):
        trainer.model.merge_and_unload()
    model.__dict__.pop("forward", None)
    model.train_only(())
    model.eval()


def carry_out(
    trainer: Any, model: VolumeVLM, processor: VolumeProcessor, folder: Path, *, resume: bool
) -> dict[str, float]:
    """Train, write the trained model and remove what only a resume needed; return the figures of `train`."""
    try:
        figures = train(trainer, folder, resume=resume)
    finally:
        unwrap(trainer, model)
    if trainer.is_world_process_zero():
        assemble.save(model, processor, folder)
        shutil.rmtree(folder / "steps", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return figures
