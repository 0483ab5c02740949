"""Where to look: the slices that are shown, the square around masks, and the call that shows it."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from evidcore_plugin_medvol_r1.target import gold_slice, measure
from evidcore_plugin_medvol_r1.target import shown_slices as slices_of

from evidcore.api import Box, Case, DataError, Prompt, Tool, View, VisualPart
from evidcore.case import Action, Turn
from evidcore.data import read_geometry
from evidcore_plugin_medvr.rollout import CLOSE, OPEN


def shown_slices(prompt: Prompt, task: str) -> dict[int, VisualPart]:
    """Return the single slices that a prompt shows, by their number.

    Raises:
        DataError: if it shows none; names the prompt and `task`.
    """
    parts = slices_of(prompt.parts)
    if not parts:
        what = f"prompt {prompt.id!r} shows no single slice, and a box lies on one"
        raise DataError(f"{task}: {what}. Use view = {{ use = 'slices' }}.")
    return parts


def square_around(
    case: Case, names: Sequence[str], slices: Collection[int], smallest_side: float, cache_folder: Path
) -> Box | None:
    """Return the smallest square around what some masks show on the one of `slices` that shows most of them.

    Its side is at least `smallest_side` of the shorter side of the slice; it is moved into the slice. None
    where none of the slices shows any of the masks.
    """
    if not names or not case.volumes:
        return None
    result = measure(case, names, cache_folder)
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
