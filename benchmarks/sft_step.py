"""SFT steps side by side: features kept, the head on answers, volumes prefetched, questions packed, or not.

python benchmarks/sft_step.py [--json] [--quick]        2 cores, 9 minutes, no download

All arms are our trainer with the same model, rows and seed, training a bridge to a frozen language model of
hidden 512 and 8 layers, which is the usual first stage; 2 rows a step of 192 prompt tokens and their answers.
The arms of a comparison take steps in turn; the first step of each is left out.

Cached: one arm has a feature bank of no bytes, so that each step reads, prepares and encodes its volumes. The
encoders are a 3D ViT-S with 2048 patches of 32 x 256 x 256 voxels, the input of M3D's, and the demo's, which
is far smaller than the language model here. Time is CPU time of one thread; all volumes are in the bank then.
Head on answers: one arm computes the loss as trl does where there is no Triton, with the head on all places,
for a vocabulary of 49,152 words. Losses are equal to 1e-5, or this ends with an error.
Questions packed: 15 questions of a volume a step behind 64 and 343 visual tokens (`questions_per_volume`),
of 16 tokens with the answer and the template's. Losses are equal to 1e-5, or this ends with an error.
Volumes prefetched: each step has two other volumes of 96 x 256 x 256 voxels, and a wait in each step, as
long as preparing them takes, stands for an accelerator that computes meanwhile. Wall time, two threads.
"""

import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from bench_model import BRIDGE, DEMO_ENCODER, VIT_S, Size, build, cases, source
from side_by_side import Figure, Turns, figure, parser, ratios, tell
from trl import SFTTrainer

from evidcore.api import Case, Crop
from evidcore.builtin.uniform import Uniform
from evidcore.compute.clock import Clock
from evidcore.model.bank import FeatureBank
from evidcore.registry import factory
from evidcore.train.settings import SftSettings
from evidcore.train.trl import sft, stage
from evidcore.train.trl.sft import WeightedTrainer

ROWS, PROMPT_TOKENS = 2, 192
QUESTIONS, QUESTION_TOKENS = 15, 8  # and 8 of template and answer
MARKUP = ("assistant\n", "<answer>", "</answer>")
# by the tokens that the bridge makes of them, 2 x 2 x 2 patches each: 4 x 4 x 4 and 7 x 7 x 7
PREFIXES = (
    ({**DEMO_ENCODER}, 2.5),
    ({"use": "vit3d", "size_zyx": [56, 112, 112], "patch_zyx": [4, 8, 8]}, 5.0),
)
WORDS = 49152  # SmolLM2's
EQUAL = 1e-5
# 8 x 16 x 16 patches into 64 visual tokens
VIT_S_M3D = {**VIT_S, "size_zyx": [32, 256, 256], "patch_zyx": [4, 16, 16]}
ENCODERS: tuple[tuple[str, dict[str, Any], dict[str, Any], float | None], ...] = (
    ("3D ViT-S", VIT_S_M3D, {"use": "projection", "pool_zyx": [2, 4, 4]}, 5.0),
    ("the demo's encoder", DEMO_ENCODER, BRIDGE, None),
)


class Heard:
    """Keeps what an arm tells, and lets the other go on."""

    def __init__(self, step_done: Callable[[], None]) -> None:
        self.step_done = step_done
        self.steps: list[dict[str, float]] = []
        self.clock = Clock()

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep it."""
        self.steps.append(dict(metrics))
        self.step_done()
        self.clock.restart()  # not while the other arm ran

    def rollouts_judged(self, step: int, groups: Any) -> None:
        """Drop it."""


class WholeHead(WeightedTrainer):
    """Computes the loss as trl does."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Leave out what ours leaves out."""
        return SFTTrainer.compute_loss(self, *args, **kwargs)


class Waiting(WeightedTrainer):
    """Waits in each step, as a process does whose accelerator computes."""

    wait_s = 0.0

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Wait, then go on."""
        time.sleep(self.wait_s)
        return super().training_step(*args, **kwargs)


class NothingPrefetched(FeatureBank):
    """Prepares volumes in the step that needs them."""

    def prefetch(self, handle: int) -> None:
        """Do nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """What differs between the arms of a comparison."""

    trainer: type[WeightedTrainer] = WeightedTrainer
    bank: Callable[..., FeatureBank] = FeatureBank
    questions: int = 1  # a row of the language model holds


def side_by_side(
    arms: Mapping[str, Arm],
    size: Size,
    steps: int,
    some: Sequence[Case],
    folder: Path,
    *,
    encoder: Mapping[str, Any] = DEMO_ENCODER,
    bridge: Mapping[str, Any] = BRIDGE,
    rows: int = ROWS,
    prompt_tokens: int = PROMPT_TOKENS,
    in_turn: int = 1,
    now: Callable[[], float] = time.process_time,
) -> tuple[dict[str, list[float]], dict[str, Heard]]:
    """Return the seconds of each arm's steps but the first, and what the arms told."""
    heard: dict[str, Heard] = {}

    def loop(kind: str, arm: Arm, step_done: Callable[[], None]) -> None:
        model, processor = build(size, encoder, bridge)
        images = processor.image_processor
        bank = arm.bank(model.model.encoder.input)
        images.connect(model.model.encoder, model.model.bridge, images.parts()[2], bank)
        model.model.bank = bank
        settings = SftSettings(
            train=("bridge",), steps=steps, learning_rate=1e-5, rows_per_step=rows, trl={"use_cpu": True},
            questions_per_volume=arm.questions,
        )  # fmt: skip
        heard[kind] = Heard(step_done)
        asked = source(some, processor, prompt_tokens, in_turn=in_turn)
        sft.WeightedTrainer = arm.trainer  # type: ignore[misc]
        trainer = sft.make_trainer(
            model, processor, asked, settings, folder / kind, seed=1, announce=heard[kind],
            reweighter=Uniform() if in_turn > 1 else None,
        )  # fmt: skip
        heard[kind].clock = trainer.clock
        stage.train(trainer, folder / kind, resume=False)

    loops = {kind: functools.partial(loop, kind, arm) for kind, arm in arms.items()}
    seconds = Turns(loops, now).run()
    return {kind: taken[1:] for kind, taken in seconds.items()}, heard


def cached(
    title: str,
    encoder: Mapping[str, Any],
    bridge: Mapping[str, Any],
    needed: float | None,
    size: Size,
    steps: int,
    folder: Path,
) -> tuple[list[Figure], dict[str, Any]]:
    """Return the figures of one encoder, with features kept and encoded anew."""
    arms = {
        "re-encoding": Arm(bank=functools.partial(FeatureBank, memory_bytes=0)),
        "cached": Arm(bank=functools.partial(FeatureBank, memory_bytes=1 << 30)),
    }
    some = cases(folder / "volumes", ROWS)
    seconds, heard = side_by_side(arms, size, steps, some, folder, encoder=encoder, bridge=bridge)
    kept, again = seconds["cached"], seconds["re-encoding"]
    result = [
        figure(f"{title}: cached", ratios(again, kept), "x re-encoding", at_least=needed),
        figure(f"{title}: cached, time", kept, "CPU s a step"),
        figure(f"{title}: re-encoding, time", again, "CPU s a step"),
    ]
    told = heard["re-encoding"].steps[1:]
    parts = [name for name in told[0] if name.endswith("_s")]
    medians = {name: statistics.median(item.get(name, 0.0) for item in told) for name in parts}
    return result, {f"{title}, re-encoding_s": medians}


def head(size: Size, steps: int, folder: Path) -> list[Figure]:
    """Return the figures of the head on answers, beside the head on all places."""
    arms = {"all": Arm(trainer=WholeHead), "answers": Arm()}
    seconds, heard = side_by_side(arms, size, steps, cases(folder / "volumes", ROWS), folder)
    compare_losses(heard)
    name = f"head on answers, {size.vocabulary} words"
    return [
        figure(name, ratios(seconds["all"], seconds["answers"]), "x on all places", at_least=1.0),
        figure(f"{name}, time", seconds["answers"], "CPU s a step"),
    ]


def compare_losses(heard: Mapping[str, Heard]) -> None:
    """End where two arms told different losses."""
    losses = [[step["loss"] for step in one.steps] for one in heard.values()]
    if any(abs(item - other) > EQUAL for item, other in zip(*losses, strict=True)):
        raise SystemExit(f"the losses differ: {losses}")


def packed(size: Size, steps: int, folder: Path, table: Mapping[str, Any], needed: float) -> list[Figure]:
    """Return the figures of questions behind their volume, beside rows of their own."""
    size = dataclasses.replace(size, markup=MARKUP)
    _, processor = build(size, table, BRIDGE)
    some = cases(folder / "volumes", 2)
    visual = processor.image_processor.tokens(Crop(volume=some[0].volumes[0]))
    shortest = source(some, processor, 4096)[0].prompt  # as long as it is told to be
    around = len(processor.encode(dataclasses.replace(shortest, parts=shortest.parts[:1])).ids)
    arms = {"apart": Arm(), "packed": Arm(questions=QUESTIONS)}
    seconds, heard = side_by_side(
        arms, size, steps, some, folder, encoder=table, rows=QUESTIONS,
        prompt_tokens=around + QUESTION_TOKENS, in_turn=QUESTIONS,
    )  # fmt: skip
    compare_losses(heard)
    name = f"{QUESTIONS} questions packed behind {visual} visual tokens"
    return [
        figure(name, ratios(seconds["apart"], seconds["packed"]), "x in rows of their own", at_least=needed),
        figure(f"{name}, time", seconds["packed"], "CPU s a step"),
    ]


def prefetched(size: Size, steps: int, folder: Path, voxels: tuple[int, int, int]) -> list[Figure]:
    """Return the figures of volumes that are prepared while a step waits for an accelerator."""
    some = cases(folder / "volumes", ROWS * (steps + 1), voxels)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    bank = FeatureBank(factory.build("encoder", dict(DEMO_ENCODER), given={}, where="benchmark").input)
    handles = [bank.handle(Crop(volume=case.volumes[0]), bank.spec.size_zyx) for case in some[:ROWS]]
    start_s = time.perf_counter()
    bank.pixels(handles)
    Waiting.wait_s = time.perf_counter() - start_s
    arms = {"not": Arm(trainer=Waiting, bank=NothingPrefetched), "prefetched": Arm(trainer=Waiting)}
    seconds, _ = side_by_side(arms, size, steps, some, folder, now=time.perf_counter)
    torch.set_num_threads(before)
    return [
        figure(
            "volumes prefetched",
            ratios(seconds["not"], seconds["prefetched"]),
            "x in their step",
            at_least=1.0,
        ),
        figure("volumes prefetched, time", seconds["prefetched"], "s a step"),
        figure("volumes prefetched, the wait in it", [Waiting.wait_s], "s a step"),
    ]


def main() -> None:
    """Measure and print."""
    given = parser(__doc__).parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    size = Size(hidden=128, layers=2, vocabulary=512) if given.quick else Size()
    steps = 3 if given.quick else 6
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, encoder, bridge, needed in ENCODERS[-1:] if given.quick else ENCODERS:
            result, more = cached(title, encoder, bridge, needed, size, steps, folder / title)
            figures += result
            details |= more
        wide = size if given.quick else dataclasses.replace(size, vocabulary=WORDS)
        figures += head(wide, steps, folder / "head")
        for number, (table, needed) in enumerate(PREFIXES[:1] if given.quick else PREFIXES):
            figures += packed(size, steps, folder / f"packed-{number}", table, needed)
        small = Size(hidden=128, layers=2, vocabulary=512)  # the wait stands for what it would compute
        figures += prefetched(
            small, steps, folder / "prefetched", (32, 64, 64) if given.quick else (96, 256, 256)
        )
    tell(__doc__, figures, as_json=given.json, details=details)


if __name__ == "__main__":
    main()
