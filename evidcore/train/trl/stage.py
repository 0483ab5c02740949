"""What both trainers share: settings for transformers, a learning rate per part, steps told and kept.

`folder/steps/checkpoint-N` holds model, optimizer, schedule, random states and position after step N; a file
`complete` is written last, so that a checkpoint cut short by a kill is not resumed from.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import accelerate
import torch
from peft import LoraConfig, PeftModel
from peft.tuners.lora import LoraLayer
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import Dataset
from transformers import IntervalStrategy, PrinterCallback, Trainer, TrainerCallback
from transformers.utils import logging

from evidcore.compute.clock import Clock, clock_for
from evidcore.compute.processes import rng_preserved
from evidcore.compute.signals import stop_request
from evidcore.contracts.stage import EventSink, NullSink
from evidcore.errors import RecipeError, RunError, is_disk_full
from evidcore.model import assemble
from evidcore.model.parts import AdaptedLinear, adapted_layers, matrices_of, part_of
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.targets import GivenImages
from evidcore.proof.flow import prove_images_of_rows
from evidcore.recipe.trl_fields import DEFAULTS
from evidcore.train.settings import Evaluating, TrainingKeys, dtype_of_products
from evidcore.train.tiny_model import tiny_model
from evidcore.train.trl.optimizers import with_muon
from evidcore.train.trl.timing import StepPart, encoding_counted, timed

COMPLETE = "complete"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a stage, whose files are as long as they were written."""
    marks = (folder / "steps").glob(f"checkpoint-*/{COMPLETE}")
    result = [mark.parent for mark in marks if json.loads(mark.read_text() or "{}") == _sizes(mark.parent)]
    return max(result, key=lambda place: int(place.name.rpartition("-")[2]), default=None)


def _sizes(place: Path) -> dict[str, int]:
    """Return the sizes of the files of a checkpoint that one process writes."""
    return {f.name: f.stat().st_size for f in place.glob("*.*") if f.is_file() and f.name[:4] != "rng_"}


@contextlib.contextmanager
def atomic_checkpoint(place: Path, *, marks: bool) -> Iterator[None]:
    """Mark a checkpoint that was written to its end; remove one that the disk has no room for.

    One process alone `marks`.
    """
    try:
        yield
        if marks:
            with (place / COMPLETE).open("w") as file:
                json.dump(_sizes(place), file)
                file.flush()
                os.fsync(file.fileno())
    except Exception as cause:
        if not is_disk_full(cause):
            raise
        shutil.rmtree(place, ignore_errors=True)  # it could not be resumed from, and takes room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)) from cause


def process_count() -> int:
    """Return how many processes train together.

    Not accelerate's own count alone: asked before a trainer has told accelerate that it is to use CPUs, that
    is 1 in a group of CPU processes that is there already, or that a launcher has announced.
    """
    if distributed.is_initialized():
        return distributed.get_world_size()
    announced = int(os.environ.get("WORLD_SIZE", "1"))
    return max(announced, int(accelerate.PartialState().num_processes))


class IndexDataset(Dataset[dict[str, str]]):
    """Rows that hold their position in the stream alone; prompts are made where they are needed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> dict[str, str]:
        return {"prompt": str(position)}


class StageTrainer(Trainer):  # type: ignore[misc]
    """Mixed in before a trl trainer."""

    announce: EventSink
    settings: TrainingKeys
    clock: Clock
    step_part: str  # in which the clock stands from a step's first pass to its end; methods open others
    optimizer: Any  # made by create_optimizer
    num_iterations: int = 1  # updates on the same answers
    _measured: Mapping[str, float] = {}  # after the last step
    _proven: int | None = None  # the last step whose passes were proven; set by prove_pixels

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock = clock_for(self.args.device)
        self.add_callback(StepPart(self))

    @property
    def vlm(self) -> VolumeVLM:
        """Return the model itself."""
        return vlm_of(self.accelerator.unwrap_model(self.model))

    def prove_pixels(self, prove: Callable[..., Mapping[str, float]], micro_batch: int) -> None:
        """Run the pixel-flow proof where it is due: at the start, and before each Nth step.

        Each time it is another micro-batch that it runs before.
        """
        step, every = self.state.global_step, self.settings.pixel_check_every_steps
        turn = step // every if every else 0
        is_first = self._proven is None
        is_due = is_first or (every > 0 and step % every == 0 and step != self._proven)
        if is_due and (is_first or micro_batch == turn % self.args.gradient_accumulation_steps):
            self._proven = step
            prove(self, turn, slopes=is_first)

    def prove_images(self, rows: Mapping[str, Any], given: GivenImages) -> None:
        """Prove, at each pass, that rows have their own images: next to nothing beside a pass."""
        where = f"{self.args.output_dir}: step {self.state.global_step + 1}"
        prove_images_of_rows(
            where, given, rows["input_ids"], rows["attention_mask"], rows.get("pixel_values")
        )

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
        decay = self.args.weight_decay
        param_groups = [
            {"params": weights, "lr": self.settings.rates[part], "weight_decay": decay * does_decay}
            for (part, does_decay), weights in groups.items()
        ]
        if self.settings.optimizer == "muon":
            self.optimizer = with_muon(
                param_groups, matrices_of(trained), lambda rest: kind(rest, **options),
                momentum=self.settings.momentum,
            )  # fmt: skip
        else:
            self.optimizer = kind(param_groups, **options)
        return self.optimizer

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Save and end after a step in which a process of the run was told to stop."""
        if self.state.global_step % self.num_iterations == 0:
            signals = torch.tensor([stop_request.signal], device=self.accelerator.device)
            stop_request.signal = int(self.accelerator.gather(signals).max())
            if stop_request.signal:
                self.control.should_save = self.control.should_training_stop = True
        self._measured = self._measure() if self.control.should_evaluate else {}  # told with the step's
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def evaluate_with(self, measure: Callable[[], dict[str, float]], keys: Evaluating) -> None:
        """Measure the model every so many steps, and end with the best where it is to be kept."""
        self.measure, args = measure, self.args
        args.eval_strategy, args.eval_steps = IntervalStrategy.STEPS, keys.every_steps
        args.greater_is_better, args.load_best_model_at_end = True, keys.keep == "best"

    @timed("evaluate")
    def _measure(self) -> dict[str, float]:
        """Ask the model as it stands; training draws on as it would without."""
        with rng_preserved(), full_weights(self.vlm):
            return self.measure()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Return what was measured after this step, as transformers calls it."""
        return {f"eval_{name}": value for name, value in self._measured.items()}

    def _determine_best_metric(self, metrics: Any, trial: Any) -> bool:
        """Save the best, and end after so many measurements without gain."""
        keys = self.settings.evaluate
        assert keys is not None  # transformers measures where it is given
        self.args.metric_for_best_model = keys.figure or next(iter(self._measured))
        is_best: bool = super()._determine_best_metric(metrics, trial)
        self.control.should_save |= is_best and self.args.load_best_model_at_end
        waited = self.state.global_step - (self.state.best_global_step or 0)
        self.control.should_training_stop |= 0 < keys.stop_after * keys.every_steps <= waited
        return is_best

    @timed("data")
    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Let transformers fetch the batches of a step."""
        return super().get_batch_samples(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: a checkpoint is not published."""

    @timed("save")
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint that is whole, or none."""
        place = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with atomic_checkpoint(place, marks=self.args.should_save):
            super()._save_checkpoint(model, trial)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Tell the figures of a step; the summary after the last step is the stage's own."""
        if not math.isfinite(logs.get("loss", 0.0)):
            text = f"the loss of step {self.state.global_step} is {logs['loss']}, so the stage ends here."
            raise RunError(f"{self.args.output_dir}: {text} Take a smaller learning rate.")
        super().log(logs, start_time)
        if self.is_world_process_zero() and "loss" in logs:
            measured = {f"eval/{name}": value for name, value in self._measured.items()}
            figures = {**self.step_figures(logs), **measured, **self.clock.lap()}
            self.announce.step_finished(self.state.global_step, figures)

    def step_figures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return what is told of a step."""
        raise NotImplementedError


def placeholder(name: str) -> Any:
    """Return a function that carries a name for trl and is never called."""

    def never(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} is not for trl to call")

    never.__name__ = name
    return never


def arguments(
    trainer: str, folder: Path, seed: int, settings: TrainingKeys, owned: Mapping[str, Any]
) -> dict[str, Any]:
    """Return trl's settings: what the core sets, over a recipe's `trl` table, over our defaults.

    `owned` is what the core sets for this trainer beside what it sets for every stage.
    """
    given = {**DEFAULTS[trainer], **settings.trl}
    usual: dict[str, Any] = {"bf16": dtype_of_products(given) == torch.bfloat16}
    if given.get("bf16") and not torch.cuda.is_available():
        usual["use_cpu"] = True  # else transformers refuses it without a GPU
    if "gradient_checkpointing" not in given:
        usual["activation_checkpointing"] = False  # its new name; trl's default is on
    return {
        **usual, **given, **owned,
        "output_dir": str(folder / "steps"), "max_steps": settings.steps, "seed": seed, "data_seed": seed,
        "learning_rate": max(settings.rates.values()), "logging_strategy": "steps", "logging_steps": 1,
        "logging_first_step": False, "logging_nan_inf_filter": False, "save_strategy": "steps",
        "save_steps": settings.save_every_steps, "save_total_limit": 2, "report_to": [],
        "disable_tqdm": True, "remove_unused_columns": False, "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
    }  # fmt: skip


def check_sharded(given: Mapping[str, Any], where: str) -> None:
    """Refuse `trl.fsdp` where it would do nothing."""
    if given.get("fsdp") and (process_count() < 2 or not torch.accelerator.is_available()):
        raise RecipeError(
            f"{where}.trl.fsdp: nothing would be sharded: weights are spread over several processes with an "
            f"accelerator each, and here are {process_count()} and {torch.accelerator.device_count()}. Take "
            "it out, or start them with `accelerate launch`."
        )


def lora_config(settings: TrainingKeys, model: VolumeVLM) -> LoraConfig | None:
    """Return PEFT's configuration; other trained parts are trained in full beside it."""
    lora = settings.lora
    if lora is None:
        return None
    modules = {"encoder": "model.encoder", "language": "model.language_model"}
    adapted = {modules[part]: model.get_submodule(modules[part]) for part in lora.parts}
    return LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, use_dora=lora.use_dora,
        target_modules=[*adapted_layers(adapted, lora, "stage")],
        modules_to_save=[part for part in settings.train if part not in lora.parts] or None,
    )  # fmt: skip


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


def take_one_step(make_trainer: Callable[..., Any], settings: Any, where: str, **given: Any) -> None:
    """Build a stage's trainer over a stand-in and take one step: what trl makes of a recipe's values."""
    rate = max(settings.rates.values())
    # several processes alone can try what is sharded, and a GPU alone precisions
    untried = ("fsdp", "fsdp_config", *(() if torch.cuda.is_available() else ("bf16", "fp16", "tf32")))
    trl = {key: value for key, value in settings.trl.items() if key not in untried}
    lora = settings.lora and dataclasses.replace(settings.lora, parts=("language",), target_modules=())
    tried = dataclasses.replace(
        settings, train=("language",), learning_rate=rate, steps=1, pixel_check_every_steps=0, trl=trl,
        lora=lora,
    )  # fmt: skip
    model, processor, source = tiny_model()
    logging.disable_progress_bar()  # of what it saves
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer = make_trainer(
                model=model, processor=processor, source=source, settings=tried, folder=Path(folder), seed=0,
                announce=NullSink(), **given,
            )  # fmt: skip
            trainer._proven = 0  # nothing is shown, so there is nothing to prove
            train(trainer, Path(folder), resume=False)
        except RecipeError:
            raise
        except Exception as cause:  # of any library below
            text = next(iter(str(cause).splitlines()), "")
            raise RecipeError(
                f"{where}: its first step fails with {type(cause).__name__}: {text} Correct its keys or trl."
            ) from cause


def train(trainer: Any, folder: Path, *, resume: bool) -> dict[str, float]:
    """Run a trainer from the start or from the last complete checkpoint; return steps and seconds."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(FullEncoderCallback())
    start = last_checkpoint(folder) if resume else None
    if start is None and trainer.is_world_process_zero():
        shutil.rmtree(folder / "steps", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    began = time.perf_counter()
    done = 0 if start is None else int(start.name.rpartition("-")[2])
    counted = encoding_counted(trainer, vlm_of(trainer.model).model.encoder)
    with quiet(), counted, stop_request.finishing_steps():
        result = trainer.train(resume_from_checkpoint=None if start is None else str(start))
    seconds = time.perf_counter() - began
    taken = max(result.global_step - done, 1)
    best = trainer.state.best_global_step if trainer.args.load_best_model_at_end else None
    return {
        "steps": float(result.global_step), "seconds": seconds, "seconds_per_step": seconds / taken,
        "loss": float(result.training_loss), **({} if best is None else {"best_step": float(best)}),
    }  # fmt: skip


def unwrap(trainer: Any, model: VolumeVLM) -> None:
    """Leave `model` plain and trained: LoRA merged, or apart beside 16 or 4 bits; trl's forward taken off."""
    if isinstance(trainer.model, PeftModel):
        for layer in [item for item in model.modules() if isinstance(item, LoraLayer)]:
            if layer.base_layer.weight.dtype in (torch.bfloat16, torch.uint8):
                [(name, scaling)] = layer.scaling.items()
                up = layer.lora_B[name].weight * scaling
                layer.base_layer = AdaptedLinear(layer.base_layer, layer.lora_A[name].weight, up)
            else:
                layer.merge()
        trainer.model.unload()
        apart = {name: len(m.down) for name, m in model.model.named_modules() if isinstance(m, AdaptedLinear)}
        model.config.adapters = apart or None
    model.__dict__.pop("forward", None)
    model.train_only(())
    model.eval()


def _sharded(part: torch.nn.Module) -> list[Any]:
    """Return the units of a part that FSDP2 shards by themselves."""
    return [unit for unit in part.modules() if isinstance(unit, FSDPModule)]


def _frozen_encoder(model: VolumeVLM) -> list[Any]:
    """Return the sharded units of an encoder that is not trained."""
    return _sharded(model.model.encoder) if model.model.encoder_is_frozen else []


class FullEncoderCallback(TrainerCallback):  # type: ignore[misc]
    """Keeps a frozen encoder's weights whole: a process whose features lie in the bank does not encode."""

    def on_train_begin(self, *given: Any, model: Any, **more: Any) -> None:
        """Gather them once, when the model is sharded and before its first pass."""
        for unit in _frozen_encoder(vlm_of(model)):
            unit.set_reshard_after_forward(False, recurse=False)
            unit.set_reshard_after_backward(False, recurse=False)
            unit.unshard()


@contextlib.contextmanager
def full_weights(model: VolumeVLM) -> Iterator[None]:
    """Hold the weights that FSDP2 shards whole, so that no pass within waits for another process.

    Processes write answers of unequal lengths, so they pass unequally often. Where training is told not to
    give weights away behind each forward pass, it is told to from here on.
    """
    whole = {id(unit) for unit in _frozen_encoder(model)}
    units = [unit for unit in _sharded(model) if id(unit) not in whole]
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.set_reshard_after_forward(True, recurse=False)
            unit.reshard()


def gathered(model: VolumeVLM) -> dict[str, torch.Tensor] | None:
    """Return whole weights in the first process where FSDP2 shards them; None where nothing is sharded."""
    if not _sharded(model):
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return dict(get_model_state_dict(model, options=options))  # type: ignore[arg-type]


def run_trainer(
    trainer: Any,
    model: VolumeVLM,
    processor: VolumeProcessor,
    folder: Path,
    *,
    resume: bool,
    measure: Callable[[], dict[str, float]] | None,
) -> dict[str, float]:
    """Train, write the trained model and remove what only a resume needed; return the figures of `train`."""
    if measure is not None:
        trainer.evaluate_with(measure, trainer.settings.evaluate)
    try:
        figures = train(trainer, folder, resume=resume)
    finally:
        unwrap(trainer, model)
    weights = gathered(model)
    if trainer.is_world_process_zero():
        assemble.save(model, processor, folder, weights)
        shutil.rmtree(folder / "steps", ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    return figures
