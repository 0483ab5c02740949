"""Milliseconds for a token of each row as CUDA graphs, and launch by launch; whether both write the same.

python benchmarks/step_graph.py [--paper] [--quick --device cpu]                       one GPU, 2 minutes

Rows of several prompts are sampled with seeds of their own, twice each way, in turn; the better of two
counts. Sizes: the small language model of grpo_step.py in float32 and under bfloat16, answers of equal and of
unequal lengths; with `--paper` the model of recipes/paper/med3d_r1.toml, all weights trained, none, and kept
in bfloat16. Besides: the most memory of both, and whether a capture that fails leaves random numbers and
sampling usable. On a CPU a graph's repetition is a call of what it would have captured.
"""

import argparse
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from bench_model import Size, build
from torch import nn

from evidcore.contracts import Continuation, Prefix, Sampling
from evidcore.model import generation, step_graph
from evidcore.model.parts import evaluating, keep_in_bfloat16

ENDS = range(7, 40)  # tokens that end a row, where lengths are unequal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """What is sampled."""

    title: str
    prompts: int
    answers: int
    prompt_tokens: int
    answer_tokens: int
    is_half: bool = True
    ends: Sequence[int] = (-1,)

    def rows(self) -> list[Prefix]:
        """Return the prompts, each as often as it has answers."""
        numbers = torch.Generator().manual_seed(0)
        lengths = [self.prompt_tokens - 3 * number for number in range(self.prompts)]
        prompts = [
            Prefix(tuple(torch.randint(60, 200, (one,), generator=numbers).tolist()), ()) for one in lengths
        ]
        return [prompt for prompt in prompts for _ in range(self.answers)]


@contextlib.contextmanager
def stepping(as_graph: bool, device: torch.device) -> Iterator[None]:
    """Compute steps one way."""
    with contextlib.ExitStack() as stack:
        if not as_graph:
            stack.enter_context(mock.patch.object(generation, "can_capture", return_value=False))
        elif device.type == "cpu":
            stack.enter_context(mock.patch.object(generation, "can_capture", return_value=True))
            stack.enter_context(mock.patch.object(step_graph, "captured", lambda run, device: run))
        yield


def sample(cell: Cell, model: Any) -> list[Continuation]:
    """Sample the cell's rows."""
    rows = cell.rows()
    sampling = Sampling(
        max_new_tokens=cell.answer_tokens, end_ids=tuple(cell.ends), pad_id=0, temperature=1.0, top_k=0,
        top_p=1.0, min_p=0.0, forbidden_ids=(5,),
    )  # fmt: skip
    half = torch.autocast(model.device.type, torch.bfloat16, enabled=cell.is_half)
    with evaluating(model), torch.no_grad(), half:
        return generation.continue_rows(model, rows, sampling, seeds=range(len(rows)), entropies=True)


def compare(cell: Cell, model: Any) -> None:
    """Sample both ways in turn, and print."""
    device = model.device
    found: dict[bool, list[Continuation]] = {}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    taken = {}
    for as_graph in (False, True) * 2:
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began_s = time.perf_counter()
        with stepping(as_graph, device):
            found[as_graph] = sample(cell, model)
        seconds[as_graph].append(time.perf_counter() - began_s)  # the tokens are on the host: all is done
        taken[as_graph] = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else math.nan
    each = {way: 1000 * min(some) / cell.answer_tokens for way, some in seconds.items()}
    pairs = list(zip(found[False], found[True], strict=True))
    alike = [pair for pair in pairs if pair[0].ids == pair[1].ids]
    apart = max(
        (abs(x - y) for a, b in alike for x, y in zip(a.log_probs, b.log_probs, strict=True)), default=0
    )
    print(
        f"{cell.title:28} {each[False]:7.2f} ms, as graphs {each[True]:7.2f}: "
        f"{each[False] / each[True]:5.2f} x   {len(alike)} of {len(pairs)} rows alike, log-probabilities to "
        f"{apart:.1e}   {taken[False]:.2f} GB, as graphs {taken[True]:.2f}",
        flush=True,
    )


def fail(cell: Cell, model: Any) -> None:
    """See what a capture leaves that fails in its midst."""
    capture: Callable[..., Any] = step_graph.captured

    def asking_the_host(run: Callable[[], torch.Tensor], device: torch.device) -> Any:
        def asked() -> torch.Tensor:
            logits = run()
            logits.sum().item()  # waits for the device, which a capture forbids
            return logits

        return capture(asked, device)

    with mock.patch.object(step_graph, "captured", asking_the_host):
        found = sample(cell, model)
    with stepping(False, model.device):
        wanted = sample(cell, model)
    is_refused = model in step_graph._refused
    step_graph._refused.clear()
    drawn = torch.randn(3, device=model.device)
    torch.nn.functional.dropout(drawn, 0.5)
    after = sample(cell, model)
    print(
        f"a capture that fails: refused {is_refused}, tokens alike "
        f"{[one.ids for one in found] == [one.ids for one in wanted] == [one.ids for one in after]}, numbers "
        f"are drawn {bool(drawn.isfinite().all())}",
        flush=True,
    )


def main() -> None:
    """Measure the cells."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--paper", action="store_true")
    options.add_argument("--quick", action="store_true")
    given = options.parse_args()
    device = torch.device(given.device)
    size = Size(hidden=128, layers=2, vocabulary=512) if given.quick else Size()
    shape = {"prompts": 2, "answers": 8, "prompt_tokens": 64 if given.quick else 512}
    cell = Cell(title="float32", answer_tokens=24 if given.quick else 160, is_half=False, **shape)
    half = dataclasses.replace(cell, title="bfloat16", is_half=True)
    model = build(size)[0].to(device)
    compare(cell, model)
    if device.type == "cuda":
        fail(cell, model)
    compare(half, model)
    compare(dataclasses.replace(half, title="bfloat16, 64 rows", prompts=8, answer_tokens=40), model)
    bias = torch.zeros(size.vocabulary, device=device)
    bias[list(ENDS)] = math.log(size.vocabulary / 16 / len(ENDS))
    model.get_output_embeddings().bias = nn.Parameter(bias, requires_grad=False)
    for some in (cell, half):
        compare(dataclasses.replace(some, title=f"{some.title}, unequal lengths", ends=tuple(ENDS)), model)
    if given.paper:
        del model
        paper(device)


def paper(device: torch.device) -> None:
    """Measure the paper's size."""
    import gpu_step

    from evidcore.recipe import load

    model, _, _ = gpu_step.build(load(gpu_step.RECIPE), device, False)
    cell = Cell(title="paper, all trained", prompts=16, answers=4, prompt_tokens=512, answer_tokens=160)
    model.train_only(("bridge", "language"))
    compare(cell, model)
    model.train_only(("bridge",))
    compare(dataclasses.replace(cell, title="paper, language frozen"), model)
    keep_in_bfloat16("language", model.model.language_model)
    compare(dataclasses.replace(cell, title="paper, frozen in bfloat16"), model)


if __name__ == "__main__":
    main()
