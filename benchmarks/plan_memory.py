"""Peak memory of training steps as `evid plan` predicts it, over what the process was seen to take.

python benchmarks/plan_memory.py [--json] [--quick]        2 cores, 5 minutes, no download

Each case is a process of its own: it imports everything, notes the memory it occupies, resets the kernel's
mark of its greatest memory, builds a model with random weights, takes two steps and reads the mark (Linux
alone). The model: a language model of hidden 512 and 8 layers with a vocabulary of 8192, a 3D ViT over 512
patches, 64 visual tokens; float32 on a CPU. A ratio above 1 means that the plan promised more than was taken.
The prediction counts tensors; what the process took holds an allocator's gaps and all of Python besides.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# freed memory goes back to the system at once: what is occupied is then what is in use
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
MB = 1e6
STEPS = 2  # the second has the optimizer's state from its start
WHOLE = ("encoder", "bridge", "language")
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sft, bridge": ("sft", {"train": ("bridge",), "rows_per_step": 4}),
    "sft, whole model": ("sft", {"train": WHOLE, "rows_per_step": 4}),
    "sft, whole model, 4 passes": ("sft", {"train": WHOLE, "rows_per_step": 8, "rows_per_forward": 2}),
    "grpo, bridge": ("grpo", {"train": ("bridge",), "prompts_per_step": 2}),
    "grpo, whole model, with a reference": (
        "grpo", {"train": WHOLE, "prompts_per_step": 2, "trl": {"beta": 0.04}},
    ),
    "grpo, whole model, 4 passes": (
        "grpo", {"train": WHOLE, "prompts_per_step": 4, "prompts_per_forward": 1, "trl": {"beta": 0.04}},
    ),
    "grpo, whole model, activations computed again": (
        "grpo",
        {"train": WHOLE, "prompts_per_step": 4, "trl": {"beta": 0.04, "activation_checkpointing": True}},
    ),
    "grpo, prompts not shared": (
        "grpo", {"train": WHOLE, "prompts_per_step": 2, "share_prompts": "never", "trl": {"beta": 0.04}},
    ),
}  # fmt: skip


def one(title: str, quick: bool) -> dict[str, float]:
    """Run a case in this process; return bytes predicted and taken."""
    import torch
    from bench_model import BRIDGE, DEMO_ENCODER, Size, build, cases, source

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    from evidcore_plugin_lab.plan.lengths import Lengths
    from evidcore_plugin_lab.plan.needs import memory
    from evidcore_plugin_lab.plan.shapes import Shapes

    from evidcore.builtin.rollouts import Plain
    from evidcore.contracts.stage import NullSink
    from evidcore.reward.composer import NamedReward
    from evidcore.train.grpo import Grpo
    from evidcore.train.sft import Sft
    from evidcore.train.trl import grpo, sft, stage

    kind, keys = CASES[title]
    size = Size(hidden=256, layers=2, vocabulary=1024) if quick else Size()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = cases(folder / "volumes", 8)
        warm_up(folder / "warm", some, kind)
        before = occupied("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        model, processor = build(size)
        asked = source(some, processor, 192)
        common = {"steps": STEPS, "learning_rate": 1e-5, "data": (), **keys}
        common["trl"] = {**keys.get("trl", {}), "use_cpu": True}
        planned: Sft | Grpo
        if kind == "sft":
            planned = Sft(kind="sft", **common)
            rows = [(len(asked[index].prompt.parts), gold(asked, index, processor)) for index in range(16)]
            answer = max(row[1] for row in rows)
            trainer: Any = sft.make_trainer(
                model, processor, asked, planned, folder / "out", seed=1, announce=NullSink()
            )
        else:
            planned = Grpo(kind="grpo", **common, reward=(), answers_per_prompt=4, max_new_tokens=64)
            answer = 64
            rewards = [NamedReward(name="text-hash", reward=text_hash())]
            trainer = grpo.make_trainer(
                model, processor, asked, rewards, planned, folder / "out", seed=1,
                strategy=Plain(), announce=NullSink(),
            )  # fmt: skip
        text = 192 - processor.image_processor.tokens(asked[0].prompt.crops()[0])
        lengths = Lengths(
            prompt_tokens=192, text_tokens=text, answer_tokens=answer, volumes=1,
            size_zyx=model.model.encoder.input.size_zyx, ground="counted",
        )  # fmt: skip
        trainer.args.save_strategy = "no"
        stage.train(trainer, folder / "out", resume=False)
        taken = occupied("VmHWM") - before
        with torch.device("meta"):
            from evidcore.registry import factory

            encoder = factory.build("encoder", DEMO_ENCODER, given={}, where="benchmark")
            given = {
                "width": encoder.width, "text_width": size.hidden,
                "grid_zyx": encoder.grid(encoder.input.size_zyx),
            }  # fmt: skip
            bridge = factory.build("bridge", BRIDGE, given=given, where="benchmark")
        made = Shapes(
            encoder=encoder, bridge=bridge, config=model.config.text_config, has_known_width=True,
            language=torch.nn.ModuleList([model.model.language_model, model.lm_head]), in_bfloat16={},
        )  # fmt: skip
        result = memory(made, planned.workload(), lengths)
        assert result is not None
    return {"predicted": result["float32"].peak, "taken": taken}


def text_hash() -> Any:
    """Return the benchmarks' reward."""
    from bench_model import TextHash

    return TextHash()


def gold(asked: Any, place: int, processor: Any) -> int:
    """Return the tokens of a row's gold answer, the end of its turn among them."""
    row = asked[place]
    return len(processor.tokenizer(row.task.gold(row.prompt)[0], add_special_tokens=False).input_ids) + 2


def warm_up(folder: Path, some: list[Any], kind: str) -> None:
    """Take a step with the least model, so that what libraries build for themselves is there already."""
    from bench_model import Size, build, source

    from evidcore.builtin.rollouts import Plain
    from evidcore.contracts.stage import NullSink
    from evidcore.reward.composer import NamedReward
    from evidcore.train.settings import GrpoSettings, SftSettings
    from evidcore.train.trl import grpo, sft, stage

    model, processor = build(Size(hidden=64, layers=1, vocabulary=512))
    asked = source(some, processor, 192)
    keys: dict[str, Any] = {"train": ("bridge",), "steps": 1, "learning_rate": 1e-5, "trl": {"use_cpu": True}}
    if kind == "sft":
        settings = SftSettings(**keys, rows_per_step=2)
        trainer: Any = sft.make_trainer(
            model, processor, asked, settings, folder, seed=1, announce=NullSink()
        )
    else:
        rewards = [NamedReward(name="text-hash", reward=text_hash())]
        trainer = grpo.make_trainer(
            model, processor, asked, rewards,
            GrpoSettings(**keys, prompts_per_step=1, answers_per_prompt=2, max_new_tokens=4),
            folder, seed=1, strategy=Plain(), announce=NullSink(),
        )  # fmt: skip
    trainer.args.save_strategy = "no"
    stage.train(trainer, folder, resume=False)


def occupied(mark: str) -> int:
    """Return bytes of this process that are in memory: now (`VmRSS`), or at most (`VmHWM`)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{mark}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {mark}: memory is read on Linux alone")


def main() -> None:
    """Run the cases, each in a process of its own, and print."""
    from side_by_side import Figure, figure, parser, tell

    options = parser(__doc__)
    options.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.case:
        print(json.dumps(one(given.case, given.quick)))
        return
    figures: list[Figure] = []
    ratios = []
    for title in list(CASES)[:2] if given.quick else CASES:
        command = [sys.executable, __file__, "--case", title, *(["--quick"] if given.quick else [])]
        done = subprocess.run(
            command, env={**os.environ, **ALLOCATOR}, stdout=subprocess.PIPE, text=True, check=True
        )
        result = json.loads(done.stdout.splitlines()[-1])
        ratios.append(result["predicted"] / result["taken"])
        figures += [
            figure(f"{title}: predicted / taken", ratios[-1:], ""),
            figure(f"{title}: taken", [result["taken"] / MB], "MB"),
        ]
    figures.insert(0, figure("predicted / taken, all cases", ratios, ""))
    figures[1:1] = [figure("least", [min(ratios)], ""), figure("greatest", [max(ratios)], "")]
    tell(__doc__, figures, as_json=given.json)


if __name__ == "__main__":
    main()
