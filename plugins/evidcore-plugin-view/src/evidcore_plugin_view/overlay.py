"""One overlay model: what is drawn over a scan, whoever says it, and its shape on a slice of any plane.

An answer, a rollout, a tool's reply and a data set all give overlays, which differ by their role alone. Boxes
and masks are in voxels of the source volume, axes z, y, x.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages.gallery import AXES, cut, outline, runs

from evidcore.api import Crop, MaskRef

if TYPE_CHECKING:
    from evidcore_plugin_view.background import FollowRequest

Role = Literal["truth", "predicted", "followed", "looked-at", "shown", "occlusion"]  # as they are listed
Plane = Literal["axial", "coronal", "sagittal"]
Mask = npt.NDArray[np.bool_]
Voxels = npt.NDArray[np.uint8]
FULL = 255  # how strongly a voxel is drawn at most
SpanZYX = tuple[int, int, int, int, int, int]  # z0, z1, y0, y1, x0, x1: starts included, stops excluded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlay:
    """One thing to draw; it is switched by itself."""

    name: str  # what it shows: a finding, "box", "slice"
    role: Role
    source: str = ""  # "a" or "b" for an answer on that side, empty for the data set
    boxes: tuple[SpanZYX, ...] = ()
    mask: MaskRef | None = None  # read when it is drawn
    follow: FollowRequest | None = None  # boxes of which a segmenter makes its mask
    slices: tuple[int, ...] = ()  # axial ones, named without a box
    strengths: tuple[int, ...] = ()  # of an occlusion map: how strongly each box is drawn, 255 at most
    legend: str = ""  # of an occlusion map
    asked: bool = True  # whether the question is about it; then it is drawn at first

    @property
    def id(self) -> str:
        """Return the name by which it is asked for; one overlay of a question has it."""
        return "/".join((self.source or "case", self.role, self.name))


class Shape(TypedDict):
    """What is drawn of an overlay on one slice: SVG paths in pixels of that slice."""

    outline: str
    fill: str
    shades: Sequence[tuple[str, float]]  # areas, and how strongly each is filled: 0 to 1


def of_answer(line: Mapping[str, Any], side: str, path: str) -> list[Overlay]:
    """Return what a line of answers points at in the volume of a path, and what is known to be right."""
    overlays = _predicted(line, side)
    for places in ({"": line.get("gold_slice")}, line.get("gold_slices") or {}):
        overlays += _slices("right slice", places, "truth")
    return [*overlays, *_shown(line.get("images") or (), side, path), *_looks(line, side, path)]


def of_group(line: Mapping[str, Any], path: str) -> list[Overlay]:
    """Return what is known to be right of the question of a line of rollouts, and what was shown."""
    overlays = []
    target = (line.get("reference") or {}).get("target")
    if isinstance(target, Mapping):
        if isinstance(target.get("boxes"), Mapping):
            boxes = tuple(_span(box) for some in target["boxes"].values() for box in some)
            overlays.append(Overlay(name="right box", role="truth", boxes=boxes))
        overlays += _slices("right slice", {"": target.get("slice")}, "truth")
    return [*overlays, *_shown(line.get("images") or (), "a", path)]


def of_rollout(rollout: Mapping[str, Any], side: str, path: str) -> list[Overlay]:
    """Return what one rollout points at and looked at; empty for runs that recorded no evidence."""
    evidence = rollout.get("evidence") or {}
    overlays = _predicted(evidence, side)
    if evidence.get("mask"):
        mask = MaskRef(**evidence["mask"])
        overlays.append(Overlay(name="mask", role="predicted", source=side, mask=mask))
    return [*overlays, *_looks(rollout, side, path)]


def of_drops(found: Mapping[str, Any], side: str, path: str) -> list[Overlay]:
    """Return the map of a line of occlusion, where it is of the volume of a path.

    It has a box for each cell whose covering makes the answer less likely. Drops are of the log-probability,
    in nats a token; cells lie in raster order, x changes first.
    """
    if Crop.parse_uri(found["image"]).volume.path != path:
        return []
    drawn: dict[SpanZYX, int] = {}
    legend = "The answer stays as likely whichever cell is covered."
    if found["largest"] is not None:
        most = found["drops"][found["largest"]["cell"]]
        means = "How much less likely the answer is with this cell covered."
        legend = f"{means} Full colour: {most:.3g} nats a token."
        spans = itertools.product(*(itertools.pairwise(edges) for edges in found["grid"]["edges_zyx"]))
        for (z, y, x), drop in zip(spans, found["drops"], strict=True):
            if drop is not None and drop > 0:  # None: nothing of the cell was shown
                drawn[*z, *y, *x] = round(FULL * drop / most)
    boxes, strengths = tuple(drawn), tuple(drawn.values())
    name: Role = "occlusion"
    return [Overlay(name=name, role=name, source=side, boxes=boxes, strengths=strengths, legend=legend)]


def of_masks(masks: Mapping[str, MaskRef], asked: Sequence[str]) -> list[Overlay]:
    """Return a case's masks, those that the question is about first."""
    order = [*(name for name in asked if name in masks), *(name for name in masks if name not in asked)]
    return [Overlay(name=name, role="truth", mask=masks[name], asked=name in asked) for name in order]


def voxels(overlay: Overlay, mask: Mask | None, shape_zyx: tuple[int, int, int]) -> Mask | Voxels:
    """Return an overlay's mask, else how strongly each voxel is drawn, 0 to 255; shape (z, y, x)."""
    strengths = overlay.strengths or (FULL,) * len(overlay.boxes)
    return _filled(overlay.boxes, strengths, shape_zyx) if mask is None else mask


@functools.lru_cache(maxsize=2)  # each slice that is scrolled to asks for the same, of side a or b
def _filled(
    boxes: tuple[SpanZYX, ...], strengths: tuple[int, ...], shape_zyx: tuple[int, int, int]
) -> Voxels:
    drawn = np.zeros(shape_zyx, dtype=np.uint8)
    for (z0, z1, y0, y1, x0, x1), strength in zip(boxes, strengths, strict=True):
        drawn[z0:z1, y0:y1, x0:x1] = strength
    drawn.flags.writeable = False
    return drawn


def extent(overlay: Overlay, drawn: Mask | Voxels, plane: Plane) -> tuple[list[int], int | None]:
    """Return the slices of a plane on which an overlay is seen, and the one that shows most of it.

    `drawn` is what `voxels` gives. An occlusion map is seen best through its largest drop.
    """
    if overlay.slices:
        slices = sorted(overlay.slices) if plane == "axial" else []
        return slices, slices[len(slices) // 2] if slices else None
    others = tuple(axis for axis in range(3) if axis != AXES[plane])
    seen = np.flatnonzero(drawn.any(axis=others))
    areas = (drawn == drawn.max()).sum(axis=others)
    fullest = np.flatnonzero(areas == areas.max())
    return seen.tolist(), int(fullest[len(fullest) // 2]) if len(seen) else None


def shape(overlay: Overlay, drawn: Mask | Voxels, plane: Plane, index: int) -> Shape | None:
    """Return an overlay's shape on a slice, None where it is not seen there.

    Axial slices show y down and x right; the other planes show z up. `drawn` is what `voxels` gives.
    """
    seen = cut(drawn, plane, index)
    if not seen.any():
        return None
    shades = []
    if overlay.strengths:  # the cell with the largest drop is outlined
        strengths = np.unique(seen[seen > 0]).tolist()
        shades = [(filled(seen == strength), strength / FULL) for strength in strengths]
    fill = filled(seen) if seen.dtype == np.bool_ else ""
    return Shape(outline=outline(seen == drawn.dtype.type(FULL)), fill=fill, shades=shades)


def filled(mask: Mask) -> str:
    """Return the area of a mask, shape (y, x), as an SVG path: a strip for each run of a row."""
    return "".join(
        f"M{start} {y}H{stop}V{y + 1}H{start}Z"
        for y in np.flatnonzero(mask.any(axis=1)).tolist()
        for start, stop in runs(mask[y])
    )


def _predicted(evidence: Mapping[str, Any], side: str) -> list[Overlay]:
    boxes = tuple(_span(box) for box in evidence.get("boxes") or ())
    overlays = [Overlay(name="box", role="predicted", source=side, boxes=boxes)] if boxes else []
    for places in ({"": evidence.get("slice")}, evidence.get("slices") or {}):
        overlays += _slices("slice", places, "predicted", side)
    return overlays


def _slices(name: str, places: Mapping[str, Any], role: Role, side: str = "") -> list[Overlay]:
    """Return an overlay for each finding whose slice is known; "" names the one of the whole answer."""
    return [
        Overlay(name=f"{name} {finding}".strip(), role=role, source=side, slices=(z,))
        for finding, z in places.items()
        if isinstance(z, int)
    ]


def _span(box: Mapping[str, int]) -> SpanZYX:
    return box["z"], box["z"] + 1, box["y0"], box["y1"], box["x0"], box["x1"]


def _shown(images: Iterable[str], side: str, path: str) -> list[Overlay]:
    """Return the parts of a volume that a prompt showed."""
    parts = _parts(images, path)
    if parts and all(span[1] - span[0] == 1 for span in parts):
        slices = tuple(span[0] for span in parts)
        return [Overlay(name="slices shown", role="shown", source=side, slices=slices, asked=False)]
    return [Overlay(name="part shown", role="shown", source=side, boxes=parts, asked=False)] if parts else []


def _looks(line: Mapping[str, Any], side: str, path: str) -> list[Overlay]:
    """Return the parts that tools showed after the prompt."""
    parts = [_parts(turn.get("crops") or (), path) for turn in line.get("turns") or ()]
    return [
        Overlay(name=f"look {number}", role="looked-at", source=side, boxes=boxes)
        for number, boxes in enumerate(parts, start=1)
        if boxes
    ]


def _parts(uris: Iterable[str], path: str) -> tuple[SpanZYX, ...]:
    crops = [Crop.parse_uri(uri) for uri in uris]
    return tuple(crop.box_zyx for crop in crops if crop.volume.path == path and crop.box_zyx is not None)
