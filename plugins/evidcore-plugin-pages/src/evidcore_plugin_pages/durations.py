"""Where a stage's time went: its parts over the steps, and their sums."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from evidcore.runs.read import Line
from evidcore_plugin_pages.markup import Html, number, tag, written

_TIME = re.compile(r"(?P<part>.+)_s|reward_s/(?P<reward>.+)")
_REST = "update and the rest of the step"  # of a log that names fewer parts
_LEAST_S = 1e-6  # a rest below this is rounding
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 130, 46, 8, 20
_MOST_COLUMNS = 60
_GREY = 5  # the colour of all parts but the five largest


def is_time(name: str) -> bool:
    """Tell whether a column of metrics.jsonl holds seconds."""
    return _TIME.fullmatch(name) is not None


def time_parts(lines: Sequence[Line]) -> list[tuple[str, float]]:
    """Return the seconds of each part of a stage's steps, the largest first.

    What a step took beyond the parts that it names is its own part.
    """
    sums: dict[str, float] = {}
    for line in lines:
        for part, seconds in _parts(line).items():
            sums[part] = sums.get(part, 0.0) + seconds
    return sorted(sums.items(), key=lambda item: -item[1])


def stage_time(lines: Sequence[Line]) -> Html | None:
    """Return the figure of one stage, None where it logged no time."""
    rows = time_parts(lines)
    total = sum(seconds for _, seconds in rows)
    if total <= 0:
        return None
    tones = {label: f"s{min(index, _GREY)}" for index, (label, _) in enumerate(rows)}
    keys = [
        tag(
            "li",
            tag("span", label, class_=f"key {tones[label]}"),
            tag("span", number(seconds, "seconds"), class_="num"),
            tag("span", f"{100 * seconds / total:.0f} %", class_="num faint"),
        )
        for label, seconds in rows
    ]
    return tag(
        "figure",
        _columns(lines, tones) if len(lines) > 1 else None,
        tag("ul", *keys, class_="shares"),
        tag("figcaption", f"Seconds a logged step, by part; the sums are over {len(lines)} logged steps."),
        class_="chart",
    )


def _columns(lines: Sequence[Line], tones: Mapping[str, str]) -> Html:
    """Draw a stacked column for each step, or the mean of some steps where there are many."""
    together = math.ceil(len(lines) / _MOST_COLUMNS)
    groups = [lines[start : start + together] for start in range(0, len(lines), together)]
    means = [{part: seconds / len(group) for part, seconds in time_parts(group)} for group in groups]
    highest = max(sum(parts.values()) for parts in means)
    room = _HEIGHT - _TOP - _BOTTOM
    pace = (_WIDTH - _LEFT) / len(means)
    marks: list[Html] = []
    for index, parts in enumerate(means):
        y = float(_HEIGHT - _BOTTOM)
        for label, tone in tones.items():
            height = room * parts.get(label, 0.0) / highest
            y -= height
            if height >= 0.05:
                marks.append(
                    tag(
                        "rect", x=f"{_LEFT + index * pace:.1f}", y=f"{y:.1f}", width=f"{0.88 * pace:.1f}",
                        height=f"{height:.1f}", class_=tone,
                    )
                )  # fmt: skip
    marks.append(tag("text", written(highest, "seconds"), x=_LEFT - 6, y=_TOP + 8, class_="y"))
    for step, x, anchor in (
        (f"step {lines[0]['step']}", _LEFT, "start"),
        (str(lines[-1]["step"]), _WIDTH, "end"),
    ):
        marks.append(tag("text", step, x=x, y=_HEIGHT - 5, text_anchor=anchor))
    said = f"Seconds a step, at most {written(highest, 'seconds')}"
    return tag("svg", *marks, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=said, class_="parts")


def _parts(line: Line) -> dict[str, float]:
    """Return the seconds of the parts of one line."""
    result: dict[str, float] = {}
    for name, value in line.items():
        match = _TIME.fullmatch(name)
        if match and name not in ("time_s", "step_s") and is_number(value):
            label = f"reward {match['reward']}" if match["reward"] else match["part"].replace("_", " ")
            result[label] = float(value)
    if is_number(line.get("step_s")):
        rest = float(line["step_s"]) - sum(result.values())
        if rest > _LEAST_S:
            result[_REST] = rest
    return result


def is_number(value: object) -> bool:
    """Tell whether a logged value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
