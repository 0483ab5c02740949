"""Where consensus (CCA) and forks (EVR) of MedVR must win, and where they cannot.

OMP_NUM_THREADS=1 python benchmarks/zoom_control.py [--json] [--quick]        1 core, 2 minutes, no download

A control by construction, without a language model. A policy is a table of logits: it chooses a cell to
look at, and one cell of the picture is right. After a right look the answer is right with probability
`RIGHT`, after a wrong one with probability `guess`. It is trained by plain GRPO: a group of 16 answers a
step, advantages `(r - mean) / (std + 1e-4)` over the group as in trl, one update from each, hence no
clipping, and no KL.

CCA: accuracy alone beside accuracy plus reward `zoom-consensus`, as it ships, fed with boxes of 4 x 4 pixels.
EVR: rollout `tool-call` beside `entropy-regrounding`, as it ships, over a sampler that reads the tables; both
draw 16 answers. First a region is chosen, then a cell of it; only one region holds the right cell.

Each setting's name holds what was worked out for it before any run, whatever came out:

- CCA 1 (tie): even start, nobody guesses right.
- CCA 2 (win): 40 % of looks are right at the start, so that most successes look right; a quarter guess right.
- CCA 3 (late win): even start, a quarter guess right. There is no majority at first.
- CCA 4 (harm): 40 % of looks are at one wrong cell at the start; a quarter guess right.
- CCA 5 (locks in): the same, and half guess right: the wrong cell is paid 2 x 0.5, a right look 1.5 x 0.6.
- EVR 1 (win): four beginnings; one is unsure of its cells, and it alone can succeed.
- EVR 2 (tie): one beginning, as in the recipe, where all answers begin alike.
- EVR 3 (harm): as EVR 1, and the other beginnings guess right in a quarter: more than unsure looks at first.

Printed are means over seeds, with 95 % t intervals; differences are paired. A run that never comes to 80 %
right looks counts as one that comes to it in the last step.
"""

import dataclasses
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from evidcore_testing.data import volume_case
from scipy import stats
from scipy.special import softmax
from side_by_side import Figure, parser, tell

from evidcore.case import (
    Action,
    Answer,
    Case,
    Crop,
    Episode,
    Part,
    Prompt,
    Rollout,
    Score,
    TextPart,
    Turn,
    VisualPart,
    VolumeRef,
)
from evidcore.contracts import Continuation, Reward, RolloutStrategy, Sampler, Tool
from evidcore.registry import factory

ANSWERS = 16  # of a group
SEEDS = 20
LOOK_STEPS, FORK_STEPS = 60, 80
RATE = 0.5  # of a step; chosen on the plain arms, so that they learn within these steps
RIGHT = 0.6  # right answers after a right look
REACHED = 0.8  # right looks
SIDE = 4  # cells along each side of the picture, and pixels along each side of a cell
LEAN = 0.4  # of the looks at one cell, where the start leans to it

Table = npt.NDArray[np.float64]
Curve = list[float]  # right looks, a probability, before each step and after the last


def advantages(totals: Table) -> Table:
    """Return what trl makes of one group's rewards; exact zeros where they are equal, as our trainer does."""
    if np.ptp(totals) == 0:
        return np.zeros_like(totals)
    return np.asarray((totals - totals.mean()) / (totals.std(ddof=1) + 1e-4))


# CCA: one table of cells


@dataclasses.dataclass(frozen=True)
class Guessing:
    """A setting of CCA."""

    name: str
    guess: float  # right answers after a wrong look
    lean: int | None = None  # the cell that the start leans to; 0 is right

    def start(self) -> Table:
        """Return the logits before training."""
        cells = SIDE * SIDE
        shares = np.full(cells, 1 / cells)
        if self.lean is not None:
            shares[:] = (1 - LEAN) / (cells - 1)
            shares[self.lean] = LEAN
        return np.asarray(np.log(shares))


GUESSING = (
    Guessing("CCA 1 (tie)", 0.0),
    Guessing("CCA 2 (win)", 0.25, lean=0),
    Guessing("CCA 3 (late win)", 0.25),
    Guessing("CCA 4 (harm)", 0.25, lean=5),
    Guessing("CCA 5 (locks in)", 0.5, lean=5),
)


class Looking:
    """Pays groups of looks at cells of a slice by the reward as it ships."""

    def __init__(self, folder: Path) -> None:
        """Write the volume that is looked at."""
        case = volume_case(folder)
        picture = Crop(volume=case.volumes[0])
        self._prompt = Prompt(id="look", case=case, task="look", parts=(VisualPart(crop=picture),))
        table = {"use": "zoom-consensus", "success": "accuracy"}
        self._consensus: Reward = factory.build("reward", table, given={}, where="benchmark")

    def _rollout(self, cell: int) -> Rollout:
        y, x = (SIDE * place for place in divmod(cell, SIDE))
        crop = Crop(volume=self._prompt.case.volumes[0], box_zyx=(6, 7, y, y + SIDE, x, x + SIDE))
        action = Action(tool="zoom", arguments={})
        turn = Turn(text="", actions=(action,), reply=(VisualPart(crop=crop),))
        return Rollout(prompt=self._prompt, group=0, text="", answer=Answer(text=""), turns=(turn,))

    def consensus(self, cells: Sequence[int], successes: Sequence[bool]) -> Table:
        """Return what `zoom-consensus` pays each answer of a group."""
        accuracy = [Score(value=float(item)) for item in successes]
        verdicts = self._consensus([self._rollout(cell) for cell in cells], {"accuracy": accuracy})
        return np.array([item.value for item in verdicts if isinstance(item, Score)])


def train_looks(
    setting: Guessing, seed: int, steps: int, rate: float, consensus: Callable[..., Table] | None
) -> Curve:
    """Train the table of cells, with the consensus or on accuracy alone."""
    rng = np.random.default_rng(seed)
    logits = setting.start()
    curve = [float(softmax(logits)[0])]
    for _ in range(steps):
        shares = softmax(logits)
        cells = rng.choice(len(shares), size=ANSWERS, p=shares)
        successes = rng.random(ANSWERS) < np.where(cells == 0, RIGHT, setting.guess)
        totals = successes.astype(float)
        if consensus is not None and successes.any():  # where nobody succeeds all are paid 0
            totals = totals + consensus(cells.tolist(), successes.tolist())
        weights = advantages(totals) / ANSWERS
        logits = logits + rate * (np.bincount(cells, weights, len(shares)) - weights.sum() * shares)
        curve.append(float(softmax(logits)[0]))
    return curve


# EVR: a table of regions, and one of cells for each


@dataclasses.dataclass(frozen=True)
class Beginnings:
    """A setting of EVR. Region 0 holds the right cell; the policy is unsure of its cells alone."""

    name: str
    regions: int
    guess: float = 0.0  # right answers after a look at another region; a wrong cell of region 0 shows nothing
    cells: int = 8  # of a region


BEGINNINGS = (
    Beginnings("EVR 1 (win)", 4),
    Beginnings("EVR 2 (tie)", 1),
    Beginnings("EVR 3 (harm)", 4, guess=0.25),
)
SURE = 0.98  # of the looks of a region that the policy is sure of
BEGINNING = 20  # tokens before the coordinates, as many as the strategy takes for the beginning
PLAIN = {"use": "tool-call", "max_tool_calls": 1, "show_tools": False}
FORKED = {**PLAIN, "use": "entropy-regrounding"}
WORDS, DRAWN = 16, 4  # of the thought, and how many of its tokens are drawn
BLIND = {**FORKED, "gate": False, "gamma": 0.0}  # half of all calls are forked, whatever the entropy


class Closer(Tool):
    """Shows nothing that the tables read."""

    name: ClassVar[str] = "zoom"
    description: ClassVar[str] = "look closer"
    schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"box": {}}}

    def __call__(self, arguments: Any, prompt: Prompt) -> tuple[Part, ...]:
        """Answer a call."""
        return (TextPart(text="closer"),)


class TableSampler(Sampler):
    """Samples a region, a thought that is not trained, a cell, and after the look an answer.

    Words of the thought are drawn, so that answers differ and each has a coin of its own in the strategy, and
    so that a beginning is less sure than the coordinates of a region that the policy is sure of.
    """

    stop_texts = ("</tool_call>",)
    reads_entropies = True

    def __init__(self, setting: Beginnings, rng: np.random.Generator) -> None:
        """Make the tables of an untrained policy."""
        self.setting, self.rng = setting, rng
        self.regions = np.zeros(setting.regions)
        sure = np.full(setting.cells, (1 - SURE) / (setting.cells - 1))
        sure[0] = SURE
        self.cells = np.tile(np.log(sure), (setting.regions, 1))
        self.cells[0] = 0.0
        regions = [f"r{number} " for number in range(setting.regions)]
        cells = [f"{number}, 0, 9, 9" for number in range(setting.cells)]
        call = '<tool_call>{"name": "zoom", "arguments": {"box": ['
        self._words = [*regions, *cells, call, "]}}</tool_call>", "closer", "wrong", "right"]
        self._first_word = len(self._words)
        self._words += [f"w{number} " for number in range(WORDS)]
        self._first_cell, self._call = len(regions), len(regions) + len(cells)
        self.vocabulary = len(self._words)

    def decode(self, ids: Sequence[int]) -> str:
        """Return tokens as text."""
        return "".join(self._words[item] for item in ids)

    def extend(self, episode: Episode, parts: Sequence[Part], actions: Sequence[Action] = ()) -> Episode:
        """Append what the tool gave."""
        return self.replied(episode, [self._call + 2], (), parts, actions)

    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Continue each episode by a turn."""
        return [self._continued(episode) for episode in episodes]

    def looked(self, episode: Episode) -> tuple[int, int]:
        """Return the region and the cell that an answer looked at."""
        return episode.ids[0], episode.ids[BEGINNING] - self._first_cell

    def is_right(self, episode: Episode) -> bool:
        """Tell whether it ended in a right answer."""
        return episode.ids[-1] == self._call + 4

    def _continued(self, episode: Episode) -> Episode:
        if episode.replies:
            region, cell = self.looked(episode)
            chance = self.setting.guess if region else RIGHT * (cell == 0)
            answer = self._call + 3 + int(self.rng.random() < chance)
            return self.wrote(episode, Continuation((answer,), (), True, (0.0,)), 2)
        ids, entropies = list(episode.ids), list(episode.entropies)
        if not ids:  # a fork has its beginning already
            self._draw(self.regions, 0, ids, entropies)
            for _ in range(DRAWN):
                self._draw(np.zeros(WORDS), self._first_word, ids, entropies)
            same = BEGINNING - 2 - DRAWN
            ids += [self._first_word] * same + [self._call]
            entropies += [0.0] * (same + 1)
        self._draw(self.cells[ids[0]], self._first_cell, ids, entropies)
        begun = len(episode.ids)
        written = (*ids[begun:], self._call + 1)
        return self.wrote(episode, Continuation(written, (), False, (*entropies[begun:], 0.0)), BEGINNING + 3)

    def _draw(self, logits: Table, first: int, ids: list[int], entropies: list[float]) -> None:
        shares = softmax(logits)
        ids.append(first + int(self.rng.choice(len(shares), p=shares)))
        entropies.append(float(-(shares * np.log(shares)).sum()))


def train_beginnings(
    setting: Beginnings, seed: int, steps: int, rate: float, table: dict[str, Any]
) -> tuple[Curve, list[float]]:
    """Train the tables with a rollout.

    Returns:
        How likely a new answer looks right, before each step and after the last; and which share of each
        step's answers looked at the region that holds the right cell.
    """
    strategy: RolloutStrategy = factory.build(
        "rollout", table, given={"tools": [Closer()]}, where="benchmark"
    )
    sampler = TableSampler(setting, np.random.default_rng(seed))
    volumes = (VolumeRef(path="none.nii.gz"),)
    case = Case(id="c", patient=None, volumes=volumes)
    parts = (VisualPart(crop=Crop(volume=volumes[0])),)

    def looks_right() -> float:
        return float(softmax(sampler.regions)[0] * softmax(sampler.cells[0])[0])

    curve, drawn = [looks_right()], []
    for step in range(steps):
        prompt = Prompt(id=f"{seed}/{step}", case=case, task="look", parts=parts)  # coins hash its id
        episodes = strategy(sampler, [prompt], ANSWERS)
        looks = [sampler.looked(item) for item in episodes]
        totals = np.array([float(sampler.is_right(item)) for item in episodes])
        drawn.append(statistics.fmean(region == 0 for region, _ in looks))
        slopes, deeper = np.zeros_like(sampler.regions), np.zeros_like(sampler.cells)
        for (region, cell), weight in zip(looks, advantages(totals) / ANSWERS, strict=True):
            slopes -= weight * softmax(sampler.regions)
            slopes[region] += weight
            deeper[region] -= weight * softmax(sampler.cells[region])
            deeper[region, cell] += weight
        sampler.regions += rate * slopes
        sampler.cells += rate * deeper
        curve.append(looks_right())
    return curve, drawn


# what is printed


def steps_to(curve: Curve) -> float:
    """Return after how many steps a run looks right often enough; its last where it never does."""
    return float(next((step for step, share in enumerate(curve) if share >= REACHED), len(curve) - 1))


def mean(name: str, values: Sequence[float], unit: str) -> Figure:
    """Return the mean over seeds with its 95 % t interval."""
    middle = statistics.fmean(values)
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return Figure(name=name, value=middle, unit=unit, low=middle - reach, high=middle + reach)


def compared(name: str, arm: str, plain: Sequence[Curve], ours: Sequence[Curve]) -> list[Figure]:
    """Return what one arm adds to the plain one; right looks are the mean over all steps."""
    pairs = list(zip(ours, plain, strict=True))
    sooner = [steps_to(item) - steps_to(other) for item, other in pairs]
    above = [100 * (statistics.fmean(item) - statistics.fmean(other)) for item, other in pairs]
    return [
        mean(f"{name}: {arm}, steps to 80 %", sooner, "steps"),
        mean(f"{name}: {arm}, right looks", above, "points"),
    ]


def of_plain(name: str, curves: Sequence[Curve]) -> list[Figure]:
    """Return how long the plain arm takes, and how often it looks right, the mean over all steps."""
    looks = [100 * statistics.fmean(item) for item in curves]
    return [
        mean(f"{name}: plain, steps to 80 %", [steps_to(item) for item in curves], "steps"),
        mean(f"{name}: plain, right looks", looks, "%"),
    ]


def consensus_figures(seeds: Sequence[int], steps: int, rate: float) -> list[Figure]:
    """Measure CCA in every setting."""
    result = []
    with tempfile.TemporaryDirectory() as folder:
        pay = Looking(Path(folder)).consensus
        for setting in GUESSING:
            plain = [train_looks(setting, seed, steps, rate, None) for seed in seeds]
            ours = [train_looks(setting, seed, steps, rate, pay) for seed in seeds]
            result += [*of_plain(setting.name, plain), *compared(setting.name, "CCA - plain", plain, ours)]
    return result


def fork_figures(seeds: Sequence[int], steps: int, rate: float) -> list[Figure]:
    """Measure EVR in every setting, and forks without entropy where it must win."""
    result = []
    for setting in BEGINNINGS:
        arms = {"plain": PLAIN, "EVR": FORKED}
        if setting is BEGINNINGS[0]:
            arms["blind forks"] = BLIND
            for arm, table in arms.items():
                drawn = [
                    100 * statistics.fmean(train_beginnings(setting, seed, 10, 0.0, table)[1])
                    for seed in seeds
                ]
                result.append(mean(f"{setting.name}: {arm}, untrained, in the region", drawn, "%"))
        curves = {
            arm: [train_beginnings(setting, seed, steps, rate, table)[0] for seed in seeds]
            for arm, table in arms.items()
        }
        result += of_plain(setting.name, curves["plain"])
        for arm in list(arms)[1:]:
            result += compared(setting.name, f"{arm} - plain", curves["plain"], curves[arm])
        if "blind forks" in arms:
            result += compared(setting.name, "EVR - blind forks", curves["blind forks"], curves["EVR"])
    return result


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--first-seed", type=int, default=0, help="another one: runs that nobody has seen")
    given = options.parse_args()
    seeds = range(given.first_seed, given.first_seed + (3 if given.quick else SEEDS))
    result = consensus_figures(seeds, 4 if given.quick else LOOK_STEPS, RATE)
    result += fork_figures(seeds, 4 if given.quick else FORK_STEPS, RATE)
    tell(__doc__, result, as_json=given.json)


if __name__ == "__main__":
    main()
