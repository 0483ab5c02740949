"""Training curves and where the time went, from metrics.jsonl."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from evidcore.page import charts
from evidcore.page.markup import Html, join, tag
from evidcore.page.numbers import Unit
from evidcore.page.record import Line

_TIME = re.compile(r"time/(?P<part>.+?)(_s)?$")
_SKIPPED = {"stage", "step", "time_s", "epoch"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart and the figures that belong on it."""

    title: str
    figures: re.Pattern[str]
    unit: Unit = "plain"
    note: str = ""


PANELS = (
    Panel(title="Loss", figures=re.compile(r"(?:.*[/_])?loss")),
    Panel(title="Reward", figures=re.compile(r"rewards?/([^/]+)(?:/mean)?|reward"), note="mean over answers"),
    Panel(
        title="Well-formed answers",
        figures=re.compile(r"format_rate|rates?/(?:format|well[-_]formed)|well[-_]formed"),
        unit="rate",
    ),
    Panel(title="KL to the reference", figures=re.compile(r"kl"), note="nats a token"),
    Panel(
        title="Dead groups",
        figures=re.compile(r"frac_reward_zero_std|dead_groups|dead_group_share"),
        unit="rate",
        note="equal rewards, so nothing is learnt",
    ),
    Panel(title="Entropy", figures=re.compile(r"entropy"), note="nats a token"),
    Panel(title="Answer length", figures=re.compile(r"completions/mean_length|answer_tokens"), note="tokens"),
)


def stage_curves(lines: Sequence[Line]) -> Html:
    """Return the charts of one stage's lines, the well-known ones open and the rest folded."""
    names = [
        name
        for name in dict.fromkeys(key for line in lines for key in line)
        if name not in _SKIPPED
        and not _TIME.fullmatch(name)
        and any(_is_number(line.get(name)) for line in lines)
    ]
    shown, left = [], list(names)
    for panel in PANELS:
        mine = [name for name in left if panel.figures.fullmatch(name)][:6]
        if mine:
            left = [name for name in left if name not in mine]
            rows = [_curve(_label(panel, name), name, lines) for name in mine]
            shown.append(charts.curves(panel.title, rows, unit=panel.unit, note=panel.note))
    more = [charts.curves(name, [_curve(name, name, lines)]) for name in left]
    return join([
        tag("div", *shown, class_="curves") if shown else "",
        tag("details", tag("summary", f"{len(more)} more figures"), tag("div", *more, class_="curves"))
        if more
        else "",
    ])


def time_parts(lines: Sequence[Line]) -> list[tuple[str, float]]:
    """Return the seconds of each part of a stage's steps, the largest first."""
    sums: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            found = _TIME.fullmatch(name)
            if found and _is_number(value):
                part = found["part"].replace("/", " ").replace("_", " ")
                sums[part] = sums.get(part, 0.0) + float(value)
    return sorted(sums.items(), key=lambda item: -item[1])


def _label(panel: Panel, name: str) -> str:
    found = panel.figures.fullmatch(name)
    inner = found.group(1) if found and found.groups() else None
    return inner or name


def _curve(label: str, name: str, lines: Sequence[Line]) -> charts.Curve:
    points = [(int(line["step"]), float(line[name])) for line in lines if _is_number(line.get(name))]
    return charts.Curve(
        label=label, steps=[step for step, _ in points], values=[value for _, value in points]
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
