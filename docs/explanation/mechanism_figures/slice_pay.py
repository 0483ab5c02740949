"""E-MRL's reward `cross-view`: what each slice of one patient would be paid, and which ones are cited."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from evidcore_plugin_emrl.cross_view import CrossView
from evidcore_plugin_emrl.matched_slices import shown_findings
from evidcore_plugin_emrl.report_evidence import SLICE, shown_slices
from evidcore_plugin_reports.agreement import affirmed
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.special import softmax

from evidcore.cache import cache_folder
from evidcore.case import Crop, Prompt, Rollout, Score
from evidcore.contracts import ImageQuestion
from evidcore.data import read, read_mask
from evidcore.errors import RunError
from evidcore.runs.read import read_object
from mechanism_figures.panels import BLUE, GREEN, GREY, INK, ORANGE, sheet
from mechanism_figures.run_stages import OpenedRun

WINDOW_HU = (-60, 180)
AIR_HU = -300
MOST_PICTURES = 3


@dataclasses.dataclass(frozen=True)
class Citing:
    """What one evaluation of the policy cites."""

    name: str
    slice: int  # of its greedy answer
    chances: np.ndarray  # by slice: of its own answer with that slice, over all that are shown
    hits: float  # evidence hit rate over all test patients of the stage


@dataclasses.dataclass(frozen=True)
class SlicePay:
    """One test patient; lists are over the slices that are shown."""

    case: str
    slices: Sequence[int]
    slice_mm: float
    areas_cm2: Mapping[str, Sequence[float]]  # of each finding's mask
    shown: Sequence[frozenset[str]]  # findings that masks show
    seen: Sequence[frozenset[str]]  # findings that the reader names
    paid: Sequence[float]
    agreement: Sequence[float]  # of what is seen with what the case has; the pay is this less the control
    before: Citing
    after: Citing
    pictures: Mapping[int, tuple[np.ndarray, np.ndarray]]  # by slice: HU and mask of all findings, (y, x)


def measure(run: OpenedRun, case_id: str = "") -> SlicePay:
    """Pay every slice of a test patient as training would, and ask the policy before and after for its odds.

    Args:
        run: with an evaluation before GRPO and one behind.
        case_id: a test patient; empty: the first one with a finding whose cited slice GRPO changed.

    Raises:
        RunError: if no reward is `cross-view`, or there is no such patient.
    """
    stage = run.stage("grpo", last=True)
    context = run.context(stage)
    named = next(
        (item for item in run.table(stage).rewards(context) if isinstance(item.reward, CrossView)), None
    )
    if named is None:
        raise RunError(
            f"{run.folder.path}: {stage} has no reward cross-view. Give a run of recipes/emrl.toml."
        )
    first, last = run.stage("evaluate"), run.stage("evaluate", last=True)
    use = run.table(last).data[0]
    said = {name: {line["prompt_id"]: line for line in run.answers(name)} for name in (first, last)}
    prompts = {prompt.id: prompt for prompt in run.assembly.prompts(use)}
    chosen = next(
        (
            prompt
            for key, prompt in prompts.items()
            if _is_moved(said[first].get(key), said[last].get(key)) and case_id in ("", prompt.case.id)
        ),
        None,
    )
    if chosen is None:
        raise RunError(
            f"{run.folder.path}: GRPO changed the slice of no patient {case_id}. Name another case."
        )
    shown = shown_slices(chosen)
    case, reward = chosen.case, named.reward
    task = run.assembly.tasks[use.task]
    texts = [_with_slice(said[last][chosen.id]["text"], z) for z in shown]
    rollouts = [Rollout(prompt=chosen, group=0, text=item, answer=task.parse(chosen, item)) for item in texts]
    scores = [item if isinstance(item, Score) else None for item in reward(rollouts, {})]
    if None in scores:
        raise RunError(f"{run.folder.path}: {case.id}: not every slice could be scored. Name another case.")
    volume = read(case.volumes[0])
    z_mm, y_mm, x_mm = volume.spacing_mm_zyx
    masks = {name: read_mask(case.masks[name], like=volume) for name in case.present()}
    union = np.logical_or.reduce(list(masks.values()))
    before = _citing(run, first, stage, chosen, said[first][chosen.id]["text"], list(shown), after=False)
    after = _citing(run, last, stage, chosen, said[last][chosen.id]["text"], list(shown), after=True)
    best = int(union.sum(axis=(1, 2)).argmax())
    return SlicePay(
        case=case.id,
        slices=list(shown),
        slice_mm=z_mm,
        areas_cm2={
            name: [float(mask[z].sum()) * y_mm * x_mm / 100 for z in shown] for name, mask in masks.items()
        },
        shown=[shown_findings(case, crop, cache_folder()) for crop in shown.values()],
        seen=_seen(reward, list(shown.values())),
        paid=[item.value for item in scores if item],
        agreement=[item.parts["seen"] for item in scores if item],
        before=before,
        after=after,
        pictures={z: (volume.array[z], union[z]) for z in dict.fromkeys([before.slice, after.slice, best])},
    )


def _is_moved(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Tell whether two well-formed answers about a sick patient cite different slices."""
    if before is None or after is None or not after["present"]:
        return False
    return bool(before["slices"] and after["slices"] and before["slices"] != after["slices"])


def _with_slice(text: str, z: int) -> str:
    """Return an answer that cites another slice."""
    head, tag, _ = text.partition("<evidence>")
    return f"{head}{tag}{json.dumps({SLICE: z})}</evidence>"


def _seen(reward: CrossView, crops: Sequence[Crop]) -> list[frozenset[str]]:
    """Return what the reward's reader names on slices, as the reward asks it."""
    answers = reward.reader([ImageQuestion(crops=(crop,), text=reward.question) for crop in crops])
    return [frozenset(affirmed(reward.reading()(answer or ""))) for answer in answers]


def _citing(
    run: OpenedRun, name: str, stage: str, prompt: Prompt, text: str, slices: Sequence[int], *, after: bool
) -> Citing:
    """Ask the model before or after a stage how likely its own answer is with each slice."""
    policy = run.context(stage, after=after).local_policy()
    (scores,) = policy.log_likelihoods([prompt], [[_with_slice(text, z) for z in slices]])
    rows = read_object(run.folder.path / "results" / f"{name}.json")["rows"]
    hits = next(row["value"] for row in rows if row["metric"] == "evidence_hit_rate")
    answer = run.assembly.tasks[run.table(name).data[0].task].parse(prompt, text)
    return Citing("after GRPO" if after else "before GRPO", answer.evidence.slice, softmax(scores), hits)


def draw(pay: SlicePay, told: str) -> Figure:
    """Draw extent and reader, pay and the policy's choice by slice, and the slices that are cited."""
    height = 0.28 * max(2, len(_names(pay)))
    figure = sheet(
        5.75 + height, "E-MRL: what each slice of a patient would be paid, and which are cited", told
    )
    upper, lower = figure.subfigures(2, 1, height_ratios=(3.3 + height, 1.7))
    reader, paid, chances = upper.subplots(3, 1, sharex=True, height_ratios=(height, 1.0, 1.0))
    _reader(reader, pay)
    paid.bar(pay.slices, pay.paid, color=[BLUE if item > 0 else ORANGE for item in pay.paid], width=0.7)
    paid.plot(pay.slices, pay.agreement, "_", color=INK, markersize=9)
    paid.axhline(0, color=GREY, linewidth=0.8)
    paid.set(
        ylabel="pay, reward units",
        title="reward cross-view of each slice; dash: before what other patients' slices earn is taken off",
    )
    for item, colour, shift in ((pay.before, GREY, -0.18), (pay.after, BLUE, 0.18)):
        chances.bar(
            np.array(pay.slices) + shift, 100 * item.chances, width=0.36, color=colour,
            label=f"{item.name}: cites {item.slice}, expected pay {item.chances @ np.array(pay.paid):.2f}",
        )  # fmt: skip
    chances.set(
        xticks=pay.slices, ylabel="chance, %", xlabel=f"slice, {pay.slice_mm:g} mm each",
        title="the policy's choice among the slices; all test patients: evidence hits "
        f"{100 * pay.before.hits:.1f} % before, {100 * pay.after.hits:.1f} % after",
    )  # fmt: skip
    chances.legend(loc="upper left")
    for axis in (reader, paid, chances):
        for item, colour in ((pay.before, GREY), (pay.after, BLUE)):
            axis.axvline(item.slice, color=colour, linewidth=8, alpha=0.18, zorder=0)
    shown = np.stack([values for values, _ in pay.pictures.values()]).max(axis=0) > AIR_HU
    (y,), (x,) = (np.nonzero(shown.any(axis=1)), np.nonzero(shown.any(axis=0)))
    low, high = WINDOW_HU
    for axis, (z, (values, mask)) in zip(
        lower.subplots(1, MOST_PICTURES), pay.pictures.items(), strict=False
    ):
        axis.imshow(values, cmap="gray", vmin=low, vmax=high)
        if mask.any():
            axis.contour(mask, [0.5], colors=[GREEN], linewidths=1.4)
        paid_here = pay.paid[list(pay.slices).index(z)]
        axis.set(
            xticks=[], yticks=[], xlim=(x.min(), x.max()), ylim=(y.max(), y.min()),
            title=f"slice {z}{_role(pay, z)}: {paid_here:+.2f}",
        )  # fmt: skip
    for axis in lower.axes[len(pay.pictures) :]:
        axis.axis("off")
    return figure


def _role(pay: SlicePay, z: int) -> str:
    roles = [f"cited {item.name}" for item in (pay.before, pay.after) if item.slice == z]
    return ", " + " and ".join(roles or ["most lesion"])


def _names(pay: SlicePay) -> list[str]:
    """Return the findings that a mask shows or the reader names, those of the case first."""
    others = sorted(frozenset().union(*pay.seen) - set(pay.areas_cm2))
    return [*pay.areas_cm2, *others]


def _reader(axis: Axes, pay: SlicePay) -> None:
    """Draw where each finding lies, darker where there is more of it, and where the reader names it."""
    names = _names(pay)
    most = max(area for areas in pay.areas_cm2.values() for area in areas)
    for row, areas in enumerate(pay.areas_cm2.values()):
        for z, area in zip(pay.slices, areas, strict=True):
            if area:
                share = 0.15 + 0.65 * area / most
                axis.add_patch(
                    Rectangle((z - 0.5, row - 0.42), 1, 0.84, color=GREEN, alpha=share, linewidth=0)
                )
    for label, colour, marker, is_there in (
        ("named, and there", BLUE, "o", True),
        ("named, not there", ORANGE, "X", False),
    ):
        points = [
            (z, names.index(name))
            for z, shown, seen in zip(pay.slices, pay.shown, pay.seen, strict=True)
            for name in seen
            if (name in shown) == is_there
        ]
        axis.scatter(
            *zip(*points, strict=True) if points else ((), ()), color=colour, marker=marker, s=28, label=label
        )
    axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    axis.set_title(
        f"green: the masks, up to {most:.1f} cm²; marks: what the reader names on each slice alone"
    )
    axis.legend(loc="upper right")
