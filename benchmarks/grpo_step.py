"""CPU seconds of a GRPO step, ours beside a loop written by hand and beside trl as it comes.

python benchmarks/grpo_step.py        2 cores, about 3 minutes, no download

The model is the demo's size: hidden 128, 3 layers, 64 visual tokens; 12 prompts of 8 answers, 25 tokens each.
Time is CPU time of one thread, so that other load on the machine changes little.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import datasets
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from evidcore.case import Rollout, Score, TextPart
from evidcore.contracts import Reward
from evidcore.model import assemble
from evidcore.model.generation import continue_rows
from evidcore.model.packing import answer_log_probs, pack
from evidcore.model.policy import VLMPolicy, sampling_of
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.plugins import factory
from evidcore.testing.data import volume_case
from evidcore.testing.models import tiny_language
from evidcore.train.rows import PromptSet, PromptSource, Row
from evidcore.train.settings import GrpoSettings, NamedReward
from evidcore.train.trl import stage
from evidcore.train.trl.grpo import make_trainer

PROMPTS, ANSWERS, TOKENS, STEPS = 12, 8, 25, 8
TIMED = ("generate_s", "reward_s/letters", "step_s")  # wall clock


def share_of_letters(text: str) -> float:
    """Return what is rewarded."""
    return sum(map(str.isalpha, text)) / max(len(text), 1)


class Letters(Reward):
    """Rewards letters."""

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Any]) -> list[Score]:
        """Judge each by itself."""
        return [Score(value=share_of_letters(rollout.text)) for rollout in rollouts]


class Clock:
    """Keeps the CPU time between steps."""

    def __init__(self) -> None:
        self.last, self.seconds = time.process_time(), list[float]()
        self.parts: list[dict[str, float]] = []

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note it."""
        now = time.process_time()
        self.seconds.append(now - self.last)
        self.parts.append(dict(metrics))
        self.last = now

    def rollouts_judged(self, step: int, groups: Sequence[Any]) -> None:
        """Drop it."""


class Source(PromptSource):
    """Short questions, as a tokenizer of whole words would make them."""

    def __getitem__(self, position: int) -> Row:
        """Cut the question."""
        row = super().__getitem__(position)
        parts = tuple(
            TextPart(text=part.text[:24]) if isinstance(part, TextPart) else part for part in row.prompt.parts
        )
        return Row(dataclasses.replace(row.prompt, parts=parts), row.task)


def build(folder: Path) -> tuple[VolumeVLM, VolumeProcessor]:
    """Return the model, the same each time."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_language(folder / "tiny"))
    torch.manual_seed(0)
    language = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )  # fmt: skip
    tables: dict[str, dict[str, Any]] = {
        "encoder": {"use": "vit3d"}, "bridge": {"use": "projection"}, "view": {"use": "volume"},
    }  # fmt: skip
    encoder = factory.build("encoder", tables["encoder"], given={}, where="benchmark")
    return assemble.assemble(
        language, tokenizer, encoder, encoder_table=tables["encoder"], bridge_table=tables["bridge"],
        view_table=tables["view"],
    )  # fmt: skip


def ours(model: VolumeVLM, processor: VolumeProcessor, source: PromptSource, folder: Path) -> Clock:
    """Run the stage's trainer."""
    clock = Clock()
    settings = GrpoSettings(
        train=("bridge", "language"), steps=STEPS, learning_rate=1e-4, prompts_per_step=PROMPTS,
        answers_per_prompt=ANSWERS, max_new_tokens=TOKENS,
    )  # fmt: skip
    rewards = [NamedReward(name="letters", reward=Letters())]
    trainer = make_trainer(model, processor, source, rewards, settings, folder, seed=1, announce=clock)
    stage.train(trainer, folder, resume=False)
    return clock


def by_hand(model: VolumeVLM, processor: VolumeProcessor, source: PromptSource, folder: Path) -> Clock:
    """Run a loop with nothing in it but the method."""
    clock = Clock()
    model.train_only(["bridge", "language"])
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.0)
    policy, pad = VLMPolicy(model, processor), processor.tokenizer.pad_token_id
    sampling = sampling_of(model, processor, max_new_tokens=TOKENS, temperature=1.0)
    for step in range(STEPS):
        prompts = [source[step * PROMPTS + place].prompt for place in range(PROMPTS)]
        prefixes = [policy.prefix(prompt) for prompt in prompts]
        rows = [prefix for prefix in prefixes for _ in range(ANSWERS)]
        found = continue_rows(model, rows, sampling, seeds=range(step * 1000, step * 1000 + len(rows)))
        texts = processor.tokenizer.batch_decode([one.ids for one in found], skip_special_tokens=True)
        rewards = torch.tensor([share_of_letters(text) for text in texts]).view(PROMPTS, ANSWERS)
        spread = rewards.std(1, keepdim=True) + 1e-4
        advantages = (rewards - rewards.mean(1, keepdim=True)) / spread
        longest = max(len(prefix.ids) for prefix in prefixes)
        ids = torch.tensor([[pad] * (longest - len(one.ids)) + list(one.ids) for one in prefixes])
        there = torch.tensor([[0] * (longest - len(one.ids)) + [1] * len(one.ids) for one in prefixes])
        after = max(len(one.ids) for one in found)
        answers = torch.tensor([list(one.ids) + [pad] * (after - len(one.ids)) for one in found])
        mask = torch.tensor([[1] * len(one.ids) + [0] * (after - len(one.ids)) for one in found])
        shape = (PROMPTS, ANSWERS, after)
        packed = pack(ids, there, answers.view(shape), mask.view(shape))
        handles = torch.tensor([prefix.handles for prefix in prefixes])
        log_probs = answer_log_probs(model, packed, handles)
        ratio = (log_probs - log_probs.detach()).exp()
        loss = -((ratio * advantages[..., None] * mask.view(shape)).sum(-1) / mask.view(shape).sum(-1)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        clock.step_finished(step + 1, {})
    return clock


def as_it_comes(model: VolumeVLM, processor: VolumeProcessor, source: PromptSource, folder: Path) -> Clock:
    """Run trl's trainer on the same model with images as references."""
    clock = Clock()
    model.train_only(["bridge", "language"])
    prompts = [source[place].prompt for place in range(STEPS * PROMPTS)]
    texts = ["".join(getattr(part, "text", "") for part in prompt.parts) for prompt in prompts]
    rows = [
        {
            "prompt": [{"role": "user", "content": text}],
            "images": [crop.uri() for crop in prompt.crops()],
        }
        for prompt, text in zip(prompts, texts, strict=True)
    ]

    def letters(completions: Any, **_: Any) -> list[float]:
        return [share_of_letters(one[0]["content"]) for one in completions]

    class Timed(GRPOTrainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if "loss" in logs:
                clock.step_finished(self.state.global_step, logs)

    arguments = GRPOConfig(
        str(folder), per_device_train_batch_size=PROMPTS * ANSWERS, num_generations=ANSWERS, max_steps=STEPS,
        max_completion_length=TOKENS, learning_rate=1e-4, loss_type="grpo", bf16=False, report_to=[],
        activation_checkpointing=False, logging_steps=1, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Timed(
        model=model, processing_class=processor, reward_funcs=[letters], args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
    )  # fmt: skip
    with stage.quiet():
        trainer.train()
    return clock


def main() -> None:
    """Run the three and print their medians."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    runs: dict[str, Callable[..., Clock]] = {"by hand": by_hand, "ours": ours, "trl as it comes": as_it_comes}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [volume_case(folder / "volumes", seed, size_zyx=(32, 32, 32)) for seed in range(16)]
        task = factory.build("task", {"use": "choice", "think": False}, given={}, where="benchmark")
        view = factory.build("view", {"use": "volume"}, given={}, where="benchmark")
        medians = {}
        for title, run in runs.items():
            model, processor = build(folder)
            source = Source([PromptSet(name="choice", task=task, view=view, cases=cases)], seed=1)
            clock = run(model, processor, source, folder / title.replace(" ", "-"))
            medians[title] = statistics.median(clock.seconds[2:])
            ratio = medians[title] / medians["by hand"]
            print(f"{title:16s} {medians[title]:6.3f} CPU s a step   {ratio:5.2f} x by hand", flush=True)
            if clock.parts[-1].get("generate_s"):
                parts = {name: statistics.median(one[name] for one in clock.parts[2:]) for name in TIMED}
                print("    " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()), flush=True)


if __name__ == "__main__":
    main()
