"""The checks of views and tools, and of crops wherever they come from."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from evidcore.api import Case, Crop, EncoderInput, Prompt, TextPart, Tool, View, VisualPart, prepare
from evidcore.data import read_geometry
from evidcore_testing.clauses import Clauses


def check_view(
    view: View,
    case: Case,
    encoder: EncoderInput,
    *,
    boxes: Mapping[tuple[float, ...], tuple[float, float, float, float]],
    outside: Sequence[tuple[float, ...]],
) -> None:
    """Assert the contract of a view.

    - a case is shown by at least one visual part, twice the same;
    - what is shown lies inside the case's own volumes;
    - where slices are tagged, the text before each names its index;
    - an encoder is given the size that is announced;
    - boxes come back as voxels of what was shown, and voxels as boxes where the view knows the way;
    - a box outside raises a ValueError.

    Args:
        view: the component under test.
        case: what it shows.
        encoder: what is declared by an encoder that the view can serve.
        boxes: boxes in the view's own convention, each with the stretch of the shown slice that it means, as
            fractions y0, y1, x0, x1.
        outside: boxes that no slice can hold.
    """
    check = Clauses(view)
    parts = view.render(case)
    check(parts == view.render(case), "a case is shown twice the same", f"not so for {case.id!r}")
    visual = [(place, part) for place, part in enumerate(parts) if isinstance(part, VisualPart)]
    check(visual, "a case is shown by at least one visual part", f"got {parts!r}")
    for place, part in visual:
        require_inside(check, part.crop, case)
        if view.tags_slices:
            before = parts[place - 1] if place else None
            tag = before.text if isinstance(before, TextPart) else ""
            index = part.crop.box_zyx[0] if part.crop.box_zyx else None
            got = f"slice {index} comes after {tag!r}"
            check(str(index) in re.findall(r"\w+", tag), "the text before each slice names its index", got)
        clause = "an encoder is given the size that is announced"
        size = view.size_zyx(part, encoder)
        check(size == view.size_zyx(part, encoder), clause, f"{size} at first, then another")
        positive = len(size) == 3 and all(isinstance(count, int) and count > 0 for count in size)
        check(positive, clause, f"got {size!r}")
        step = encoder.multiple_px
        sides_fit = size[1:] == encoder.size_zyx[1:] or (step and not any(side % step for side in size[1:]))
        fits = sides_fit and (encoder.any_depth or size[0] == encoder.size_zyx[0])
        check(fits, clause, f"got {size}, the encoder takes {encoder.size_zyx}")
        given, due = tuple(prepare(part.crop, encoder, size).shape), (encoder.channels, *size)
        check(given == due, clause, f"got {given}, announced {due}")
        _boxes_come_back(check, view, part, boxes, outside)


def _boxes_come_back(
    check: Clauses,
    view: View,
    part: VisualPart,
    boxes: Mapping[tuple[float, ...], tuple[float, float, float, float]],
    outside: Sequence[tuple[float, ...]],
) -> None:
    z0, z1, y0, y1, x0, x1 = edges = read_geometry(part.crop.volume).box_of(part.crop)
    clause = "boxes come back as voxels of what was shown"
    placed = [(given, meant, box) for given, meant in boxes.items() if (box := view.to_source(part, given))]
    for given, (top, bottom, right, left), box in placed:
        inside = z0 <= box.z < z1 and y0 <= box.y0 < box.y1 <= y1 and x0 <= box.x0 < box.x1 <= x1
        check(inside, clause, f"{given} gave {box}, shown is {edges}")
        meant = [y0 + (y1 - y0) * top, y0 + (y1 - y0) * bottom, x0 + (x1 - x0) * right, x0 + (x1 - x0) * left]
        off = float(np.abs(np.subtract((box.y0, box.y1, box.x0, box.x1), meant)).max())
        check(off <= 1.0, clause, f"{given} gave {box}, off by {off:.1f} voxels")
        written = view.from_source(part, box)
        if written is not None:
            again = view.to_source(part, written)
            check(again == box, "voxels come back as boxes", f"{box} became {written}, then {again}")
    check(placed or z1 - z0 > 1, clause, f"no box has a place on slice {z0}")
    for given in outside if placed else ():
        check.refuses("a box outside raises a ValueError", f"{given}", partial(view.to_source, part, given))


def require_inside(check: Clauses, crop: Crop, case: Case) -> None:
    """Fail unless `crop` shows voxels of one of the case's volumes."""
    clause = "what is shown lies inside the case's own volumes"
    check(crop.volume in case.volumes, clause, f"got {crop.uri()!r} for case {case.id!r}")
    geometry = read_geometry(crop.volume)
    shape, edges = geometry.shape_zyx, geometry.box_of(crop)
    inside = all(0 <= edges[2 * n] < edges[2 * n + 1] <= shape[n] for n in range(3))
    check(inside, clause, f"got {edges} in a volume of {shape} voxels")
    same = Crop.parse_uri(crop.uri()) == crop
    check(same, "a crop survives the way through its uri", f"not so for {crop.uri()!r}")


def check_tool(
    tool: Tool, prompt: Prompt, good: Sequence[Mapping[str, Any]], *, bad: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Assert the contract of a tool.

    - it has a name that a model can write and a description;
    - the schema is a JSON schema of an object;
    - a good call gives parts, of the prompt's own case, and the same parts again;
    - a bad call raises a ValueError with a message, and nothing else.

    Args:
        tool: the component under test.
        prompt: what the model is being asked.
        good: arguments that work, at least one.
        bad: arguments that do not, beside those made here by leaving out and spoiling the good ones'.
    """
    check = Clauses(tool)
    can_write = re.fullmatch(r"[a-z][a-z0-9_-]*", tool.name)
    check(can_write, "a model can write its name", f"got name {tool.name!r}")
    check(tool.description.strip(), "it has a description", f"got {tool.description!r}")
    clause = "the schema is a JSON schema of an object"
    try:
        schema = json.loads(json.dumps(tool.schema, allow_nan=False))
    except (TypeError, ValueError) as error:
        check.fail(clause, f"it cannot be written as JSON: {error}", error)
    properties, required = schema.get("properties"), schema.get("required", [])
    check(schema.get("type") == "object", clause, f"got type {schema.get('type')!r}")
    check(isinstance(properties, dict), clause, f"got properties {properties!r}")
    types = {"string", "number", "integer", "boolean", "array", "object", "null"}
    for name, each in properties.items():
        known = isinstance(each, dict) and (each.get("type") in types or {"enum", "anyOf"} & each.keys())
        check(known, clause, f"property {name!r} has no type: {each!r}")
    strangers = [name for name in required if name not in properties]
    check(not strangers, clause, f"required but not among the properties: {strangers}")
    for arguments in good:
        with check.raises_nothing("a good call gives parts", f"{dict(arguments)!r}"):
            parts, again = (tool(arguments, prompt) for _ in range(2))
        sound = parts and all(isinstance(part, TextPart | VisualPart) for part in parts)
        check(sound, "a good call gives parts", f"got {parts!r} for {dict(arguments)!r}")
        check(parts == again, "equal calls give equal parts", f"{parts}, then {again}")
        for part in parts:
            if isinstance(part, VisualPart):
                require_inside(check, part.crop, prompt.case)
    clause = "a bad call raises a ValueError with a message"
    incomplete = [
        {name: value for name, value in arguments.items() if name != missing}
        for arguments, missing in itertools.product(good, required)
    ]
    for arguments in (*bad, *incomplete):
        check.refuses(clause, f"{arguments!r}", partial(tool, arguments, prompt))
    numbers = [-(10**9), 10**30, 0.5, math.nan, math.inf]
    odd: list[Any] = [None, "?", "", [], {}, [None], *numbers, True, [math.nan] * 4]
    spoilt = [{**arguments, name: value} for arguments in good for name in arguments for value in odd]
    for arguments in (*spoilt, *({**arguments, "no-such-argument": 1} for arguments in good)):
        check.refuses(clause, f"{arguments!r}", partial(tool, arguments, prompt), always=False)
