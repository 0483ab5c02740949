"""A GRPO step whose answers are each shown a crop, beside the same step of another commit.

python benchmarks/crop_step.py CHECKOUT [--json] [--quick]   2 cores, 5 minutes

CHECKOUT is a folder with the other commit, where `make venv` has run; its model and trainer are measured.
Both train what `grpo_step.py` trains, on 8 answers to a prompt of 512 tokens. An answer writes 32 tokens, is
shown a crop of 64 tokens, and writes 32 more; its reward reads the end of its text. Each commit has a
process; they take steps in turn. Time is CPU time of one thread, the first step left out; "equal" compares
all of them.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
ARM = "--arm"  # before a checkout: run its steps
TOLD = ("loss", "grad_norm", "entropy", "completion_tokens")


def arm(checkout: Path, quick: bool) -> None:
    """Take a step at a time; print a line for each, and wait for one before the next."""
    sys.path.insert(0, str(checkout / "benchmarks"))
    import grpo_step
    import torch
    from bench_model import Size, cases

    from evidcore.api import Episode, RolloutStrategy, TextPart, VisualPart

    class EndHash(grpo_step.TextHash):  # type: ignore[misc,name-defined]
        """Tells answers apart by their ends: other commits may take tools' words for the answer's."""

        def __call__(self, rollouts: Any, earlier: Any) -> Any:
            return super().__call__(
                [dataclasses.replace(one, text=one.text[-4:]) for one in rollouts], earlier
            )

    class ShownOnce(RolloutStrategy):
        """Half of an answer's tokens, a crop, which differs from answer to answer, the other half."""

        stop_texts = ("</tool_call>",)  # as where tools are called; these answers never write it

        def __call__(self, sampler: Any, prompts: Any, answers_per_prompt: int) -> list[Episode]:
            whole = sampler.sampling
            sampler.sampling = dataclasses.replace(whole, max_new_tokens=whole.max_new_tokens // 2)
            begun = sampler.sample([
                Episode(prompt=one) for one in prompts for _ in range(answers_per_prompt)
            ])
            sampler.sampling = whole
            for number, one in enumerate(begun):
                crop = dataclasses.replace(one.prompt.crops()[0], box_zyx=(number % 8, 32, 0, 64, 0, 64))
                if one.ids[-1] not in whole.end_ids:
                    paused = dataclasses.replace(one, finished=False)
                    begun[number] = sampler.extend(paused, (TextPart(text="closer:"), VisualPart(crop=crop)))
            return list(sampler.sample(begun))

    def step_done() -> None:
        nonlocal start_s
        told = {"cpu_s": time.process_time() - start_s, **{name: heard.steps[-1][name] for name in TOLD}}
        print("step", json.dumps(told), flush=True)
        sys.stdin.readline()
        start_s = time.process_time()

    torch.set_num_threads(1)
    sys.stdin.readline()
    make, start_s = grpo_step.make_trainer, time.process_time()
    grpo_step.TextHash = EndHash
    grpo_step.make_trainer = lambda *given, **named: make(*given, **{**named, "strategy": ShownOnce()})
    heard = grpo_step.Heard(step_done, torch.device("cpu"))
    cell = grpo_step.Cell(
        **({"prompt_tokens": 128, "answer_tokens": 8, "answers": 4, "steps": 3} if quick else {})
    )
    size = Size(hidden=128, layers=2, vocabulary=512) if quick else Size()
    with tempfile.TemporaryDirectory() as folder:
        grpo_step.ours(cell, size, cases(Path(folder) / "volumes", 4), Path(folder) / "run", heard)


def start(checkout: Path, quick: bool) -> subprocess.Popen[str]:
    """Start an arm."""
    command = [
        str(checkout / ".venv/bin/python"),
        __file__,
        ARM,
        str(checkout),
        *(["--quick"] if quick else []),
    ]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def next_step(process: subprocess.Popen[str]) -> dict[str, float] | None:
    """Let an arm take a step, and return what it tells of it; None after the last.

    Raises:
        SystemExit: if the arm failed.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("step "):
            told: dict[str, float] = json.loads(line.removeprefix("step "))
            return told
    if process.wait():
        raise SystemExit(f"an arm failed: {process.args}")
    return None


def main() -> None:
    """Run both and print."""
    from side_by_side import figure, parser, ratios, tell

    options = parser(__doc__)
    options.add_argument("checkout", type=Path, help="the other commit, with its .venv")
    given = options.parse_args()
    arms = [start(path, given.quick) for path in (Path(__file__).parents[1], given.checkout.resolve())]
    steps: list[list[dict[str, float]]] = []
    while all(told := [next_step(item) for item in arms]):
        steps.append([item for item in told if item])
    needed = None if given.quick else 0.6
    seconds = [[pair[which]["cpu_s"] for pair in steps[1:]] for which in (0, 1)]
    apart = {name: max(abs(item[name] - other[name]) for item, other in steps) for name in TOLD}
    result = [
        figure("a step's time", ratios(*seconds), "x the other commit's", at_most=needed),
        figure("this commit", seconds[0], "CPU s a step"),
        figure("the other commit", seconds[1], "CPU s a step"),
        *(figure(f"equal: {name}", [value], "apart at most") for name, value in apart.items()),
    ]
    tell(__doc__, result, as_json=given.json, details={"steps": steps})


if __name__ == "__main__":
    if sys.argv[1] == ARM:
        arm(Path(sys.argv[2]), "--quick" in sys.argv)
    else:
        main()
