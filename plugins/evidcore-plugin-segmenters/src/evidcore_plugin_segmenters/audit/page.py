"""The page of a segmenter audit: one file, no network, numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.charts import Lane, lanes
from evidcore_plugin_pages.document import NOTICE, shell
from evidcore_plugin_pages.markup import Html, Unit, interval, join, number, tag
from evidcore_plugin_pages.tables import facts

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


def page(found: Found) -> str:
    """Return the page of an audit, as `evid audit segmenter --json` gives it."""
    names = ", ".join(item["name"] for item in found["segmenters"])
    audits = found["datasets"]
    body = [
        tag(
            "header",
            tag("p", "evidcore segmenter audit", class_="kicker"),
            tag("h1", names),
            class_="top",
        ),
        tag("main", *(_dataset(name, item, found) for name, item in audits.items())),
        tag("footer", tag("p", NOTICE), tag("p", "Written by evidcore. Opens without a network.")),
        tag("div", id="tip", role="status", hidden=True),
    ]
    return shell(f"{names} · evidcore", join(body))


def _dataset(name: str, item: Found, found: Found) -> Html:
    rows = item["rows"]
    whose = "patients" if item["patients_known"] else "cases (patients not known)"
    parts: list[Html] = [
        tag("h2", name),
        facts([
            ("Split", item["split"]),
            ("Objects", f"{item['objects']} of {item['patients']} {whose}"),
            (
                "Passed over",
                f"{item['without_masks']} cases without masks, {item['empty_masks']} empty masks",
            ),
        ]),
    ]
    if item["is_phantom"]:
        parts.append(tag("p", tag("b", "Phantom data. "), "These are no patients.", class_="banner"))
    parts += [tag("h3", "What a segmenter makes of a prompt"), _table(rows)]
    parts += [tag("h3", "Dice from each prompt"), _lanes(rows)]
    prompts = list(dict.fromkeys(row["prompt"] for row in rows if row["distance_slices"]))
    for metric, title, unit, top in _BY_DISTANCE:
        drawn = [
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
        ]
        parts += [tag("h3", title), tag("div", *drawn, class_="curves")]
    differences = [row for row in rows if row["metric"] == "dice_difference"]
    if differences:
        parts += [tag("h3", "Differences of Dice"), _differences(differences)]
    notes = sorted({row["note"] for row in rows if row["note"]})
    parts += [tag("p", f"{note[0].upper()}{note[1:]}.", class_="faint small") for note in notes]
    return tag("section", *parts)


def _table(rows: Sequence[Found]) -> Html:
    pairs = dict.fromkeys(
        (row["segmenter"], row["prompt"]) for row in rows if row["metric"] != "dice_difference"
    )
    heads = [
        *(tag("th", head, scope="col") for head in ("Segmenter", "Prompt")),
        *(tag("th", head, scope="col", class_="num") for _, head, _ in _COLUMNS),
    ]
    body = []
    for segmenter, prompt in pairs:
        cells = []
        for metric, _, unit in _COLUMNS:
            row = _one(rows, segmenter, prompt, metric)
            shown = number(None if row is None else row["value"], unit)
            spread = None
            if row is not None and row["low"] is not None:
                spread = tag("span", " (", interval(row["low"], row["high"], unit), ")", class_="faint")
            cells.append(tag("td", shown, spread, class_="num"))
        body.append(tag("tr", tag("th", segmenter, scope="row"), tag("td", prompt), *cells))
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Segmenters")


def _lanes(rows: Sequence[Found]) -> Html:
    drawn = [
        Lane(
            label=f"{row['segmenter']}, {row['prompt']}",
            value=row["value"],
            low=row["low"],
            high=row["high"],
            tone="own" if row["prompt"].startswith("oracle") else "other",
        )
        for row in rows
        if row["metric"] == "dice" and not row["distance_slices"]
    ]
    caption = (
        "Dice of the whole mask, mean over objects. Oracle prompts are a segmenter's ceiling; a reward that "
        "pays for the mask has a slope where boxes that are off earn less."
    )
    return lanes(drawn, start=0.0, stop=1.0, unit="rate", caption=caption)


def _falls(rows: Sequence[Found], metric: str, prompt: str, found: Found) -> list[Fall]:
    falls = []
    for item in found["segmenters"][:_MOST_LINES]:
        own = {
            row["distance_slices"]: row
            for row in rows
            if (row["segmenter"], row["prompt"], row["metric"]) == (item["name"], prompt, metric)
            and row["distance_slices"]
        }
        columns = {
            key: [own[name][key] if name in own else None for name in found["distances"]]
            for key in ("value", "low", "high")
        }
        falls.append(
            Fall(label=item["name"], values=columns["value"], lows=columns["low"], highs=columns["high"])
        )
    return falls


def _differences(rows: Sequence[Found]) -> Html:
    drawn = [
        Lane(
            label=f"{row['segmenter']}: {row['prompt']}", value=row["value"], low=row["low"], high=row["high"]
        )
        for row in rows
    ]
    return lanes(
        drawn, start=-1.0, stop=1.0, unit="points", caption="Paired over the same objects, in points."
    )


def _one(rows: Sequence[Found], segmenter: str, prompt: str, metric: str) -> Found | None:
    return next(
        (
            row
            for row in rows
            if (row["segmenter"], row["prompt"], row["metric"], row["distance_slices"])
            == (segmenter, prompt, metric, None)
        ),
        None,
    )
