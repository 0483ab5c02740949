"""A step of SFT and of GRPO at the paper's size on one GPU: seconds, and peak memory beside `evid plan`'s.

python benchmarks/gpu_step.py [--out FOLDER] [--steps 3] [--quick --device cpu]    one GPU of 80 GB

Model, rows of a step and settings are those of recipes/paper/med3d_r1.toml; weights are random, volumes
generated, prompts and answers have the lengths that the plan assumes. Each stage runs in its own process. The
first step is left out of the times; memory is the greatest that torch's allocator had in use. `--quick`
shrinks the model, to see that it runs, and then also on a CPU, where memory is not measured.

`--out` also keeps the figures.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "recipes" / "paper" / "med3d_r1.toml"
NO_CUDA = 3  # exit code where there is nothing to measure on
GB = 1e9
SMALL = {  # model.encoder of --quick: 2 x 2 x 2 patches, 1 visual token
    "size_zyx": [8, 16, 16], "patch_zyx": [4, 8, 8], "width": 24, "layers": 1, "heads": 2,
}  # fmt: skip


class Heard:
    """Keeps the seconds of each step."""

    def __init__(self, device: Any) -> None:
        self.device, self.ends_s = device, [time.perf_counter()]

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note the time, when the device has done all."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize()
        self.ends_s.append(time.perf_counter())

    def rollouts_judged(self, step: int, groups: Any) -> None:
        """Drop it."""

    def seconds(self) -> list[float]:
        """Return the seconds of each step but the first."""
        return [after - before for before, after in zip(self.ends_s[1:], self.ends_s[2:], strict=False)]


def measure(kind: str, device_name: str, steps: int, quick: bool) -> dict[str, Any]:
    """Run some steps of the recipe's `sft` or `grpo` stage in this process."""
    import torch
    from bench_model import TextHash, cases, source
    from evidcore_plugin_lab.plan.lengths import ASSUMED_ANSWER_TOKENS, ASSUMED_PROMPT_TEXT_TOKENS, Lengths
    from evidcore_plugin_lab.plan.needs import memory

    from evidcore.api import Report
    from evidcore.builtin.rollouts import Plain
    from evidcore.recipe import load
    from evidcore.reward.composer import NamedReward
    from evidcore.train.grpo import Grpo
    from evidcore.train.sft import Sft
    from evidcore.train.trl import grpo, sft, stage

    device = torch.device(device_name)
    recipe = load(RECIPE)
    model, processor, made = build(recipe, device, quick)
    planned = next(item for item in recipe.stages if item.kind == kind)
    assert isinstance(planned, Sft | Grpo)
    common = {"steps": steps, "trl": {**planned.trl, "use_cpu": device.type == "cpu"}}
    answer = ASSUMED_ANSWER_TOKENS if isinstance(planned, Sft) else planned.max_new_tokens
    if quick:
        answer = 24
    prompt = made.visual_tokens + (96 if quick else ASSUMED_PROMPT_TEXT_TOKENS)
    rows = Lengths(
        prompt_tokens=prompt, text_tokens=prompt - made.visual_tokens, answer_tokens=answer, volumes=1,
        size_zyx=made.encoder.input.size_zyx, ground="counted",
    )  # fmt: skip
    heard = Heard(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # a letter is a token, and the turn's end two
        some = [
            dataclasses.replace(case, report=Report(text="a" * (answer - 2)))
            for case in cases(folder / "volumes", 16)
        ]
        asked = source(some, processor, prompt, "report" if kind == "sft" else "choice")
        trainer: Any
        if isinstance(planned, Sft):
            planned = dataclasses.replace(planned, **common)
            trainer = sft.make_trainer(
                model, processor, asked, planned, folder / "out", seed=1, announce=heard
            )
        else:
            planned = dataclasses.replace(planned, **common, max_new_tokens=answer)
            trainer = grpo.make_trainer(
                model, processor, asked, [NamedReward(name="text-hash", reward=TextHash())],
                planned, folder / "out", seed=1, strategy=Plain(), announce=heard,
            )  # fmt: skip
        trainer.args.save_strategy = "no"
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        stage.train(trainer, folder / "out", resume=False)
    result = memory(made, planned.workload(), rows)
    assert result is not None
    is_half = bool(trainer.args.bf16)
    step_rows = planned.rows_per_step if isinstance(planned, Sft) else (
        planned.prompts_per_step * planned.answers_per_prompt
    )  # fmt: skip
    return {
        "seconds": heard.seconds(),
        "tokens": step_rows * (prompt + answer),
        "predicted_bytes": result["bfloat16" if is_half else "float32"].peak,
        "taken_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "parameters": dict(made.parameters),
    }


def build(recipe: Any, device: Any, quick: bool) -> tuple[Any, Any, Any]:
    """Return the recipe's model with random weights on `device`, its processor, and its shapes."""
    import torch
    from bench_model import words
    from evidcore_plugin_lab.plan.shapes import Shapes
    from transformers import AutoConfig, AutoModelForCausalLM

    from evidcore.model import assemble
    from evidcore.model.architecture import shipped
    from evidcore.registry import factory

    encoder_table = {**recipe.model.encoder, "pretrained": "", **(SMALL if quick else {})}
    config = AutoConfig.from_pretrained(shipped()[recipe.model.language["id"]].folder)
    if quick:
        config.update({
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 512,
        })  # fmt: skip
        config.layer_types = config.layer_types[:2]
    tokenizer = words(config.vocab_size)
    config.bos_token_id, config.pad_token_id = None, tokenizer.pad_token_id
    config.eos_token_id = tokenizer.eos_token_id
    torch.manual_seed(0)
    with device:
        language = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        encoder = factory.build("encoder", encoder_table, given={}, where="benchmark")
    model, processor = assemble.assemble(
        language, tokenizer, encoder, encoder_table=encoder_table, bridge_table=recipe.model.bridge,
        view_table=recipe.model.view,
    )  # fmt: skip
    torch.nn.Module.to(model, device)
    with torch.device("meta"):
        bare = factory.build("encoder", encoder_table, given={}, where="benchmark")
        given = {
            "width": bare.width, "text_width": config.hidden_size,
            "grid_zyx": bare.grid(bare.input.size_zyx),
        }  # fmt: skip
        bridge = factory.build("bridge", recipe.model.bridge, given=given, where="benchmark")
    made = Shapes(
        encoder=bare, bridge=bridge, config=config, has_known_width=True,
        language=torch.nn.ModuleList([model.model.language_model, model.lm_head]), in_bfloat16={},
    )  # fmt: skip
    return model, processor, made


def figures_of(found: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Return the lines of the page."""
    from side_by_side import figure

    lines = []
    for kind, item in found.items():
        lines.append(figure(f"{kind}: a step", item["seconds"], "s"))
        lines.append(
            figure(f"{kind}: tokens", [item["tokens"] / s for s in item["seconds"]], "tokens a second")
        )
        lines.append(figure(f"{kind}: peak memory, predicted", [item["predicted_bytes"] / GB], "GB"))
        if item["taken_bytes"] is not None:
            taken = item["taken_bytes"]
            lines.append(figure(f"{kind}: peak memory, taken", [taken / GB], "GB"))
            lines.append(figure(f"{kind}: predicted / taken", [item["predicted_bytes"] / taken], ""))
    return lines


def main() -> None:
    """Measure both stages, each in a process of its own, and print or keep."""
    from side_by_side import machine, parser, tell

    options = parser(__doc__)
    options.add_argument("--out", type=Path, help="a folder for gpu_step.json")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--steps", type=int, default=3, help="of each stage; the first is not timed")
    options.add_argument("--stage", choices=("sft", "grpo"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.stage:
        print(json.dumps(measure(given.stage, given.device, given.steps, given.quick)))
        return
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            f"no CUDA device: torch {torch.__version__} sees none, so there is nothing to measure on. "
            "`--quick --device cpu` shows that the script runs.",
            file=sys.stderr,
        )
        sys.exit(NO_CUDA)
    if given.device == "cpu" and not given.quick:
        options.error("the paper's size does not run on a CPU; add --quick")
    results = {}
    for kind in ("sft", "grpo"):
        words = ["--stage", kind, "--device", given.device, "--steps", str(given.steps)]
        words += ["--quick"] if given.quick else []
        done = subprocess.run(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True
        )
        results[kind] = json.loads(done.stdout.splitlines()[-1])
    lines = figures_of(results)
    tell(__doc__, lines, as_json=given.json)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        result = {
            "claim": " ".join((__doc__ or "").split("\n\n")[0].split()),
            "command": "benchmarks/gpu.sh",
            "machine": machine(),
            "figures": [dataclasses.asdict(line) for line in lines],
        }
        place = given.out / "gpu_step.json"
        place.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"kept: {place}", file=sys.stderr)


if __name__ == "__main__":
    main()
