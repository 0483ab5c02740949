"""Where to look: the slices that are shown, the square around masks, and the call that shows it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from evidcore_plugin_medvol_r1.target import Rule, gold_slice, measure

from evidcore.api import Box, Case, DataError, Prompt, Tool, View, VisualPart
from evidcore.case import Action, Turn
from evidcore.data.reading import read_geometry
from evidcore_plugin_medvr.rollout import CLOSE, OPEN

RULE = Rule(parts=(), smallest_part=0.0)


def shown_slices(prompt: Prompt, task: str) -> dict[int, VisualPart]:
    """Return the single slices that a prompt shows, by their number.

    Raises:
        DataError: if it shows none; names the prompt and `task`.
    """
    parts = {
        part.crop.box_zyx[0]: part
        for part in prompt.parts
        if isinstance(part, VisualPart) and part.crop.is_slice and part.crop.box_zyx is not None
    }
    if not parts:
        raise DataError(
            f"{task}: prompt {prompt.id!r} shows no single slice, and a box lies on one. Use "
            "view = { use = 'slices' }."
        )
    return parts


def square_around(
    case: Case, names: Sequence[str], slices: Collection[int], smallest_side: float, cache_folder: Path
) -> Box | None:
    """Return the smallest square around what some masks show on the slice that shows most of them.

    Args:
        case: whose masks; its first volume is the grid.
        names: of the masks, together.
        slices: those that are shown.
        smallest_side: of the square, as a share of the shorter side of the slice.
        cache_folder: keeps what was measured of masks.

    Returns:
        The square, moved into the slice; None where no shown slice shows any of the masks.
    """
    if not names or not case.volumes:
        return None
    result = measure(case, names, RULE, cache_folder)
    z = gold_slice(result.areas, slices, 1)
    if z is None:
        return None
    _, height, width = read_geometry(case.volumes[0]).shape_zyx
    boxes = result.boxes[z]
    y0, y1 = min(item.y0 for item in boxes), max(item.y1 for item in boxes)
    x0, x1 = min(item.x0 for item in boxes), max(item.x1 for item in boxes)
    least = round(smallest_side * min(height, width))
    side = min(max(y1 - y0, x1 - x0, least), height, width)
    y0 = min(max(0, (y0 + y1 - side) // 2), height - side)
    x0 = min(max(0, (x0 + x1 - side) // 2), width - side)
    return Box(z=z, y0=y0, y1=y0 + side, x0=x0, x1=x0 + side)


def called(tool: Tool, view: View, part: VisualPart, box: Box, prompt: Prompt, step: int) -> Turn:
    """Return the turn in which `tool` is called with a box of a shown slice, and what it shows.

    Coordinates are rounded down to multiples of `step`.
    """
    shown = view.from_source(part, box)
    assert shown is not None  # a single slice has a box convention
    arguments = {"slice": box.z, "box": [round(edge) // step * step for edge in shown]}
    call = json.dumps({"name": tool.name, "arguments": arguments})
    action = Action(tool=tool.name, arguments=arguments)
    return Turn(text=f"{OPEN}{call}{CLOSE}", actions=(action,), reply=tool(arguments, prompt))
