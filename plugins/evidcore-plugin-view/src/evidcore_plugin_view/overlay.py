"""One overlay model: what is drawn over a scan, whoever says it, and its shape on a slice of any plane.

An answer, a rollout, a tool's reply and a data set all give overlays, which differ by their role alone. Boxes
and masks are in voxels of the source volume, axes z, y, x.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages.gallery import AXES, cut, outline

from evidcore.api import Crop, MaskRef

if TYPE_CHECKING:
    from evidcore_plugin_view.background import FollowRequest

Role = Literal["truth", "predicted", "followed", "looked-at", "shown", "occlusion"]
Plane = Literal["axial", "coronal", "sagittal"]
Mask = npt.NDArray[np.bool_]
SpanZYX = tuple[int, int, int, int, int, int]  # z0, z1, y0, y1, x0, x1: starts included, stops excluded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """How much less likely an answer becomes with each cell of a grid covered.

    Args:
        edges_zyx: of the cells along each axis, in voxels.
        drops: of the log-probability, in nats a token; cells in raster order, x changes first. None: nothing
            of the cell was shown.
        largest: the cell with the largest drop; None: no drop is large enough to count.
    """

    edges_zyx: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    drops: tuple[float | None, ...]
    largest: int | None

    def falls(self) -> list[tuple[SpanZYX, float]]:
        """Return the box of each cell whose covering lowers the answer, and its share of the largest drop."""
        if self.largest is None:
            return []
        most = self.drops[self.largest] or 0.0
        spans = itertools.product(*(itertools.pairwise(edges) for edges in self.edges_zyx))
        return [
            ((*z, *y, *x), drop / most)
            for (z, y, x), drop in zip(spans, self.drops, strict=True)
            if drop is not None and drop > 0
        ]

    def peak(self) -> SpanZYX | None:
        """Return the box of the cell with the largest drop."""
        return next((span for span, share in self.falls() if share == 1), None)

    def legend(self) -> str:
        """Say what the colours are."""
        if self.largest is None:
            return "The answer stays as likely whichever cell is covered."
        return (
            "How much less likely the answer is with this cell covered. "
            f"Full colour: {self.drops[self.largest]:.3g} nats a token."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlay:
    """One thing to draw; it is switched by itself.

    Args:
        name: what it shows: a finding, "box", "slice".
        role: who says so.
        source: "a" or "b" for an answer on that side, empty for the data set.
        boxes: in voxels.
        mask: where its mask lies, read when it is drawn.
        follow: boxes of which a segmenter makes its mask.
        slices: axial slices that are named without a box.
        cells: of an occlusion map.
        asked: whether the question is about it; then it is drawn at first.
    """

    name: str
    role: Role
    source: str = ""
    boxes: tuple[SpanZYX, ...] = ()
    mask: MaskRef | None = None
    follow: FollowRequest | None = None
    slices: tuple[int, ...] = ()
    cells: Cells | None = None
    asked: bool = True

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
    """Return the map of a line of occlusion, where it is of the volume of a path."""
    if Crop.parse_uri(found["image"]).volume.path != path:
        return []
    z, y, x = (tuple(edges) for edges in found["grid"]["edges_zyx"])
    largest = None if found["largest"] is None else int(found["largest"]["cell"])
    cells = Cells(edges_zyx=(z, y, x), drops=tuple(found["drops"]), largest=largest)
    return [Overlay(name="occlusion", role="occlusion", source=side, cells=cells)]


def of_masks(masks: Mapping[str, MaskRef], asked: Sequence[str]) -> list[Overlay]:
    """Return a case's masks, those that the question is about first."""
    order = [*(name for name in asked if name in masks), *(name for name in masks if name not in asked)]
    return [Overlay(name=name, role="truth", mask=masks[name], asked=name in asked) for name in order]


def extent(overlay: Overlay, mask: Mask | None, plane: Plane) -> list[int]:
    """Return the slices of a plane on which an overlay is seen; `mask` has shape (z, y, x)."""
    axis = AXES[plane]
    seen: set[int] = set(overlay.slices) if plane == "axial" else set()
    falls = [] if overlay.cells is None else [span for span, _ in overlay.cells.falls()]
    for span in (*overlay.boxes, *falls):
        seen.update(range(span[2 * axis], span[2 * axis + 1]))
    if mask is not None:
        others = tuple(other for other in range(3) if other != axis)
        seen.update(np.flatnonzero(mask.any(axis=others)).tolist())
    return sorted(seen)


def fullest(overlay: Overlay, mask: Mask | None, plane: Plane) -> int | None:
    """Return the slice of a plane that shows most of an overlay; None where none shows any."""
    seen = extent(overlay, mask, plane)
    if overlay.cells is not None and (peak := overlay.cells.peak()) is not None:
        return (peak[2 * AXES[plane]] + peak[2 * AXES[plane] + 1]) // 2
    if mask is None or not seen:
        return seen[len(seen) // 2] if seen else None
    others = tuple(other for other in range(3) if other != AXES[plane])
    return int(mask.sum(axis=others).argmax())


def drawn(overlay: Overlay, mask: Mask | None, plane: Plane, index: int, depth: int) -> Shape | None:
    """Return an overlay's shape on a slice, None where it is not seen there.

    Axial slices show y down and x right; the other planes show z up. `mask` has shape (z, y, x), `depth` is
    the number of the volume's slices along z.
    """
    axis = AXES[plane]
    if overlay.cells is not None:
        return _shaded(overlay.cells, plane, index, depth)
    edges = [
        _rectangle(span, plane, depth)
        for span in overlay.boxes
        if span[2 * axis] <= index < span[2 * axis + 1]
    ]
    if mask is not None:
        seen = cut(mask, plane, index)
        if seen.any():
            return Shape(outline="".join([outline(seen), *edges]), fill=filled(seen), shades=())
    return Shape(outline="".join(edges), fill="", shades=()) if edges else None


def voxels(overlay: Overlay, mask: Mask | None, shape_zyx: tuple[int, int, int]) -> Mask:
    """Return the voxels of an overlay's mask and boxes, shape (z, y, x)."""
    held = np.zeros(shape_zyx, dtype=np.bool_) if mask is None else mask.copy()
    for z0, z1, y0, y1, x0, x1 in overlay.boxes:
        held[z0:z1, y0:y1, x0:x1] = True
    return held


def strengths(cells: Cells, shape_zyx: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Return how strongly each voxel of an occlusion map is drawn, 0 to 255, shape (z, y, x)."""
    held = np.zeros(shape_zyx, dtype=np.uint8)
    for (z0, z1, y0, y1, x0, x1), share in cells.falls():
        held[z0:z1, y0:y1, x0:x1] = round(255 * share)
    return held


def filled(mask: Mask) -> str:
    """Return the area of a mask, shape (y, x), as an SVG path: a strip for each run of a row."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    pieces = []
    for y in np.flatnonzero(mask.any(axis=1)).tolist():
        ends = np.flatnonzero(edges[y]).reshape(-1, 2).tolist()
        pieces += [f"M{start} {y}H{stop}V{y + 1}H{start}Z" for start, stop in ends]
    return "".join(pieces)


def _shaded(cells: Cells, plane: Plane, index: int, depth: int) -> Shape | None:
    """Return the cells of a slice, the one with the largest drop outlined."""
    axis = AXES[plane]
    here = [item for item in cells.falls() if item[0][2 * axis] <= index < item[0][2 * axis + 1]]
    if not here:
        return None
    largest = cells.peak()
    peak = "".join(_rectangle(span, plane, depth) for span, _ in here if span == largest)
    # cells behind each other along the plane's axis never share a slice
    shades = tuple((_rectangle(span, plane, depth), round(share, 3)) for span, share in here)
    return Shape(outline=peak, fill="", shades=shades)


def _rectangle(span: SpanZYX, plane: Plane, depth: int) -> str:
    z0, z1, y0, y1, x0, x1 = span
    top, bottom = (y0, y1) if plane == "axial" else (depth - z1, depth - z0)
    left, right = (y0, y1) if plane == "sagittal" else (x0, x1)
    return f"M{left} {top}H{right}V{bottom}H{left}Z"


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
