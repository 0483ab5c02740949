"""The page of a profile: one file, no network, numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidcore_plugin_pages.charts import Lane, lanes
from evidcore_plugin_pages.jinja import page as from_template
from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import Html, join, tag

from evidcore_plugin_doctor.profile import Profile

_LINES = ("uniform_chance", "prior_only", "perfect_perception")
_SHOWN = ("5 %", "50 %", "95 %")
_WIDTH, _HEIGHT = 360, 190  # of a drawing
_LEFT, _RIGHT, _TOP, _BOTTOM = 30, 12, 10, 26


def page(profiles: Sequence[Profile]) -> str:
    """Return the page of some data sets' profiles."""
    return from_template(
        "evidcore_plugin_doctor", "profile.html", title=", ".join(str(one["dataset"]) for one in profiles),
        kicker="evidcore data profile", datasets=[_dataset(one) for one in profiles],
    )  # fmt: skip


def _dataset(found: Profile) -> dict[str, Any]:
    """Return what the page shows of a data set: parts with title, class of its figures, figures and notes."""
    patients = {split: item["patients"] for split, item in found["splits"].items()}
    known = {split: "patients not known" if n is None else f"{n} patients" for split, n in patients.items()}
    splits = list(dict.fromkeys(str(row["split"]) for row in found["findings"]))
    notes = sorted({row["note"] for row in found["reference_lines"] if row["note"]})
    parts = [
        ("What can be scored without looking", "", _lines(found["reference_lines"]),
         [f"{note[0].upper()}{note[1:]}." for note in notes]),
        ("How often findings are present", "pair",
         [_prevalence(found["findings"], split) for split in splits], []),
        ("Where normal and abnormal sentences stand", "curves", _positions(found["positions"]), []),
        ("Length of reports", "", _lengths(found["reports"]), []),
        ("Voxels", "", _volumes(found["volumes"]), [
            f"{split}: {one['unreadable']} of {one['volumes']} headers cannot be read."
            for split, one in found["volumes"].items() if one["unreadable"]
        ]),
    ]  # fmt: skip
    return {
        "name": found["dataset"],
        "counts": [
            (split, f"{one['cases']} cases, {known[split]}") for split, one in found["splits"].items()
        ],
        "unlisted": found["unlisted"],
        "parts": [part for part in parts if part[2]],
    }


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[Html]:
    drawn = [
        Lane(
            label=f"{row['asked']}, {row['split']}: {row['prior_rule']}",
            value=row["prior_only"]["value"],
            low=row["prior_only"]["low"],
            high=row["prior_only"]["high"],
            tone="other",
            lines={name: row[name]["value"] for name in _LINES if row[name]["value"] is not None},
        )
        for row in rows
    ]
    keys = [
        tag("span", "uniform chance", class_="line-key"),
        tag("span", "best blind rule", class_="line-key prior-only"),
        tag("span", "perfect perception", class_="line-key perfect-perception"),
    ]
    caption = join(["The dot is the best blind rule, with its interval by patient. ", *keys])
    return [lanes(drawn, start=0.0, stop=1.0, unit="rate", caption=caption)] if drawn else []


def _prevalence(rows: Sequence[Mapping[str, Any]], split: str) -> Html:
    drawn = [
        Lane(label=row["finding"], value=row["prevalence"], low=row["low"], high=row["high"])
        for row in rows
        if row["split"] == split
    ]
    caption = f"Share of the {split} cases that know of the finding, with its interval by patient."
    return tag("div", lanes(drawn, start=0.0, stop=1.0, unit="rate", caption=caption))


def _positions(by_split: Mapping[str, Any]) -> list[Html]:
    drawn = []
    for split, found in by_split.items():
        rows = {
            f"{label} ({found[label]['sentences']} sentences)": found[label]["density"]
            for label in ("normal", "abnormal")
            if found[label]["density"]
        }
        caption = f"{found['unlabelled']} sentences without a label"
        drawn.append(densities(split, rows, start="start of the report", stop="end", caption=caption))
    return drawn


def _lengths(by_split: Mapping[str, Any]) -> list[Html]:
    rows = [
        (split, what, found[what]) for split, found in by_split.items() for what in ("words", "sentences")
    ]
    return [quantile_table(rows)] if rows else []


def _volumes(by_split: Mapping[str, Any]) -> list[Html]:
    units = {"spacing_mm": "spacing, mm", "voxels": "voxels", "extent_mm": "extent, mm"}
    rows = [
        (split, f"{said}, {axis}", found[what][axis])
        for split, found in by_split.items()
        for what, said in units.items()
        for axis in "zyx"
    ]
    return [quantile_table(rows)] if rows else []


def densities(
    title: str, rows: Mapping[str, Sequence[float]], *, start: str, stop: str, caption: object
) -> Html:
    """Draw how densely things lie along a range, as inline SVG: a step for each bin.

    Args:
        title: what is drawn.
        rows: at most six outlines by label; the bins share the range in equal parts, 1 is an even spread.
        start: name of the range's left end.
        stop: name of its right end.
        caption: what is seen, in a sentence.
    """
    top = max([1.0, *(value for values in rows.values() for value in values)]) * 1.05

    def x_at(share: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share

    def y_at(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)

    marks: list[Html] = []
    for value in range(int(top) + 1):
        y = f"{y_at(value):.1f}"
        marks.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(tag("text", value, x=_LEFT - 6, y=f"{y_at(value) + 3.5:.1f}", class_="y"))
    marks.append(tag("text", start, x=_LEFT, y=_HEIGHT - 8, text_anchor="start"))
    marks.append(tag("text", stop, x=_WIDTH - _RIGHT, y=_HEIGHT - 8, text_anchor="end"))
    for index, values in enumerate(rows.values()):
        bins = len(values)
        corners = [
            f"{x_at(end / bins):.1f} {y_at(value):.1f}"
            for number, value in enumerate(values)
            for end in (number, number + 1)
        ]
        marks.append(tag("path", d="M" + "L".join(corners), class_=f"mean s{index}"))
    drawn = tag("svg", *marks, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=_spoken(title, rows))
    keys = tag(
        "span", *(tag("span", label, class_=f"key s{i}") for i, label in enumerate(rows)), class_="keys"
    )
    return tag(
        "figure",
        tag("figcaption", tag("b", title), tag("span", caption, class_="faint")),
        drawn,
        keys,
        class_="curve",
    )


def _spoken(title: str, rows: Mapping[str, Sequence[float]]) -> str:
    peaks = "; ".join(
        f"{label} densest in part {max(range(len(values)), key=values.__getitem__) + 1} of {len(values)}"
        for label, values in rows.items()
        if values
    )
    return f"{title}: {peaks}"


def quantile_table(rows: Sequence[tuple[str, str, Mapping[str, float] | None]]) -> Html:
    """Return a table of quantiles: for each row its split, what it is of, and the values by quantile."""
    shown = [
        (split, what, [None if found is None else found[key] for key in ("0 %", *_SHOWN, "100 %")])
        for split, what, found in rows
    ]
    return part("numbers", "Distributions", ("Split", "What"), ("lowest", *_SHOWN, "highest"), shown)
