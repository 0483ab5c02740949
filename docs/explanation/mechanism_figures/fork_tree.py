"""MedVR's rollout `entropy-regrounding`: the tree of a group's answers, and where each of them looked."""

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from evidcore.case import Crop
from evidcore.data import read, read_mask
from evidcore.errors import RunError
from evidcore.text.tags import inside
from mechanism_figures.panels import BLUE, GREEN, GREY, ORANGE, SKY, printable, sheet
from mechanism_figures.run_stages import OpenedRun

LESION = "lesion"  # a mask of phantom-slices
MARGIN = 24  # voxels around what is drawn of a slice
SCALE_MM = 50
WINDOW_HU = (-160, 240)


@dataclasses.dataclass(frozen=True)
class Branch:
    """An answer: its tokens, what it left, where it looked, and what it was paid."""

    parent: int | None  # its number among the branches
    start: int  # the first token that it does not share with its parent
    length: int  # in tokens, the tool's replies included
    replies: Sequence[tuple[int, int]]  # the tokens of each, from and to
    box_zyx: tuple[int, ...] | None  # of the first closer look, in voxels of the scan
    said: str
    total: float


@dataclasses.dataclass(frozen=True)
class ForkTree:
    """A group, the slice that it is about, and what forks earn in the whole stage."""

    step: int
    case: str
    question: str
    right: str
    shared: str  # what is written before the first fork
    branches: Sequence[Branch]
    slice_hu: np.ndarray  # (y, x)
    lesion: np.ndarray  # (y, x)
    pixel_mm: float
    fresh_total: float  # mean over the stage's answers that are sampled from the prompt
    fork_total: float  # mean over its forks
    fresh: int
    forks: int

    def rows(self) -> list[int]:
        """Return the branches from top to bottom, each fork below what it left."""
        found: list[int] = []

        def place(parent: int | None) -> None:
            for number, one in enumerate(self.branches):
                if one.parent == parent:
                    found.append(number)
                    place(number)

        place(None)
        return found


def measure(run: OpenedRun, case_id: str = "", dataset: str = "slices") -> ForkTree:
    """Return the group of the last GRPO stage with the most forks, of those the one with most boxes.

    Args:
        run: opened with annotated cases, so that the lesion can be drawn; training may have had no masks.
        case_id: a training case; empty: any.
        dataset: which the rollouts are about.

    Raises:
        RunError: if no answer is a fork.
    """
    stage = run.stage("grpo", last=True)
    groups = run.groups(stage)
    rollouts = [one for group in groups for one in group["rollouts"]]
    forks = [one["total"] for one in rollouts if one["parent"]]
    fresh = [one["total"] for one in rollouts if not one["parent"]]
    if not forks:
        raise RunError(f"{run.folder.path}: {stage} has no fork. Give a run whose rollout forks answers.")
    group = run.first_of_most(stage, case_id, lambda one: (_forks(one), len(_boxes(one))))
    tokenizer = run.context(stage).local_policy().processor.tokenizer

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    case = next(one for one in run.assembly.split(dataset, "train") if one.id == group["case_id"])
    volume = read(case.volumes[0])
    drawn = [_branch(one, [len(tokens(turn["text"])) for turn in one["turns"]]) for one in group["rollouts"]]
    first = min((one for one in drawn if one.parent is not None), key=lambda one: one.start)
    turns = group["rollouts"][drawn.index(first)]["turns"]
    z = next((one.box_zyx[0] for one in drawn if one.box_zyx), 0)
    return ForkTree(
        step=group["step"],
        case=case.id,
        question=group["prompt"].rpartition("<image>")[2].partition("\n")[0],
        right=", ".join(group["reference"]["answers"]),
        shared=tokenizer.decode(tokens(turns[0]["text"])[: first.start]) if turns else "",
        branches=drawn,
        slice_hu=volume.array[z],
        lesion=read_mask(case.masks[LESION], like=volume)[z],
        pixel_mm=volume.spacing_mm_zyx[2],
        fresh_total=fmean(fresh),
        fork_total=fmean(forks),
        fresh=len(fresh),
        forks=len(forks),
    )


def _forks(group: Mapping[str, Any]) -> int:
    return sum(one["parent"] is not None for one in group["rollouts"])


def _boxes(group: Mapping[str, Any]) -> set[str]:
    return {crop for one in group["rollouts"] for turn in one["turns"] for crop in turn["crops"]}


def _branch(rollout: Mapping[str, Any], turns: Sequence[int]) -> Branch:
    """Return an answer as a branch; `turns` are the tokens that the model wrote before each reply."""
    parent, start = rollout["parent"] or (None, 0)
    in_replies = rollout["length"] - rollout["tokens"]  # of equal length where there are several
    replies, at = [], 0
    for written in turns:
        stop = at + written + in_replies // len(turns)
        replies.append((at + written, stop))
        at = stop
    crops = [uri for turn in rollout["turns"] for uri in turn["crops"]]
    said = inside(rollout["text"], "answer") or "no answer"
    box = Crop.parse_uri(crops[0]).box_zyx if crops else None
    return Branch(parent, start, rollout["length"], replies, box, said, rollout["total"])


def draw(tree: ForkTree, told: str) -> Figure:
    """Draw the tree over its tokens, and beside it the slice with the boxes."""
    rows = tree.rows()
    figure = sheet(
        1.75 + 0.185 * len(rows), "MedVR: the fork tree of a group, and where its answers looked", told
    )
    axis, picture = figure.subplots(1, 2, width_ratios=(1.2, 1))
    longest = max(one.length for one in tree.branches)
    for row, number in enumerate(rows):
        one = tree.branches[number]
        colour = BLUE if one.total > 0 else ORANGE
        if one.parent is not None:
            axis.plot(
                [one.start, one.start], [rows.index(one.parent), row], color=GREY, linewidth=1, zorder=1
            )
        _line(axis, row, one, colour)
        axis.text(
            longest + 3, row, f"{printable(one.said)}, {one.total:g}", va="center", fontsize=7.8,
            color=colour, parse_math=False,
        )  # fmt: skip
    axis.set(
        xlim=(0, 1.3 * longest), ylim=(len(rows) - 0.4, -0.8),
        xlabel=f"token of the answer; before the first fork stands\n{tree.shared}",
        yticks=range(len(rows)), yticklabels=[str(number + 1) for number in rows], ylabel="answer",
        xticks=range(0, longest + 1, 40),
        title="thick: the model writes, thin: the tool replies;\nat the end the answer and its total reward",
    )  # fmt: skip
    _slice(picture, tree)
    return figure


def _line(axis: Axes, row: int, one: Branch, colour: str) -> None:
    """Draw an answer's own tokens, thick where the model wrote them and thin where a tool replied."""
    at = one.start
    for start, stop in one.replies:
        axis.plot([at, start], [row, row], color=colour, linewidth=3.5, solid_capstyle="butt")
        axis.plot([start, stop], [row, row], color=colour, linewidth=0.8)
        at = stop
    axis.plot([at, one.length], [row, row], color=colour, linewidth=3.5, solid_capstyle="butt")


def _slice(axis: Axes, tree: ForkTree) -> None:
    """Draw the part of the slice that was looked at: boxes, what each fork moved, and the lesion."""
    boxes = {number: one.box_zyx for number, one in enumerate(tree.branches) if one.box_zyx}
    y, x = np.nonzero(tree.lesion)
    edges = np.array([box[2:] for box in boxes.values()] + [(y.min(), y.max() + 1, x.min(), x.max() + 1)])
    bottom, right = tree.slice_hu.shape
    y0, x0 = (max(0, edges[:, place].min() - MARGIN) for place in (0, 2))
    y1, x1 = (min(size, edges[:, place].max() + MARGIN) for place, size in ((1, bottom), (3, right)))
    low, high = WINDOW_HU
    axis.imshow(
        _halved(tree.slice_hu),
        cmap="gray",
        vmin=low,
        vmax=high,
        extent=(-0.5, right - 0.5, bottom - 0.5, -0.5),
    )
    axis.contour(tree.lesion, [0.5], colors=[GREEN], linewidths=1.6)
    for number, box in boxes.items():
        one = tree.branches[number]
        colour = SKY if one.total > 0 else ORANGE
        axis.add_patch(
            Rectangle(
                (box[4] - 0.5, box[2] - 0.5), box[5] - box[4], box[3] - box[2], fill=False, edgecolor=colour,
                linewidth=1.3, linestyle="-" if one.parent is None else "--",
            )
        )  # fmt: skip
    for number, box in boxes.items():
        parent = tree.branches[number].parent
        if parent in boxes and boxes[parent] != box:
            axis.annotate(
                "", _middle(box), _middle(boxes[parent]), arrowprops={"arrowstyle": "->", "color": "w"}
            )
    bar = SCALE_MM / tree.pixel_mm
    axis.plot([x0 + 12, x0 + 12 + bar], [y1 - 14] * 2, color="w", linewidth=2)
    axis.text(x0 + 12 + bar / 2, y1 - 20, f"{SCALE_MM} mm", color="w", ha="center", fontsize=7.5)
    axis.set(
        xlim=(x0, x1), ylim=(y1, y0), xticks=[], yticks=[],
        title=f"{tree.question} {tree.right}\nblue: paid, orange: not; dashed: forks",
        xlabel=f"green: the lesion. In all {tree.fresh + tree.forks} answers of the stage\n"
        f"forks are paid {tree.fork_total:.3f}, the others {tree.fresh_total:.3f}",
    )  # fmt: skip


def _halved(values: np.ndarray) -> np.ndarray:
    """Return the means of 2 x 2 pixels: less noise, and a smaller file."""
    y, x = (size // 2 for size in values.shape)
    return values[: 2 * y, : 2 * x].reshape(y, 2, x, 2).mean(axis=(1, 3))


def _middle(box: Sequence[int]) -> tuple[float, float]:
    """Return the centre of a box as (x, y)."""
    return (box[4] + box[5]) / 2, (box[2] + box[3]) / 2
