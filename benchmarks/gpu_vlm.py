"""A recipe with a vision-language model of published size, on one GPU: seconds and memory of its stages.

python benchmarks/gpu_vlm.py [--id Qwen/Qwen3-VL-4B-Instruct] [--bfloat16 | --4bit] [--plan]     one GPU

A transformers folder is written in the model's published shape, weights random, in bfloat16; it is read as a
user's. The recipe is recipes/paper/emrl.toml's in little: 64 slices of 256 pixels, so 4,096 visual tokens;
adapters of rank 128; SFT, evaluation, GRPO, evaluation and audit, of few steps over generated scans. Answers
are noise, and are paid by a hash of their text, so that no group is left out. Printed are a stage's seconds
and the most that torch's allocator had in use, beside `evid plan`'s. `--bfloat16` keeps in it what no stage
trains, `--4bit` the language model's layers in 4 bits besides. `--plan` prints what is planned and runs
nothing; `--quick --device cpu` shrinks the model, to see that it runs.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidcore.api import observe

GB = 1e9
RECIPE = """\
schema = 1
name = "gpu-vlm"
seed = 17
arms = false

[dataset.chest]
use = "phantom-chest"
train_cases = {cases}
validation_cases = 4
test_cases = 6
questions_per_finding = 1

[task.choice]
use = "choice"

[task.report]
use = "report"

[model]
bfloat16 = {bfloat16}
load_in_4bit = {in_4bit}
language = {{ {language} }}
view = {{ use = "slices", slices = {slices} }}

[model.encoder]
use = "published-vision"
size = {size}
slices = {slices}
windows = [[-160, 240]]

[model.bridge]
use = "published-tokens"

[[stage]]
kind = "sft"
train = ["language"]
data = [{{ dataset = "chest", task = "report" }}]
steps = 3
rows_per_step = 4
rows_per_forward = 1
learning_rate = 2e-5
lora = {{ rank = {rank} }}
trl = {{ activation_checkpointing = true }}

[[stage]]
kind = "evaluate"
data = [{{ dataset = "chest", task = "report", split = "test" }}]
max_new_tokens = {answer}
prompts_per_batch = 4

[[stage]]
kind = "grpo"
train = ["language"]
data = [{{ dataset = "chest", task = "choice" }}]
steps = 3
prompts_per_step = 2
prompts_per_forward = 1
answers_per_prompt = 8
learning_rate = 1e-6
max_new_tokens = {answer}
lora = {{ rank = {rank} }}
trl = {{ beta = 0.01, activation_checkpointing = true }}
reward = [{{ use = "text-hash" }}]

[[stage]]
kind = "evaluate"
data = [{{ dataset = "chest", task = "choice", split = "test" }}]
max_new_tokens = {answer}
prompts_per_batch = 4

[[stage]]
kind = "audit"
data = [{{ dataset = "chest", task = "choice", split = "test" }}]
max_new_tokens = {answer}
prompts_per_batch = 4
conditions = [{{ use = "blank" }}]
"""


class Peaks:
    """Says of each stage how long it took, and the most memory it had in use, beside what was planned."""

    def __init__(self, device: str, planned: Mapping[str, Any]) -> None:
        self.on_gpu, self.planned, self.began_s = device == "cuda", planned, 0.0

    @observe
    def stage_started(self, stage: str, folder: Path) -> None:
        """Count anew."""
        import torch

        self.began_s = time.perf_counter()
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()

    @observe
    def stage_finished(self, stage: str, folder: Path, figures: Mapping[str, Any]) -> None:
        """Say it at once: what is cut short has said what it knew."""
        import torch

        seconds = time.perf_counter() - self.began_s
        taken = torch.cuda.max_memory_allocated() / GB if self.on_gpu else 0.0
        result = self.planned[stage] or {}
        memory = result.get("bfloat16" if self.on_gpu else "float32") or result.get("float32")
        planned = "not planned" if memory is None else f"{memory.peak / GB:.2f} GB planned"
        print(f"{stage:16} {seconds:7.1f} s   {taken:.2f} GB at most, {planned}", flush=True)


def write_model(folder: Path, identity: str, device: str, quick: bool) -> None:
    """Write the folder: the published shape, our tokenizer filled up to its vocabulary."""
    import torch
    from bench_model import words
    from evidcore_testing import tiny_vision_language
    from transformers import AutoConfig, AutoModelForImageTextToText

    from evidcore.model.architecture import shipped
    from evidcore.train.tiny_model import SPECIAL_TOKENS

    config = AutoConfig.from_pretrained(shipped()[identity].folder)
    if quick:
        tiny_vision_language(folder, config.model_type)
        return
    text = config.text_config
    tokenizer = words(text.vocab_size)
    ids = dict(zip(SPECIAL_TOKENS, tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)), strict=True))
    config.update({
        "image_token_id": ids["<|image_pad|>"], "video_token_id": text.vocab_size - 1,
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
    })  # fmt: skip
    text.bos_token_id, text.eos_token_id, text.pad_token_id = (
        None, tokenizer.eos_token_id, tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def offer_reward(folder: Path) -> None:
    """Have `text-hash` known as an installed package's."""
    marks = folder / "gpu_vlm_reward-0.dist-info"
    marks.mkdir()
    (marks / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: gpu-vlm-reward\nVersion: 0\n", encoding="utf-8"
    )
    (marks / "entry_points.txt").write_text(
        "[evidcore.reward]\ntext-hash = bench_model:TextHash\n", encoding="utf-8"
    )
    sys.path.insert(0, str(folder))


def main() -> None:
    """Write the model, plan, run, print."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--id", default="Qwen/Qwen3-VL-4B-Instruct")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--bfloat16", action="store_true")
    options.add_argument("--4bit", action="store_true", dest="in_4bit")
    options.add_argument("--plan", action="store_true")
    options.add_argument("--quick", action="store_true")
    given = options.parse_args()
    if given.device == "cpu" and not given.quick:
        options.error("the published size does not run on a CPU; add --quick")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        offer_reward(scratch)
        from evidcore_plugin_lab.plan.plan import plan

        from evidcore.recipe import load
        from evidcore.runs.begin import run, start

        sizes = {"slices": 4, "size": 56, "rank": 4, "answer": 24} if given.quick else {
            "slices": 64, "size": 256, "rank": 128, "answer": 64
        }  # fmt: skip
        if "Qwen3" not in given.id:
            sizes["size"] = sizes["size"] // 28 * 28
        elif given.quick:
            sizes["size"] = 64
        language = f'id = "{given.id}", revision = "{"0" * 40}"'  # of a plan: nothing is loaded
        if not given.plan:
            language = f'folder = "{scratch / "model"}"'
            began_s = time.perf_counter()
            write_model(scratch / "model", given.id, given.device, given.quick)
            print(f"{given.id}: written in {time.perf_counter() - began_s:.0f} s", flush=True)
        kept = '["encoder", "language"]' if given.bfloat16 or given.in_4bit else "[]"
        in_4bit = str(given.in_4bit).lower()
        text = RECIPE.format(language=language, cases=16, bfloat16=kept, in_4bit=in_4bit, **sizes)
        (scratch / "recipe.toml").write_text(text, encoding="utf-8")
        recipe = load(scratch / "recipe.toml")
        needed = {item.stage: item.memory for item in plan(recipe, scratch / "runs").stages}
        if given.plan:
            for stage, memory in needed.items():
                assert memory is not None  # the shape is known
                parts = vars(memory["bfloat16"]).items()
                print(f"{stage:16}", *(f"{name} {size / GB:.2f}" for name, size in parts if size), "GB")
            return
        run(start(recipe, scratch / "runs"), [Peaks(given.device, needed)])


if __name__ == "__main__":
    main()
