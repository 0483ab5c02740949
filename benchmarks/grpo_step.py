"""A whole GRPO step, beside stock trl.GRPOTrainer on the same model, data and seed.

python benchmarks/grpo_step.py [--json] [--quick] [--grid] [--device cuda]   2 cores, 25 minutes

Both arms train bridge and language model (hidden 512, 8 layers, vocabulary 8192; float32 on a CPU, bfloat16
on a GPU) with AdamW on the same prompts of P tokens, 64 of them visual, and sample answers of C tokens, G to
a prompt. They take steps in turn, in one process; time is CPU time of one thread, on a GPU wall clock. The
first step of each is left out. An answer ends early where the model writes the end token, once in 8192
tokens; the mean lengths are in the details.

- trl, head on answers only: on a CPU stock trl scores every place of prompt and answer, where Triton runs
  those of answers alone. This arm does that on a CPU too: what a user of a GPU has to compare with.
- mean M: the end token is so likely that answers have M tokens on average, and are cut at C: what reasoning
  models write is unequal. Its ratio is one of sums over all steps, since the arms draw lengths of their own.
- engine: both arms take the encoder's features from the same kind of bank, where they lie already.
- engine + bank: ours with its bank, trl as it comes, which gives prepared volumes to the model. Encoder: a 3D
  ViT-S over 64 x 128 x 128 voxels. In the first epoch each of our steps encodes new volumes; later it encodes
  none.
- P 104, C 32, 24 prompts: a step as large as the demo's, with a language model as small as the demo's.

trl's settings are ours: the same loss, rows in a pass, learning rate and length; no checkpointing of
activations, no logging of completions, no KL term.
"""

import argparse
import dataclasses
import functools
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import datasets
import torch
import trl.trainer.utils
from bench_model import DEMO_ENCODER, VIT_S, Size, TextHash, build, cases, source, text_hash
from side_by_side import Figure, Turns, figure, parser, ratios, tell
from torch import nn
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from evidcore.api import Case, TextPart
from evidcore.builtin.rollouts import Plain
from evidcore.compute.clock import Clock, clock_for
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSource
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings
from evidcore.train.trl import stage
from evidcore.train.trl.grpo import make_trainer
from evidcore.train.trl.timing import encoding_counted

Measured = tuple[list[Figure], dict[str, Any]]
RATE = 1e-5
COMPACT = "trl, head on answers only"
DEMO_SIZE = Size(hidden=128, layers=4, vocabulary=1024)  # about recipes/med3d_r1.toml's
PEAK_FLOPS = {
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100": 312e12,
}  # bfloat16, dense: data sheets


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """What a step consists of."""

    prompt_tokens: int = 512
    answer_tokens: int = 64
    answers: int = 8
    prompts: int = 1
    steps: int = 6
    volumes: int = 0  # 0: the features of all volumes lie in the bank before the first step
    mean_tokens: int = 0  # of answers whose lengths are drawn; 0: nearly all are as long as they may be
    encoder: Mapping[str, Any] = dataclasses.field(default_factory=lambda: DEMO_ENCODER)

    def title(self) -> str:
        """Return how it is called."""
        mean = f" mean {self.mean_tokens}" if self.mean_tokens else ""
        several = f", {self.prompts} prompts" if self.prompts > 1 else ""
        return f"P {self.prompt_tokens}, C {self.answer_tokens}{mean}, G {self.answers}{several}"

    def built(self, size: Size) -> tuple[VolumeVLM, VolumeProcessor]:
        """Return model and processor, the end token as likely as the mean length asks for."""
        model, processor = build(size, self.encoder)
        if self.mean_tokens:  # the mean of a geometric distribution is one over the chance to end
            bias = torch.zeros(size.vocabulary)
            bias[processor.tokenizer.eos_token_id] = math.log((size.vocabulary - 1) / (self.mean_tokens - 1))
            model.get_output_embeddings().bias = nn.Parameter(bias, requires_grad=False)
        return model, processor


DEMO_CELL = Cell(prompt_tokens=104, answer_tokens=32, answers=8, prompts=24, steps=5)
UNEQUAL_CELL = Cell(prompt_tokens=512, answer_tokens=128, mean_tokens=32, prompts=2, steps=9)


@dataclasses.dataclass
class Heard:
    """What an arm tells of its steps."""

    step_done: Callable[[], None]
    device: torch.device
    steps: list[dict[str, float]] = dataclasses.field(default_factory=list)
    memory_bytes: list[int] = dataclasses.field(default_factory=list)
    at_rest_bytes: int = 0
    clock: Clock = dataclasses.field(default_factory=Clock)

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep it, and let the other arm go on."""
        self.steps.append(dict(metrics))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            self.memory_bytes.append(torch.cuda.max_memory_allocated() - self.at_rest_bytes)
        self.step_done()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.at_rest_bytes = torch.cuda.memory_allocated()
        self.clock.restart()  # not while the other arm ran

    def rollouts_judged(self, step: int, groups: Any) -> None:
        """Drop it."""


def ours(cell: Cell, size: Size, some: list[Case], folder: Path, heard: Heard) -> None:
    """Run the stage's trainer."""
    model, processor = cell.built(size)
    settings = GrpoSettings(
        train=("bridge", "language"), steps=cell.steps, learning_rate=RATE, prompts_per_step=cell.prompts,
        answers_per_prompt=cell.answers, max_new_tokens=cell.answer_tokens,
        trl={"use_cpu": heard.device.type == "cpu", "lr_scheduler_type": "constant"},
    )  # fmt: skip
    asked = source(some, processor, cell.prompt_tokens)
    if not cell.volumes:
        fill_bank(model, asked, cell)
    trainer = make_trainer(
        model, processor, asked, [NamedReward(name="text-hash", reward=TextHash())], settings, folder, seed=1,
        strategy=Plain(), announce=heard,
    )  # fmt: skip
    heard.clock = trainer.clock
    stage.train(trainer, folder, resume=False)


_OF_THIS_ARM = threading.local()


def head_on_answers(cell: Cell, size: Size, some: list[Case], folder: Path, heard: Heard) -> None:
    """Run trl's trainer; it scores the places of answers alone, as it does where Triton runs."""
    _OF_THIS_ARM.head_on_answers = True
    as_it_comes(cell, size, some, folder, heard)


def let_arms_choose() -> None:
    """Let trl ask the arm, and not only the device, which places its head scores."""
    asks_device = trl.trainer.utils._use_triton

    def choose(device: torch.device) -> bool:
        return getattr(_OF_THIS_ARM, "head_on_answers", False) or asks_device(device)

    trl.trainer.utils._use_triton = choose


def as_it_comes(cell: Cell, size: Size, some: list[Case], folder: Path, heard: Heard) -> None:
    """Run trl's trainer, with images as references."""
    model, processor = cell.built(size)
    asked = source(some, processor, cell.prompt_tokens)
    if cell.volumes:  # the processor then gives volumes, and the model encodes what it is given
        images = processor.image_processor
        images.connect(model.model.encoder, model.model.bridge, images.parts()[2], None)
        model.model.bank = None
    else:
        fill_bank(model, asked, cell)
    model.train_only(("bridge", "language"))
    rows = list(rows_of(asked, cell))
    check_same_tokens(processor, asked, rows[0], cell)
    heard.clock = clock_for(heard.device)

    def reward(completions: Any, **_: Any) -> list[float]:
        return [text_hash(item[0]["content"]) for item in completions]

    class Told(GRPOTrainer):  # type: ignore[misc]
        clock: Clock

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log(logs, start_time)
            if "loss" in logs:
                tokens = {"completion_tokens": logs["completions/mean_length"]}
                heard.step_finished(self.state.global_step, {**tokens, **heard.clock.lap()})

    arguments = GRPOConfig(
        str(folder), per_device_train_batch_size=cell.prompts * cell.answers, num_generations=cell.answers,
        max_steps=cell.steps, max_completion_length=cell.answer_tokens, learning_rate=RATE, loss_type="grpo",
        beta=0.0, lr_scheduler_type="constant", bf16=heard.device.type == "cuda", report_to=[], seed=1,
        use_cpu=heard.device.type == "cpu", activation_checkpointing=False, logging_steps=1,
        save_strategy="no", disable_tqdm=True, log_completions=False, log_multimodal=False,
        shuffle_dataset=False, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Told(
        model=model, processing_class=processor, reward_funcs=[reward], args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
    )  # fmt: skip
    trainer.clock = heard.clock
    trainer.remove_callback(PrinterCallback)
    with stage.quiet(), encoding_counted(trainer, model.model.encoder):
        trainer.train()


def fill_bank(model: Any, asked: PromptSource, cell: Cell) -> None:
    """Have all features in the bank."""
    images = asked.processor.image_processor  # type: ignore[attr-defined]
    crops = [asked[index].prompt.crops()[0] for index in range(cell.steps * cell.prompts)]
    handles = list(dict.fromkeys(images.handle(crop) for crop in crops))
    model.model.bank.patches(handles, model.model.encoder)


def rows_of(asked: PromptSource, cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield the stream's prompts as trl takes them."""
    for index in range(cell.steps * cell.prompts):
        prompt = asked[index].prompt
        text = "".join(part.text for part in prompt.parts if isinstance(part, TextPart))
        images = [crop.uri() for crop in prompt.crops()]
        yield {"prompt": [{"role": "user", "content": text}], "images": images}


def check_same_tokens(processor: Any, asked: PromptSource, row: Mapping[str, Any], cell: Cell) -> None:
    """See that both arms read the same tokens."""
    content = [{"type": "image"}, {"type": "text", "text": row["prompt"][0]["content"]}]
    chat = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    theirs = list(processor(text=[chat], images=[row["images"]])["input_ids"][0])
    if theirs != list(processor.encode(asked[0].prompt).ids) or len(theirs) != cell.prompt_tokens:
        raise SystemExit("the arms do not read the same tokens")


def side_by_side(
    cell: Cell, size: Size, device: torch.device
) -> tuple[dict[str, list[float]], dict[str, Heard]]:
    """Return the seconds of the arms' steps, and what they told."""
    heard: dict[str, Heard] = {}

    def now() -> float:
        if device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = cases(folder / "volumes", cell.volumes or 4)

        def arm(title: str, run: Callable[..., None]) -> Callable[[Callable[[], None]], None]:
            def loop(step_done: Callable[[], None]) -> None:
                heard[title] = Heard(step_done, device)
                run(cell, size, some, folder / title, heard[title])

            return loop

        arms = {"trl": as_it_comes, "ours": ours}
        if device.type == "cpu":
            arms[COMPACT] = head_on_answers
        seconds = Turns({title: arm(title, run) for title, run in arms.items()}, now).run()
    return seconds, heard


def engine(
    cell: Cell, size: Size, device: torch.device, needed: float | None, needed_compact: float | None = None
) -> Measured:
    """Return how many times as fast ours is where all arms have their features, and more on a GPU."""
    seconds, heard = side_by_side(cell, size, device)
    unit = "CPU s a step" if device.type == "cpu" else "s a step"
    title = f"engine, {cell.title()}"
    taken = {arm: each[1:] for arm, each in seconds.items()}
    result = []
    for arm, least in (("trl", needed), (COMPACT, needed_compact)):
        if arm in taken:
            several = ratios(taken[arm], taken["ours"])
            samples = [sum(taken[arm]) / sum(taken["ours"])] if cell.mean_tokens else several
            result.append(
                figure(title if arm == "trl" else f"{title}, {arm}", samples, "x trl", at_least=least)
            )
    result += [figure(f"{title}: {arm}", each, unit) for arm, each in taken.items()]
    if device.type == "cuda":
        result += on_gpu(title, cell, size, seconds, heard)
    return result, {title: details(heard)}


def engine_and_bank(cell: Cell, size: Size, device: torch.device, needed: float | None) -> Measured:
    """Return the same against trl without a bank, for the first epoch and later, with the encoder's share."""
    seconds, heard = side_by_side(cell, size, device)
    first = cell.volumes // cell.prompts  # steps of the first epoch
    title = f"engine + bank, {cell.title()}"
    result = []
    for epoch, steps in (("first epoch", slice(1, first)), ("later", slice(first, None))):
        result += [
            figure(
                f"{title}, {epoch}",
                ratios(seconds["trl"][steps], seconds["ours"][steps]),
                "x trl",
                at_least=needed,
            ),
            *(
                figure(
                    f"{title}, {epoch}: encoder's share, {arm}",
                    [100 * item.get("encode_s", 0.0) / item["step_s"] for item in heard[arm].steps[steps]],
                    "%",
                )
                for arm in ("ours", "trl")
            ),
        ]
    return result, {title: details(heard)}


def on_gpu(
    title: str, cell: Cell, size: Size, seconds: Mapping[str, list[float]], heard: Mapping[str, Heard]
) -> list[Figure]:
    """Return tokens a second, share of the GPU's peak, and memory."""
    name = torch.cuda.get_device_name()
    peak = next((flops for card, flops in PEAK_FLOPS.items() if name.startswith(card)), None)
    weights = sum(item.numel() for item in build(size)[0].part("language"))
    rows = cell.prompts * cell.answers
    result = []
    for arm in ("ours", "trl"):
        taken = seconds[arm][1:]
        result.append(
            figure(
                f"{title}: {arm}",
                [rows * cell.answer_tokens / item for item in taken],
                "answer tokens a second",
            )
        )
        memory = [item / 2**30 for item in heard[arm].memory_bytes[1:]]
        result.append(figure(f"{title}: {arm}, peak memory above rest", memory, "GiB"))
        if peak is not None:
            # multiplications and additions that the method asks for, without attention: 6 a weight and token
            # to train, 2 to sample; of each distinct token, however often an arm computes it
            tokens = cell.prompts * cell.prompt_tokens + rows * cell.answer_tokens
            asked = 8 * weights * tokens
            result.append(
                figure(f"{title}: {arm}, share of peak", [100 * asked / item / peak for item in taken], "%")
            )
    return result


def details(heard: Mapping[str, Heard]) -> dict[str, Any]:
    """Return the mean answer lengths, and where ours says its time goes (wall clock, medians)."""
    steps = heard["ours"].steps[1:]
    parts = [name for name in steps[0] if name.endswith("_s") or "_s/" in name]
    return {
        "answer_tokens": {
            arm: statistics.fmean(item["completion_tokens"] for item in told.steps)
            for arm, told in heard.items()
        },
        "ours_s": {name: statistics.median(item.get(name, 0.0) for item in steps) for name in parts},
    }


def grid(given: argparse.Namespace) -> list[Cell]:
    """Return the cells beside the first: all of P, C and G, or those that differ in G alone or not in G."""
    prompts, answers, counts = (128, 512, 1024), (16, 64, 256), (4, 8, 16)
    cells = [
        Cell(prompt_tokens=p, answer_tokens=c, answers=g, steps=4)
        for p in prompts
        for c in answers
        for g in counts
        if given.grid or g == 8 or (p, c) == (512, 64)
    ]
    return [cell for cell in cells if cell.title() != Cell().title()]


def main() -> None:
    """Run the cells and print."""
    options = parser(__doc__)
    options.add_argument("--grid", action="store_true", help="all of P, C and G: hours on a CPU")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = options.parse_args()
    device = torch.device(given.device)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    size = Size(hidden=128, layers=2, vocabulary=512) if given.quick else Size()
    main_cell = Cell(prompt_tokens=128, answer_tokens=8, answers=4, steps=3) if given.quick else Cell()
    needed = None if given.quick else 3.0 if given.device == "cuda" else 2.0
    needed_compact = None if given.quick else 1.8
    let_arms_choose()
    steps, volumes = (4, 2) if given.quick else (8, 4)
    encoder = DEMO_ENCODER if given.quick else VIT_S
    bank_cell = dataclasses.replace(main_cell, steps=steps, volumes=volumes, encoder=encoder)
    measured: list[Callable[[], Measured]] = [
        lambda: engine(main_cell, size, device, needed, needed_compact),
        lambda: engine_and_bank(bank_cell, size, device, None if given.quick else 3.0),
    ]
    if given.quick:
        unequal = dataclasses.replace(main_cell, answer_tokens=16, mean_tokens=4)
        measured.append(lambda: engine(unequal, size, device, None))
    else:
        measured.append(lambda: engine(UNEQUAL_CELL, size, device, 3.5, 2.0))
        measured.append(lambda: engine(DEMO_CELL, DEMO_SIZE, device, needed=1.0))
        measured += [functools.partial(engine, cell, size, device, needed=0.95) for cell in grid(given)]
    result: list[Figure] = []
    told: dict[str, Any] = {}
    for measure in measured:
        figures, more = measure()
        for item in figures:  # the whole takes long, and its result comes at the end
            print(item.line(), file=sys.stderr, flush=True)
        result += figures
        told |= more
    tell(__doc__, result, as_json=given.json, details=told)


if __name__ == "__main__":
    main()
