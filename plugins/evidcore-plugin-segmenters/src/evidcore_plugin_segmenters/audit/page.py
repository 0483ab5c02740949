"""The page of a segmenter audit: one file, no network, numbers alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.charts import Frame, Lane, lanes
from evidcore_plugin_pages.jinja import page, part
from evidcore_plugin_pages.markup import Html, Unit, written

_FRAME = Frame(width=360, height=190, left=46, right=348, top=10, bottom=150)
_SPREAD = 5  # px between the intervals of one distance
_MOST_LINES = 6
_COLUMNS: Sequence[tuple[str, str, Unit]] = (
    ("dice", "Dice", "rate"),
    ("dice_spread", "Dice, best minus worst of four ways", "rate"),
    ("iou", "IoU", "rate"),
    ("slice_to_slice_dice", "slice-to-slice Dice", "rate"),
    ("area_leaps", "area leaps", "rate"),
    ("splits", "splits", "rate"),
    ("leaves_body", "leaves the body", "rate"),
)
_BY_DISTANCE: Sequence[tuple[str, str, Unit, float | None]] = (
    ("dice", "Dice by distance from the prompt", "rate", 1.0),
    ("surface_mm", "Distance between the outlines, mm", "plain", None),
)

Found = Mapping[str, Any]
Point = tuple[float, float | None, float | None]  # value, low, high


def audit_page(found: Found) -> str:
    """Return the page of an audit, as `evid audit segmenter --json` gives it."""
    names = ", ".join(item["name"] for item in found["segmenters"])
    datasets = [_dataset(name, item, found) for name, item in found["datasets"].items()]
    columns = [head for _, head, _ in _COLUMNS]
    return page(
        "evidcore_plugin_segmenters", "segmenter_audit.html", title=names,
        kicker="evidcore segmenter audit", columns=columns, datasets=datasets,
    )  # fmt: skip


def _dataset(name: str, item: Found, found: Found) -> dict[str, Any]:
    """Return what the page shows of one data set."""
    rows = item["rows"]
    whose = "patients" if item["patients_known"] else "cases (patients not known)"
    passed_over = f"{item['without_masks']} cases without masks, {item['empty_masks']} empty masks"
    prompts = list(dict.fromkeys(row["prompt"] for row in rows if row["distance_slices"]))
    differences = [_lane(row, ": ", "own") for row in rows if row["metric"] == "dice_difference"]
    paired = "Paired over the same objects, in points."
    drawn = [
        _lane(row, ", ", "own" if row["prompt"].startswith("oracle") else "other")
        for row in rows
        if row["metric"] == "dice" and not row["distance_slices"]
    ]
    caption = (
        "Dice of the whole mask, mean over objects. Oracle prompts are a segmenter's ceiling; a reward that "
        "pays for the mask has a slope where boxes that are off earn less."
    )
    return {
        "name": name,
        "facts": [
            ("Split", item["split"]),
            ("Objects", f"{item['objects']} of {item['patients']} {whose}"),
            ("Passed over", passed_over),
        ],
        "is_phantom": item["is_phantom"],
        "rows": _cells(rows),
        "lanes": lanes(drawn, start=0.0, stop=1.0, unit="rate", caption=caption),
        "by_distance": [
            (
                title,
                [
                    by_distance(prompt, _lines(rows, metric, prompt, found), found["distances"], unit, top)
                    for prompt in prompts
                ],
            )
            for metric, title, unit, top in _BY_DISTANCE
        ],
        "differences": lanes(differences, start=-1.0, stop=1.0, unit="points", caption=paired)
        if differences
        else None,
        "notes": sorted({row["note"] for row in rows if row["note"]}),
    }


def _cells(rows: Sequence[Found]) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    """Return for each segmenter and prompt its figures: value, interval, unit."""
    whole = {
        (row["segmenter"], row["prompt"], row["metric"]): row
        for row in reversed(rows)
        if row["distance_slices"] is None
    }
    pairs = dict.fromkeys(
        (row["segmenter"], row["prompt"]) for row in rows if row["metric"] != "dice_difference"
    )
    nothing = {"value": None, "low": None, "high": None}
    table = []
    for pair in pairs:
        result = [(whole.get((*pair, metric), nothing), unit) for metric, _, unit in _COLUMNS]
        table.append((*pair, [(row["value"], row["low"], row["high"], unit) for row, unit in result]))
    return table


def _lane(row: Found, between: str, tone: str) -> Lane:
    label = f"{row['segmenter']}{between}{row['prompt']}"
    return Lane(label=label, value=row["value"], low=row["low"], high=row["high"], tone=tone)


def _lines(
    rows: Sequence[Found], metric: str, prompt: str, found: Found
) -> dict[str, Sequence[Point | None]]:
    points = {
        (row["segmenter"], row["distance_slices"]): (row["value"], row["low"], row["high"])
        for row in rows
        if (row["prompt"], row["metric"]) == (prompt, metric)
    }
    names = [item["name"] for item in found["segmenters"][:_MOST_LINES]]
    return {name: [points.get((name, distance)) for distance in found["distances"]] for name in names}


def by_distance(
    title: str,
    lines: Mapping[str, Sequence[Point | None]],
    distances: Sequence[str],
    unit: Unit,
    top: float | None,
) -> Html:
    """Draw at most six lines over each other as inline SVG, near to far, with distances at equal steps.

    A line has a point for each distance, None where nothing was measured. The value axis ends at `top`, or at
    the highest value.
    """
    points = [point for line in lines.values() for point in line if point is not None]
    drawn = [value for point in points for value in (point[0], point[2]) if value is not None]
    ceiling = top if top is not None else 1.05 * max([*drawn, 1e-6])
    centres = [
        _FRAME.left + (_FRAME.right - _FRAME.left) * (place + 0.5) / len(distances)
        for place in range(len(distances))
    ]

    def y_at(value: float) -> float:
        return _FRAME.bottom - (_FRAME.bottom - _FRAME.top) * min(max(value / ceiling, 0.0), 1.0)

    rows, spoken = [], []
    for number, (label, line) in enumerate(lines.items()):
        aside = _SPREAD * (number - (len(lines) - 1) / 2)
        known = [(place, point) for place, point in enumerate(line) if point is not None]
        said = [f"{written(value, unit)} at {distances[place]}" for place, (value, _, _) in known]
        dots = [
            {"x": centres[place] + aside, "y": y_at(value), "said": text,
             "ends": None if low is None or high is None else (y_at(low), y_at(high))}
            for (place, (value, low, high)), text in zip(known, said, strict=True)
        ]  # fmt: skip
        rows.append({"label": label, "dots": dots})
        spoken += [f"{label} from {said[0]} to {said[-1]}"] if said else []
    ticks = [
        (y_at(value), f"{100 * value:.0f} %" if unit == "rate" else f"{value:.3g}")
        for value in (ceiling * quarter / 4 for quarter in range(5))
    ]
    places = [*zip(centres, distances, strict=True)]
    caption, label = "mean over objects, bars are intervals by patient", f"{title}: {'; '.join(spoken)}"
    given = (title, caption, label, _FRAME, ticks, places, "slices from the prompt", rows)
    return part("falls", *given, template="charts.html")
