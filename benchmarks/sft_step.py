"""An SFT step from cached features, beside the same step with the frozen encoder run again each time.

python benchmarks/sft_step.py [--json] [--quick]        2 cores, 4 minutes, no download

Both arms are our trainer with the same model, rows and seed, training a bridge to a frozen language model of
hidden 512 and 8 layers, which is the usual first stage; 2 rows a step of 192 prompt tokens and their answers.
One has a feature bank of no bytes, so that each step reads, prepares and encodes its volumes. They take steps
in turn; time is CPU time of one thread. The encoders are a 3D ViT-S with 2048 patches of 32 x 256 x 256
voxels, the input of M3D's, and the demo's, which is far smaller than the language model here. The first step
of each arm is left out; all volumes are in the bank then.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from bench_model import BRIDGE, DEMO_ENCODER, VIT_S, Size, build, cases, source
from side_by_side import Figure, Turns, figure, parser, ratios, tell

from evidcore.compute.clock import Clock
from evidcore.model.bank import FeatureBank
from evidcore.train.settings import SftSettings
from evidcore.train.trl import stage
from evidcore.train.trl.sft import make_trainer

ROWS, PROMPT_TOKENS = 2, 192
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


def measure(
    title: str,
    encoder: Mapping[str, Any],
    bridge: Mapping[str, Any],
    needed: float | None,
    size: Size,
    steps: int,
) -> tuple[list[Figure], dict[str, Any]]:
    """Return the figures of one encoder."""
    heard: dict[str, Heard] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = cases(folder / "volumes", ROWS)

        def arm(kind: str, memory_bytes: int) -> Callable[[Callable[[], None]], None]:
            def loop(step_done: Callable[[], None]) -> None:
                model, processor = build(size, encoder, bridge)
                images = processor.image_processor
                bank = FeatureBank(model.model.encoder.input, memory_bytes=memory_bytes)
                images.connect(model.model.encoder, model.model.bridge, images.parts()[2], bank)
                model.model.bank = bank
                settings = SftSettings(
                    train=("bridge",), steps=steps, learning_rate=1e-5, rows_per_step=ROWS,
                    trl={"use_cpu": True},
                )  # fmt: skip
                heard[kind] = Heard(step_done)
                asked = source(some, processor, PROMPT_TOKENS)
                trainer = make_trainer(
                    model, processor, asked, settings, folder / kind, seed=1, announce=heard[kind]
                )
                heard[kind].clock = trainer.clock
                stage.train(trainer, folder / kind, resume=False)

            return loop

        arms = {"re-encoding": arm("re-encoding", 0), "cached": arm("cached", 1 << 30)}
        seconds = Turns(arms, time.process_time).run()
    cached, again = seconds["cached"][1:], seconds["re-encoding"][1:]
    found = [
        figure(f"{title}: cached", ratios(again, cached), "x re-encoding", at_least=needed),
        figure(f"{title}: cached, time", cached, "CPU s a step"),
        figure(f"{title}: re-encoding, time", again, "CPU s a step"),
    ]
    told = heard["re-encoding"].steps[1:]
    parts = [name for name in told[0] if name.endswith("_s")]
    medians = {name: statistics.median(one.get(name, 0.0) for one in told) for name in parts}
    return found, {f"{title}, re-encoding_s": medians}


def main() -> None:
    """Measure and print."""
    given = parser(__doc__).parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    size = Size(hidden=128, layers=2, vocabulary=512) if given.quick else Size()
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for title, encoder, bridge, needed in ENCODERS[-1:] if given.quick else ENCODERS:
        found, more = measure(title, encoder, bridge, needed, size, 3 if given.quick else 6)
        figures += found
        details |= more
    tell(__doc__, figures, as_json=given.json, details=details)


if __name__ == "__main__":
    main()
