"""CPU seconds of scoring and sampling with a prompt computed once for its answers, beside once for each.

python benchmarks/break_even.py        1 core, about 1 minute, no download
python benchmarks/break_even.py --keep docs/results/break_even.json

Scoring is forward and backward pass of a language model (hidden 256, 2 layers, vocabulary 512) over one
prompt of P tokens and G answers of C tokens, in float32: each answer in a row of its own; all in one row; and
all in one row under a mask of all places by all places. Sampling is of C tokens for each of G answers.
Time is CPU time of one thread, arms by turns, the median of three.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from evidcore_testing import tiny_tokenizer
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from evidcore.contracts import Prefix, Sampling
from evidcore.model import assemble
from evidcore.model.generation import continue_rows
from evidcore.model.packed_attention import LEAST_SAVED, answer_log_probs, pack, packing_pays, tokens_saved
from evidcore.model.positions import counted
from evidcore.model.vlm import VolumeVLM
from evidcore.registry import factory

# tokens of a prompt, tokens of an answer, answers
SCORED = (
    *((prompt, after, 8) for prompt in (8, 32) for after in (16, 64, 256)),
    *((128, 16, 8), (128, 64, 4), (128, 64, 8), (128, 64, 16), (256, 256, 8), (512, 64, 8)),
)
SAMPLED = ((8, 64, 8), (128, 64, 8), (512, 64, 8), (256, 256, 8))
REPEATS = 3
VOCABULARY = 512


def build() -> VolumeVLM:
    """Return a model of random weights; its encoder is not used."""
    torch.manual_seed(0)
    language = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=None,
            eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip
    tables: dict[str, dict[str, Any]] = {
        "encoder": {"use": "vit3d"}, "bridge": {"use": "projection"}, "view": {"use": "volume"},
    }  # fmt: skip
    encoder = factory.build("encoder", tables["encoder"], given={}, where="benchmark")
    model, _ = assemble.assemble(
        language, tiny_tokenizer(), encoder, encoder_table=tables["encoder"], bridge_table=tables["bridge"],
        view_table=tables["view"],
    )  # fmt: skip
    model.train_only(["language"])
    return model


def log_probs_of(logits: Tensor, chosen: Tensor) -> Tensor:
    """Return the log-probability of each chosen token."""
    return logits.gather(-1, chosen[..., None]).squeeze(-1) - logits.logsumexp(-1)


def scoring(model: VolumeVLM, prompt: int, after: int, answers: int) -> dict[str, Callable[[], Tensor]]:
    """Return what is timed of scoring."""
    ids = torch.randint(6, VOCABULARY, (1, prompt))
    written = torch.randint(6, VOCABULARY, (1, answers, after))
    there = torch.ones_like(ids)
    packed = pack(ids, there, written, torch.ones_like(written), counted(there))
    rows = torch.cat([ids.expand(answers, -1), written[0]], dim=1)
    layout = packed.layout
    mask = layout.block_mask().mask_mod
    place = torch.arange(packed.input_ids.shape[1])
    dense = mask(torch.tensor(0), torch.tensor(0), place[:, None], place[None])[None, None]

    def apart() -> Tensor:
        logits = model(input_ids=rows, attention_mask=torch.ones_like(rows), logits_to_keep=after + 1).logits
        return log_probs_of(logits[:, :-1], written[0])

    def together() -> Tensor:
        return answer_log_probs(model, packed)

    def masked() -> Tensor:
        logits = model(
            input_ids=packed.input_ids, position_ids=packed.position_ids, attention_mask=dense,
            logits_to_keep=packed.labels.shape[1],
        ).logits  # fmt: skip
        return log_probs_of(logits, packed.labels)

    def backward(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def both() -> Tensor:
            model.zero_grad()
            result = forward()
            result.mean().backward()
            return result.detach().reshape(answers, after)

        return both

    return {"apart": backward(apart), "together": backward(together), "masked": backward(masked)}


def sampling(model: VolumeVLM, prompt: int, after: int, answers: int) -> dict[str, Callable[[], Tensor]]:
    """Return what is timed of sampling; prompts that differ in a token share nothing."""
    ids = torch.randint(6, VOCABULARY, (prompt,)).tolist()
    image = model.config.image_token_id
    how = Sampling(max_new_tokens=after, end_ids=(), pad_id=0, forbidden_ids=(image,))

    def sample(prefixes: list[Prefix]) -> Callable[[], Tensor]:
        def go() -> Tensor:
            result = continue_rows(model, prefixes, how, seeds=range(answers))
            return torch.tensor([item.log_probs for item in result])

        return go

    own = [Prefix((6 + number, *ids[1:])) for number in range(answers)]
    return {"apart": sample(own), "together": sample([Prefix(tuple(ids))] * answers)}


def timed(arms: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Run the arms by turns; return the median CPU seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(REPEATS):
        for name, run in arms.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return {name: round(statistics.median(values), 4) for name, values in seconds.items()}


def main() -> None:
    """Measure the grid, print it as a table, and keep it where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=Path, help="a JSON file to write")
    keep = parser.parse_args().keep
    torch.set_num_threads(1)
    model = build()
    result: dict[str, Any] = {
        "command": "python benchmarks/break_even.py",
        "machine": f"{platform.machine()}, one thread",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "scoring": [],
        "sampling": [],
    }
    print("| P | C | G | fewer tokens | one row | one row, full mask | rule |\n|---|---|---|---|---|---|---|")
    for prompt, after, answers in SCORED:
        arms = scoring(model, prompt, after, answers)
        torch.testing.assert_close(arms["together"](), arms["apart"](), rtol=0, atol=1e-5)
        took = timed(arms)
        result["scoring"].append({"prompt": prompt, "answer": after, "answers": answers, **took})
        shown = " | ".join(f"{took['apart'] / took[name]:.2f}x" for name in ("together", "masked"))
        saved = tokens_saved(prompt, after, answers)
        rule = "shares" if packing_pays(prompt, after, answers) else "does not"
        print(f"| {prompt} | {after} | {answers} | {saved:.2f} | {shown} | {rule} |", flush=True)
    print(f"\nThe rule shares from {LEAST_SAVED} times fewer tokens on.\n")
    print("| P | C | G | sampling |\n|---|---|---|---|")
    model.eval()
    for prompt, after, answers in SAMPLED:
        took = timed(sampling(model, prompt, after, answers))
        result["sampling"].append({"prompt": prompt, "answer": after, "answers": answers, **took})
        ratio = took["apart"] / took["together"]
        print(f"| {prompt} | {after} | {answers} | {ratio:.2f}x |", flush=True)
    if keep:
        keep.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
