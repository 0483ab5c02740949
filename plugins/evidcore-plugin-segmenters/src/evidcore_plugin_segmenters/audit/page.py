"""The page of a segmenter audit: one file, no network, numbers alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.charts import Lane, lanes
from evidcore_plugin_pages.jinja import page
from evidcore_plugin_pages.markup import Html, Unit

from evidcore_plugin_segmenters.audit.by_distance import Fall, by_distance

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
    differences = [row for row in rows if row["metric"] == "dice_difference"]
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
                    by_distance(
                        prompt,
                        _falls(rows, metric, prompt, found),
                        found["distances"],
                        axis="slices from the prompt",
                        unit=unit,
                        caption="mean over objects, bars are intervals by patient",
                        top=top,
                    )
                    for prompt in prompts
                ],
            )
            for metric, title, unit, top in _BY_DISTANCE
        ],
        "differences": _differences(differences) if differences else None,
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


def _falls(rows: Sequence[Found], metric: str, prompt: str, found: Found) -> list[Fall]:
    points = {
        (row["segmenter"], row["distance_slices"]): (row["value"], row["low"], row["high"])
        for row in rows
        if (row["prompt"], row["metric"]) == (prompt, metric)
    }
    names = [item["name"] for item in found["segmenters"][:_MOST_LINES]]
    return [
        Fall(label=name, points=[points.get((name, distance)) for distance in found["distances"]])
        for name in names
    ]


def _differences(rows: Sequence[Found]) -> Html:
    drawn = [_lane(row, ": ", "own") for row in rows]
    caption = "Paired over the same objects, in points."
    return lanes(drawn, start=-1.0, stop=1.0, unit="points", caption=caption)
