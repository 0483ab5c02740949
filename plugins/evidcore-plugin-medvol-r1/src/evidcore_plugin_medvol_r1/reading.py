"""Read `<think>…</think><answer>{"slice": …, "bbox_2d_list": […]}</answer>`, strictly and as far as it goes.

*Strict*: the whole text is one think pair that is not empty (where thinking is asked for) and one answer pair
around one JSON object, or an array that holds one, with these two keys alone; the slice is one that was
shown, the boxes are whole numbers in 0..1000 with x0 < x1 and y0 < y1, and none is written twice. Where the
form is `array`, as in paper and release, a bare object is refused. *Tolerant*, as the released code: the
first object of the first JSON that can be found in the answer, also inside `{"entities": […]}`, numbers with
a fraction, a slice written as text, one box under `bbox_2d`; boxes that are none are left out, and a box that
is written twice is two boxes.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from evidcore.text.tags import inside, shortened, tag_fault

SLICE, BOXES, ONE_BOX = "slice", "bbox_2d_list", "bbox_2d"
FULL = 1000  # the far edge of what is shown
ShownBox = tuple[float, float, float, float]  # x0, y0, x1, y1 in 0..FULL
Form = Literal["object", "array"]
_TRIES = 64  # places in a text where JSON may begin


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What stands in an answer. `parts` are the four shares of the format reward, each 0..1."""

    fault: str | None  # why the strict format does not hold
    think: str | None
    slice: int | None  # None: no slice that was shown is named
    boxes: tuple[ShownBox, ...]  # those that are boxes
    parts: Mapping[str, float]


def read(text: str, shown: Sequence[int], *, think: bool, form: Form = "object") -> Reading:
    """Read a completion to which slices of the source indices `shown` were shown; no text raises."""
    tags = tag_fault(text, think=think)
    thought = inside(text, "think")
    # tolerant: the last answer, closed or not, else all after think
    _, opened, answer = text.rpartition("<answer>")
    last = answer.partition("</answer>")[0] if opened else text.rpartition("</think>")[2]
    item = next((item for value in _jsons(last) if (item := _item(value)) is not None), None)
    given = [] if item is None else _boxes_of(item)
    boxes = [box for box in given if box_fault(box) is None]
    parts = {
        "tags": float(tags is None),
        "think": float(bool(thought)),
        "json": float(item is not None),
        "boxes": len(boxes) / len(given) if given else 0.0,
    }
    if not think:
        del parts["think"]
    named = None if item is None else _index(item.get(SLICE))
    return Reading(
        fault=tags or object_fault(inside(text, "answer") or "", shown, form),
        think=thought,
        slice=named if named in shown else None,
        boxes=tuple(cast(ShownBox, tuple(float(edge) for edge in box)) for box in boxes),
        parts=parts,
    )


def object_fault(answer: str, shown: Sequence[int], form: Form) -> str | None:
    """Return why the text of an answer is not the one object that was asked for, None where it is."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError) as cause:
        reason = cause.msg if isinstance(cause, json.JSONDecodeError) else type(cause).__name__
        return f"the answer is no JSON ({reason}): {_short(answer)}"
    if isinstance(value, list):
        if len(value) != 1:
            return f"the answer holds {len(value)} objects, expected one"
        (value,) = value
    elif form == "array":
        return f"the answer is {_short(value)}, expected an array with one object: [{{{SLICE!r}: …}}]"
    if not isinstance(value, dict):
        return f"the answer is {_short(value)}, expected an object with {SLICE!r} and {BOXES!r}"
    if missing := next((key for key in (SLICE, BOXES) if key not in value), None):
        return f"the object has no {missing!r}"
    if other := next((key for key in value if key not in (SLICE, BOXES)), None):
        return f"the object has another key, {_short(other)}"
    named, boxes = value[SLICE], value[BOXES]
    if isinstance(named, bool) or not isinstance(named, int):
        return f"the slice is {_short(named)}, expected a whole number"
    if named not in shown:
        return f"slice {_short(named)} was not shown; shown are {_listed(shown)}"
    if not isinstance(boxes, list) or not boxes:
        return f"{BOXES!r} is {_short(boxes)}, expected a list of boxes"
    for place, box in enumerate(boxes):
        if fault := box_fault(box):
            return fault
        if not all(isinstance(edge, int) for edge in box):
            return f"the box {_short(box)} must be of whole numbers"
        if box in boxes[:place]:
            return f"the box {_short(box)} is written twice"
    return None


def box_fault(box: Any) -> str | None:
    """Return why something is no box x0, y0, x1, y1 in 0..1000, None where it is one."""
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(edge) for edge in box):
        return f"the box {_short(box)} must be four numbers x0, y0, x1, y1"
    x0, y0, x1, y1 = box
    if not (0 <= x0 < x1 <= FULL and 0 <= y0 < y1 <= FULL):
        return f"the box {_short(box)} must have 0 <= x0 < x1 <= {FULL} and 0 <= y0 < y1 <= {FULL}"
    return None


def _jsons(text: str) -> Iterator[Any]:
    """Yield every array and object that stands in a text, from left to right, none inside another."""
    decoder, end = json.JSONDecoder(), 0
    for start in [result.start() for result in re.finditer(r"[\[{]", text)][:_TRIES]:
        if start < end:
            continue
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        yield value


def _item(value: Any) -> dict[str, Any] | None:
    if isinstance(value, dict) and isinstance(value.get("entities"), list):
        value = value["entities"]
    if isinstance(value, list):
        value = value[0] if value else None
    return value if isinstance(value, dict) else None


def _boxes_of(item: Mapping[str, Any]) -> list[Any]:
    given = item.get(BOXES, item.get(ONE_BOX))
    if not isinstance(given, list):
        return []
    return [given] if len(given) == 4 and all(_is_number(edge) for edge in given) else given


def _index(value: Any) -> int | None:
    """Return the whole number that a slice is named by: 12, 12.0, "12" or "slice 12"."""
    if _is_number(value) and float(value).is_integer():
        return int(value)
    result = re.findall(r"\d{1,6}", value) if isinstance(value, str) else []
    return int(result[0]) if len(result) == 1 else None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= 1e9 and math.isfinite(value)  # a longer whole number is no float


def _listed(shown: Sequence[int], most: int = 12) -> str:
    names = [str(z) for z in shown]
    return ", ".join(names if len(names) <= most else [*names[: most - 1], "…", names[-1]])


def _short(value: Any) -> str:
    return shortened(repr(value) if isinstance(value, str) else json.dumps(value))
