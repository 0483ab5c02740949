"""MedVol-R1's segmenter: how well it follows a box with the distance from the slice that is boxed."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from evidcore_plugin_segmenters.audit.audit_segmenters import SegmenterAudit, audit_segmenters
from evidcore_plugin_segmenters.audit.drift import DISTANCES
from evidcore_plugin_segmenters.audit.oracle import ORACLE_BOX, key_slice, moved_name, oracle_boxes
from matplotlib.figure import Figure

from evidcore.case import Case
from evidcore.contracts import BoxPrompt, MaskRequest, Segmenter
from evidcore.data import read, read_mask
from evidcore.errors import RecipeError
from evidcore.evaluate.bootstrap import Interval
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from mechanism_figures.panels import BLUE, GREEN, GREY, ORANGE, SKY, sheet
from mechanism_figures.run_stages import data_of

SHARES = (0.1, 0.25)  # by which boxes are off
COLOURS = (BLUE, SKY, GREY)
STEPS = (-8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8)  # slices of the example, from the boxed one
MOST_SHOWN = 7
MARGIN = 6  # voxels around the example


@dataclasses.dataclass(frozen=True)
class Example:
    """The object whose Dice is the median; arrays are (z, y, x)."""

    case: str
    mask: str
    dice: float
    key: int
    volume: np.ndarray
    truth: np.ndarray
    found: np.ndarray


@dataclasses.dataclass(frozen=True)
class Followed:
    """Dice by distance, for boxes that are right and off, and an example."""

    told: str
    slice_mm: float
    objects: int
    patients: int
    by_prompt: Mapping[str, Sequence[Interval | None]]  # for each of `DISTANCES`
    example: Example


def measure(recipe_path: Path, patients: int = 30, service: str = "") -> Followed:
    """Audit the recipe's segmenter on test patients of its first data set.

    Args:
        recipe_path: a recipe that names a segmenter as a service.
        patients: how many test cases.
        service: of the segmenter; empty: the first.

    Raises:
        RecipeError: if the recipe has no such segmenter.
    """
    recipe = load(recipe_path)
    names = [name for name, table in recipe.services.items() if table["kind"] == "segmenter"]
    if not names or service not in ("", *names):
        raise RecipeError(f"{recipe_path}: has no segmenter {service!r} among its services, but {names}.")
    name = service or names[0]
    assembly = Assembly(recipe)
    dataset = next(iter(assembly.datasets))
    cases = assembly.split(dataset, "test")[:patients]
    segmenter: Segmenter = assembly.services[name]
    audit = audit_segmenters({name: segmenter}, cases, jitters=SHARES)
    prompts = [ORACLE_BOX, *map(moved_name, SHARES)]
    use = str(recipe.services[name]["use"])
    return Followed(
        told=f"{recipe_path.name}, seed {recipe.seed}, segmenter {use}, {data_of(recipe)}",
        slice_mm=read(cases[0].volumes[0]).spacing_mm_zyx[0],
        objects=len({(item.case, item.mask) for item in audit.records}),
        patients=len({item.patient for item in audit.records}),
        by_prompt={
            prompt: [audit.interval(name, prompt, f"dice/{distance}") for distance in DISTANCES]
            for prompt in prompts
        },
        example=_median(audit, name, segmenter, cases),
    )


def _median(audit: SegmenterAudit, name: str, segmenter: Segmenter, cases: Sequence[Case]) -> Example:
    """Segment the object again whose Dice from its right box is the median."""
    asked = [item for item in audit.records if (item.segmenter, item.prompt) == (name, ORACLE_BOX)]
    asked.sort(key=lambda item: (float(item.values["dice"] or 0.0), item.case, item.mask))
    record = asked[len(asked) // 2]
    case = next(item for item in cases if item.id == record.case)
    volume = read(case.volumes[0])
    truth = read_mask(case.masks[record.mask], like=volume)
    requests = [MaskRequest(prompts=(BoxPrompt(box=box),)) for box in oracle_boxes(truth)]
    result = np.logical_or.reduce(segmenter.session(case.volumes[0]).masks(requests))
    dice = float(record.values["dice"] or 0.0)
    return Example(case.id, record.mask, dice, key_slice(truth), volume.array, truth, result)


def draw(followed: Followed) -> Figure:
    """Draw Dice by distance, and the median object's slices with the truth and what was found."""
    item = followed.example
    told = f"{followed.told}, {followed.objects} objects of {followed.patients} test patients"
    figure = sheet(5.0, "MedVol-R1: how well the segmenter follows a box through the slices", told)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.55, 1))
    axis = upper.subplots()
    names = list(DISTANCES)
    for number, ((prompt, values), colour) in enumerate(
        zip(followed.by_prompt.items(), COLOURS, strict=False)
    ):
        known = [(place, value) for place, value in enumerate(values) if value is not None]
        at = [place + 0.06 * (number - 1) for place, _ in known]
        axis.plot(at, [value.value for _, value in known], "o-", color=colour, label=prompt, markersize=4)
        for x, (_, value) in zip(at, known, strict=True):
            if value.low is not None and value.high is not None:
                axis.plot([x, x], [value.low, value.high], color=colour, linewidth=2.5, alpha=0.6)
    right = followed.by_prompt[ORACLE_BOX]
    for place, value in enumerate(right):
        if value is not None:
            axis.annotate(f"{value.value:.2f}", (place, value.value), (6, 5), textcoords="offset points")
    axis.set(
        xticks=range(len(names)),
        xticklabels=[
            f"{name}\n{item.values if item else 0} objects" for name, item in zip(names, right, strict=True)
        ],
        ylim=(0, 1), ylabel="Dice on slices at that distance",
        xlabel=f"slices from the boxed one ({followed.slice_mm:g} mm each), and how many objects reach there",
    )  # fmt: skip
    axis.legend(title="mean, 95 % over patients")
    shows = (item.truth | item.found).any(axis=(1, 2))
    steps = [step for step in STEPS if 0 <= item.key + step < len(shows) and shows[item.key + step]]
    steps = sorted(sorted(steps, key=abs)[:MOST_SHOWN])
    y, x = np.nonzero((item.truth | item.found).any(axis=0))
    y0, x0 = max(0, y.min() - MARGIN), max(0, x.min() - MARGIN)
    y1, x1 = y.max() + MARGIN + 1, x.max() + MARGIN + 1
    for step, picture in zip(steps, np.atleast_1d(lower.subplots(1, len(steps))), strict=True):
        z = item.key + step
        picture.imshow(item.volume[z, y0:y1, x0:x1], cmap="gray", vmin=-160, vmax=240)
        for mask, colour, style in ((item.truth, GREEN, "-"), (item.found, ORANGE, "--")):
            if mask[z].any():
                picture.contour(
                    mask[z, y0:y1, x0:x1], [0.5], colors=[colour], linestyles=style, linewidths=1.6
                )
        picture.set(xticks=[], yticks=[], title="boxed slice" if step == 0 else f"{step:+d}")
    lower.supxlabel(
        f"the object of median Dice ({item.dice:.2f}): {item.mask} of {item.case}; "
        "solid green: the mask, dashed orange: what was followed from the right box",
        fontsize=8,
    )
    return figure
