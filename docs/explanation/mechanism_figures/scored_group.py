"""One group of GRPO: its completions, what each reward paid them, and the advantages that follow."""

import dataclasses
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mechanism_figures.panels import BLUE, GREEN, GREY, ORANGE, PURPLE, YELLOW, printable, sheet
from mechanism_figures.run_stages import OpenedRun

COLOURS = (GREY, BLUE, GREEN, PURPLE, YELLOW)  # of rewards, in the recipe's order
LETTERS = 50  # of a line of a completion


@dataclasses.dataclass(frozen=True)
class Completion:
    """A completion that a group holds once or several times."""

    text: str
    times: int
    paid: Mapping[str, float | None]  # weight times value by reward, as it counts; None: not scored
    total: float
    advantage: float


@dataclasses.dataclass(frozen=True)
class ScoredGroup:
    """A group, and how many groups of the stage have how many different totals."""

    step: int
    case: str
    question: str
    right: str
    completions: Sequence[Completion]  # the best first
    groups: int
    totals: Mapping[int, int]  # by the number of different totals


def measure(run: OpenedRun, case_id: str = "") -> ScoredGroup:
    """Return the group of the last GRPO stage with the most different totals, the first of several.

    Args:
        run: with rollouts.
        case_id: a training case; empty: any.

    Raises:
        RunError: if the stage has no group about it.
    """
    stage = run.stage("grpo", last=True)
    groups = run.groups(stage)
    weights = {one.name: one.weight for one in run.table(stage).rewards(run.context(stage))}
    group = run.first_of_most(stage, case_id, _different)
    times = Counter(map(_key, group["rollouts"]))
    firsts = {_key(one): one for one in reversed(group["rollouts"])}
    completions = [
        Completion(
            text=one["text"],
            times=times[key],
            paid={name: _paid(one["rewards"][name], weight) for name, weight in weights.items() if weight},
            total=one["total"],
            advantage=one["advantage"],
        )
        for key, one in firsts.items()
    ]
    return ScoredGroup(
        step=group["step"],
        case=group["case_id"],
        question=group["prompt"].replace("<image>", ""),
        right=str(group["reference"].get("letter") or group["reference"].get("answers") or ""),
        completions=sorted(completions, key=lambda one: -one.total),
        groups=len(groups),
        totals=dict(sorted(Counter(map(_different, groups)).items())),
    )


def _key(rollout: Mapping[str, Any]) -> tuple[str, float]:
    return rollout["text"], rollout["total"]


def _different(group: Mapping[str, Any]) -> int:
    """Return how many different totals a group has."""
    return len({round(one["total"], 6) for one in group["rollouts"]})


def _paid(verdict: Mapping[str, Any], weight: float) -> float | None:
    return None if verdict["value"] is None else weight * verdict["counted"]


def draw(group: ScoredGroup, told: str) -> Figure:
    """Draw completions, best first, beside their weighted rewards and advantages; below, all groups."""
    texts = [
        textwrap.wrap(re.sub(r"(?<=[.>])<", " <", printable(one.text)), LETTERS) for one in group.completions
    ]
    heights = [0.16 * max(2, len(lines)) + 0.14 for lines in texts]
    figure = sheet(2.9 + sum(heights), "Med3D-R1: a group of GRPO and its scores", told)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.15 + sum(heights), 1.15))
    words, paid, advantages = upper.subplots(1, 3, width_ratios=(1.5, 1, 0.75))
    middles = [sum(heights[:row]) + height / 2 for row, height in enumerate(heights)]
    for axis in (words, paid, advantages):
        axis.set(ylim=(sum(heights), 0), yticks=[])
        for row in range(1, len(heights)):
            axis.axhline(sum(heights[:row]), color="#dcdfe3", linewidth=0.7)
    asked = " ".join(group.question.split())
    upper.suptitle(f"{asked} Right is {group.right}.", x=0.005, ha="left", fontsize=8)
    words.set(xlim=(0, 1), xticks=[], title="times, completion")
    words.spines[:].set_visible(False)
    names = list(group.completions[0].paid)
    for middle, one, lines in zip(middles, group.completions, texts, strict=True):
        words.text(0, middle, f"{one.times} x", va="center", fontweight="bold")
        words.text(0.09, middle, "\n".join(lines), va="center", fontsize=7.6, parse_math=False)
        start = 0.0
        for name, colour in zip(names, COLOURS, strict=False):
            value = one.paid[name] or 0.0
            paid.barh(middle, value, left=start, height=0.26, color=colour)
            start += value
        unscored = [name for name in names if one.paid[name] is None]
        said = f"{one.total:.2f}" + "".join(f"\n{name}: no verdict" for name in unscored)
        paid.text(start + 0.03, middle, said, va="center", fontsize=8)
        is_up = one.advantage >= 0
        advantages.barh(middle, one.advantage, height=0.26, color=BLUE if is_up else ORANGE)
        advantages.text(
            one.advantage + (0.06 if is_up else -0.06), middle, f"{one.advantage:+.2f}", va="center",
            fontsize=8, ha="left" if is_up else "right",
        )  # fmt: skip
    widest = max(abs(one.advantage) for one in group.completions) * 1.9 + 0.01
    most = max(one.total for one in group.completions)
    paid.set(xlim=(0, 1.3 * most + 0.01), xlabel="total, in reward units", title="weighted rewards")
    advantages.set(xlim=(-widest, widest), xlabel="standard deviations", title="advantage")
    advantages.axvline(0, color=GREY, linewidth=0.8)
    advantages.spines["left"].set_visible(False)
    counts, legend = lower.subplots(1, 2, width_ratios=(1.9, 1))
    bars = counts.barh([str(number) for number in group.totals], list(group.totals.values()), color=GREY)
    counts.bar_label(bars, padding=3, fontsize=8)
    counts.set(
        xlabel="groups of the stage", ylabel="different totals", ylim=(len(group.totals) - 0.4, -0.6),
        title=f"all {group.groups} groups of the stage; with one total all advantages are 0",
    )  # fmt: skip
    legend.axis("off")
    keys = [Patch(color=colour, label=name) for name, colour in zip(names, COLOURS, strict=False)]
    legend.legend(handles=keys, title="rewards", loc="center left")
    return figure
