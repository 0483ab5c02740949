"""How the time of a GRPO step grows with its volumes and with G, and what a second process gains.

python benchmarks/scaling.py [--json] [--quick]        2 cores, 10 minutes, no download

Our trainer on a model of hidden 256 and 4 layers, prompts of 256 tokens, answers of 32. Volumes and G are
measured in one process, whose trainers take steps in turn, in CPU seconds of one thread. The growth is the
exponent of the power of volumes or of G that fits best: 1 is linear. Processes are measured in wall-clock
time on the same step of 8 prompts, each process with one thread; that needs two idle cores. Two processes
that share nothing, beside them, show what the machine itself gains: two threads of one core are no two cores.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from bench_model import Size, TextHash, build, cases, source
from side_by_side import Figure, Turns, figure, parser, ratios, tell

from evidcore.builtin.rollouts import Plain
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import GrpoSettings
from evidcore.train.trl import stage
from evidcore.train.trl.grpo import make_trainer

SIZE, PROMPT_TOKENS, ANSWER_TOKENS = Size(hidden=256, layers=4), 256, 32
VOLUMES, ANSWERS = (1, 2, 4, 8), (2, 4, 8, 16, 32)
TOGETHER = 4  # prompts a step where G differs
DEALT = 8  # prompts a step where the processes differ
GAIN = 1.6


class Telling:
    """Calls something at each step."""

    def __init__(self, step_done: Callable[[], None]) -> None:
        self.step_done = step_done

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Call it."""
        self.step_done()

    def rollouts_judged(self, step: int, groups: Any) -> None:
        """Drop it."""


def train(folder: Path, volumes: int, answers: int, steps: int, step_done: Callable[[], None]) -> None:
    """Train, each prompt of a step about another volume."""
    model, processor = build(SIZE)
    settings = GrpoSettings(
        train=("bridge", "language"), steps=steps, learning_rate=1e-5, prompts_per_step=volumes,
        answers_per_prompt=answers, max_new_tokens=ANSWER_TOKENS, trl={"use_cpu": True},
    )  # fmt: skip
    asked = source(cases(folder / "volumes", volumes), processor, PROMPT_TOKENS)
    rewards = [NamedReward(name="text-hash", reward=TextHash())]
    trainer = make_trainer(
        model,
        processor,
        asked,
        rewards,
        settings,
        folder / "run",
        seed=1,
        strategy=Plain(),
        announce=Telling(step_done),
    )
    stage.train(trainer, folder, resume=False)


def growth(points: Mapping[int, float]) -> float:
    """Return the exponent of the power law through points."""
    result = np.polyfit(np.log(list(points)), np.log(list(points.values())), 1)
    return float(result[0])


def in_process(sizes: Mapping[int, tuple[int, int]], steps: int, folder: Path) -> dict[int, list[float]]:
    """Return the CPU seconds of steps of (volumes, answers), by what the size is called."""

    def arm(number: int, volumes: int, answers: int) -> Callable[[Callable[[], None]], None]:
        return lambda step_done: train(folder / str(number), volumes, answers, steps, step_done)

    arms = {str(number): arm(number, *size) for number, size in sizes.items()}
    seconds = Turns(arms, time.process_time).run()
    return {number: seconds[str(number)][1:] for number in sizes}


def in_processes(count: int, steps: int, folder: Path) -> list[float]:
    """Return the wall-clock seconds of the steps of `count` processes that share 8 prompts of 8 answers."""
    return _seconds(_started(count, steps, folder))


def apart(steps: int, folder: Path) -> list[float]:
    """Return the same of two runs of one process each, at once: what the machine itself can gain."""
    both = [_started(1, steps, folder / str(number)) for number in range(2)]
    return [seconds for run in both for seconds in _seconds(run)]


def _started(count: int, steps: int, folder: Path) -> subprocess.Popen[str]:
    # accelerate's own launcher starts a single process on a CPU machine without MPI
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    return subprocess.Popen(
        [*launch, __file__, "--worker", str(folder), str(steps)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip


def _seconds(run: subprocess.Popen[str]) -> list[float]:
    out, err = run.communicate()
    if run.returncode:
        raise SystemExit(err[-3000:])
    [line] = [line for line in out.splitlines() if line.startswith("[")]
    return list(json.loads(line))


def worker(folder: Path, steps: int) -> None:
    """Be one of several processes; the first prints the seconds of the steps."""
    torch.set_num_threads(1)
    ends: list[float] = []
    own = folder / os.environ.get("RANK", "0")  # volumes of its own: nobody waits for another's files
    train(own, DEALT, 8, steps, lambda: ends.append(time.perf_counter()))
    if ends:
        print(json.dumps(np.diff(ends).tolist()), flush=True)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--worker", nargs=2, metavar=("FOLDER", "STEPS"), help="be one of several processes")
    given = options.parse_args()
    if given.worker:
        worker(Path(given.worker[0]), int(given.worker[1]))
        return
    torch.set_num_threads(1)
    steps, rounds = (3, 1) if given.quick else (6, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_volumes = in_process({count: (count, 8) for count in VOLUMES}, steps, folder / "volumes")
        by_answers = in_process({count: (TOGETHER, count) for count in ANSWERS}, steps, folder / "answers")
        by_processes: dict[int, list[float]] = {1: [], 2: []}
        alone: list[float] = []
        for turn in range(rounds):
            alone += apart(steps, folder / f"apart-{turn}")
            for count in (1, 2):
                by_processes[count] += in_processes(count, steps, folder / f"processes-{turn}-{count}")
    figures = [
        *_growth("volumes", by_volumes, at_most=1.1),
        *_growth("G", by_answers, at_most=0.95),
        figure("2 processes", ratios(*_paired(by_processes)), "x 1 process", at_least=GAIN),
        figure("2 processes that share nothing", _gain_apart(by_processes[1], alone), "x 1 process"),
        *(figure(f"processes: {count}", taken, "s a step") for count, taken in by_processes.items()),
    ]
    details = {"volumes": by_volumes, "G": by_answers, "processes": by_processes, "apart": alone}
    tell(__doc__, figures, as_json=given.json, details=details)


def _growth(title: str, found: Mapping[int, Sequence[float]], at_most: float) -> list[Figure]:
    """Return the exponent, of each round, and the times."""
    rounds = zip(*found.values(), strict=True)
    powers = [growth(dict(zip(found, item, strict=True))) for item in rounds]
    return [
        figure(f"growth with {title}", powers, f"th power of {title}", at_most=at_most),
        *(figure(f"{title}: {count}", taken, "CPU s a step") for count, taken in found.items()),
    ]


def _gain_apart(one: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Return how much more two runs at once get done than one; each step of `one` meets two of theirs."""
    trios = zip(one, alone[::2], alone[1::2], strict=True)
    return [taken / first + taken / second for taken, first, second in trios]


def _paired(by_processes: Mapping[int, Sequence[float]]) -> tuple[Sequence[float], Sequence[float]]:
    return by_processes[1], by_processes[2]


if __name__ == "__main__":
    main()
