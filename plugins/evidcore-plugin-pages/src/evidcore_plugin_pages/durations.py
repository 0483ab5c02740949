"""Where a stage's time went: its parts over the steps, and their sums."""

import collections
import math
import re
from collections.abc import Sequence

from evidcore_plugin_pages.charts import Frame
from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import Html, written
from evidcore_plugin_pages.record import Line

_TIME = re.compile(r"(?P<part>.+)_s|reward_s/(?P<reward>.+)")
_REST = "update and the rest of the step"  # of a log that names fewer parts
_LEAST_S = 1e-6  # a rest below this is rounding
_FRAME = Frame(width=720, height=130, left=46, right=720, top=8, bottom=110)
_MOST_COLUMNS = 60
_GREY = 5  # the colour of all parts but the five largest


def is_time(name: str) -> bool:
    """Tell whether a column of metrics.jsonl holds seconds."""
    return _TIME.fullmatch(name) is not None


def is_number(value: object) -> bool:
    """Tell whether a logged value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def time_parts(lines: Sequence[Line]) -> list[tuple[str, float]]:
    """Return the seconds of each part of a stage's steps, the largest first.

    What a step took beyond the parts that it names is its own part.
    """
    sums: dict[str, float] = collections.defaultdict(float)
    for line in lines:
        parts: dict[str, float] = {}
        for name, value in line.items():
            match = _TIME.fullmatch(name)
            if match and name not in ("time_s", "step_s") and is_number(value):
                label = f"reward {match['reward']}" if match["reward"] else match["part"].replace("_", " ")
                parts[label] = float(value)
        rest = float(line["step_s"]) - sum(parts.values()) if is_number(line.get("step_s")) else 0.0
        for label, seconds in (parts | ({_REST: rest} if rest > _LEAST_S else {})).items():
            sums[label] += seconds
    return sorted(sums.items(), key=lambda item: -item[1])


def stage_time(lines: Sequence[Line]) -> Html | None:
    """Return the figure of one stage, None where it logged no time.

    It has a stacked column for each step, or for the mean of some steps where there are many.
    """
    parts = time_parts(lines)
    total = sum(seconds for _, seconds in parts)
    if total <= 0:
        return None
    tones = {label: f"s{min(index, _GREY)}" for index, (label, _) in enumerate(parts)}
    together = math.ceil(len(lines) / _MOST_COLUMNS)
    groups = [lines[start : start + together] for start in range(0, len(lines), together)]
    means = [{label: seconds / len(group) for label, seconds in time_parts(group)} for group in groups]
    highest = max(sum(column.values()) for column in means)
    pace, bars = (_FRAME.right - _FRAME.left) / len(means), []
    for index, column in enumerate(means):
        y = float(_FRAME.bottom)
        for label, tone in tones.items():
            height = (_FRAME.bottom - _FRAME.top) * column.get(label, 0.0) / highest
            y -= height
            if height >= 0.05:
                bars.append((_FRAME.left + index * pace, y, 0.88 * pace, height, tone))
    first, last = lines[0].get("step"), lines[-1].get("step")
    rows = [(label, tones[label], seconds) for label, seconds in parts]
    columns = bars if len(lines) > 1 else []
    return part(
        "time", _FRAME, columns, written(highest, "seconds"), first, last, rows, total, len(lines),
        template="charts.html",
    )  # fmt: skip
