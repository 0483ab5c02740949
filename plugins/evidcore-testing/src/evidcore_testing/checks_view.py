"""The check of views, and of crops wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from evidcore.api import Case, Crop, EncoderInput, TextPart, View, VisualPart, prepare
from evidcore.data import read_geometry
from evidcore_testing.clauses import broken, refusal, require


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
    parts = view.render(case)
    require(parts == view.render(case), view, "a case is shown twice the same", f"not so for {case.id!r}")
    shown = [(place, part) for place, part in enumerate(parts) if isinstance(part, VisualPart)]
    require(bool(shown), view, "a case is shown by at least one visual part", f"got {parts!r}")
    for place, part in shown:
        require_inside(view, part.crop, case)
        if view.tags_slices:
            before = parts[place - 1] if place else None
            tag = before.text if isinstance(before, TextPart) else ""
            index = part.crop.box_zyx[0] if part.crop.box_zyx else None
            numbers = [word.strip(".,:;()[]") for word in tag.split()]
            clause, found = "the text before each slice names its index", f"slice {index} comes after {tag!r}"
            require(str(index) in numbers, view, clause, found)
        clause = "an encoder is given the size that is announced"
        size = view.size_zyx(part, encoder)
        require(size == view.size_zyx(part, encoder), view, clause, f"{size} at first, then another")
        positive = len(size) == 3 and all(isinstance(count, int) and count > 0 for count in size)
        require(positive, view, clause, f"got {size!r}")
        step = encoder.multiple_px
        sides_fit = size[1:] == encoder.size_zyx[1:] or (step and not any(side % step for side in size[1:]))
        fits = sides_fit and (encoder.any_depth or size[0] == encoder.size_zyx[0])
        require(bool(fits), view, clause, f"got {size}, the encoder takes {encoder.size_zyx}")
        given, due = tuple(prepare(part.crop, encoder, size).shape), (encoder.channels, *size)
        require(given == due, view, clause, f"got {given}, announced {due}")
        _boxes_come_back(view, part, boxes, outside)


def _boxes_come_back(
    view: View,
    part: VisualPart,
    boxes: Mapping[tuple[float, ...], tuple[float, float, float, float]],
    outside: Sequence[tuple[float, ...]],
) -> None:
    shape = read_geometry(part.crop.volume).shape_zyx
    z0, z1, y0, y1, x0, x1 = part.crop.box_zyx or (0, shape[0], 0, shape[1], 0, shape[2])
    clause = "boxes come back as voxels of what was shown"
    placed = 0
    for given, (top, bottom, right, left) in boxes.items():
        box = view.to_source(part, given)
        if box is None:
            continue
        placed += 1
        inside = z0 <= box.z < z1 and y0 <= box.y0 < box.y1 <= y1 and x0 <= box.x0 < box.x1 <= x1
        require(inside, view, clause, f"{given} gave {box}, shown is {(z0, z1, y0, y1, x0, x1)}")
        meant = [y0 + (y1 - y0) * top, y0 + (y1 - y0) * bottom, x0 + (x1 - x0) * right, x0 + (x1 - x0) * left]
        off = max(abs(one - two) for one, two in zip((box.y0, box.y1, box.x0, box.x1), meant, strict=True))
        require(off <= 1.0, view, clause, f"{given} gave {box}, off by {off:.1f} voxels")
        shown = view.from_source(part, box)
        if shown is not None:
            again = view.to_source(part, shown)
            require(again == box, view, "voxels come back as boxes", f"{box} became {shown}, then {again}")
    if placed == 0 and z1 - z0 == 1:
        broken(view, clause, f"no box has a place on slice {z0}")
    for given in outside if placed else ():
        refusal(view, "a box outside raises a ValueError", f"{given}", partial(view.to_source, part, given))


def require_inside(component: object, crop: Crop, case: Case) -> None:
    """Fail unless `crop` shows voxels of one of the case's volumes."""
    clause = "what is shown lies inside the case's own volumes"
    require(crop.volume in case.volumes, component, clause, f"got {crop.uri()!r} for case {case.id!r}")
    shape = read_geometry(crop.volume).shape_zyx
    edges = crop.box_zyx or (0, shape[0], 0, shape[1], 0, shape[2])
    inside = all(0 <= edges[2 * n] < edges[2 * n + 1] <= shape[n] for n in range(3))
    require(inside, component, clause, f"got {edges} in a volume of {shape} voxels")
    same = Crop.parse_uri(crop.uri()) == crop
    require(same, component, "a crop survives the way through its uri", f"not so for {crop.uri()!r}")
