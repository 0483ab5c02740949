"""Boxes on a picture: how a table writes them, and the masks that they become."""

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.api import Cache, DataError, MaskRef
from evidcore.data.pictures import save_picture
from evidcore_plugin_tables.csv_rows import items_of_cell, shown
from evidcore_plugin_tables.table_questions import written

INSIDE = 255  # white, so that a mask can be looked at


@dataclasses.dataclass(frozen=True, order=True)
class PixelBox:
    """A box in pixels of a picture as it is stored: x to the right, y down, x1 and y1 exclusive."""

    x0: float
    y0: float
    x1: float
    y1: float

    def __str__(self) -> str:
        return " ".join(str(edge).removesuffix(".0") for edge in dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class CaseBoxes:
    """The boxes of a case with one picture.

    Args:
        by_name: those of each name, together one object.
        where: named in errors.
    """

    by_name: Mapping[str, tuple[PixelBox, ...]]
    where: str = dataclasses.field(compare=False)

    def outside(self, height: int, width: int) -> Iterator[str]:
        """Yield a message for each box that reaches outside a picture of this size, in pixels."""
        for name, boxes in self.by_name.items():
            for box in boxes:
                if min(box.x0, box.y0) < 0 or box.x1 > width or box.y1 > height:
                    yield (
                        f"{self.where}: box {shown(name)} reaches outside its picture of {width} x {height} "
                        f"pixels, got '{box}'. Correct the cell, or name the picture that it was drawn on."
                    )

    def masks(self, height: int, width: int, cache_folder: Path) -> dict[str, MaskRef]:
        """Return a mask for each name on a picture of this size, in pixels; its file is written once.

        Raises:
            DataError: if boxes reach outside the picture; names each.
            RunError: if the disk is full or the folder may not be written to.
        """
        if outside := list(self.outside(height, width)):
            raise DataError("\n".join(outside))
        return {name: _mask(boxes, height, width, cache_folder) for name, boxes in self.by_name.items()}


def _mask(boxes: tuple[PixelBox, ...], height: int, width: int, cache_folder: Path) -> MaskRef:
    """Return the union of boxes, rounded outward, as a picture in greys that is named by what it holds."""
    edges = sorted({
        (math.floor(box.x0), math.floor(box.y0), math.ceil(box.x1), math.ceil(box.y1)) for box in boxes
    })

    def write(path: Path) -> None:
        mask = np.zeros((height, width), np.uint8)
        for x0, y0, x1, y1 in edges:
            mask[y0:y1, x0:x1] = INSIDE
        save_picture(mask, path)

    return MaskRef(path=str(Cache("masks", cache_folder).file([height, width, edges], ".png", write)))


def boxes_of_cell(value: Any, where: str) -> dict[str, tuple[PixelBox, ...]]:
    """Read `name=x0 y0 x1 y1; name=x0 y0 x1 y1`, or an object of JSON, into boxes by name.

    Each value of an object is one list of four numbers, or a list of such lists.

    Raises:
        DataError: if it cannot be read; names `where`, the value and what would be right.
    """
    boxes: dict[str, set[PixelBox]] = collections.defaultdict(set)
    for name, edges in _named(value, where):
        if not name:
            raise DataError(f"{where}: a box has no name, got {shown(value)}. Correct the cell.")
        boxes[name].add(_box(edges, f"{where}: box {shown(name)}"))
    return {name: tuple(sorted(some)) for name, some in boxes.items()}


def _named(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and the edges of each box."""
    if isinstance(value, dict):
        for name, held in value.items():
            is_several = isinstance(held, list) and bool(held) and all(isinstance(one, list) for one in held)
            for edges in held if is_several else [held]:
                yield name.strip(), edges
        return
    for name, equals, edges in items_of_cell(written(value)):
        if not equals:
            why = f"boxes are written name=x0 y0 x1 y1 with ';' between, got {shown(name)}"
            raise DataError(f"{where}: {why}. Correct the cell.")
        yield name, edges


def _box(edges: Any, where: str) -> PixelBox:
    listed = edges.split() if isinstance(edges, str) else edges
    try:
        numbers = [float(written(edge)) for edge in listed] if isinstance(listed, list) else []
    except ValueError:
        numbers = []
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        why = f"must be four finite numbers x0 y0 x1 y1, in pixels, got {shown(edges)}"
        raise DataError(f"{where}: {why}. Correct the cell.")
    box = PixelBox(*numbers)
    if box.x0 >= box.x1 or box.y0 >= box.y1:
        why = f"is empty or inverted, got '{box}'. x0 must be below x1 and y0 below y1"
        raise DataError(f"{where}: {why}; they are edges, not width and height. Correct the cell.")
    return box
