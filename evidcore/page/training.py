"""Training curves, from metrics.jsonl."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from evidcore.page import charts
from evidcore.page.durations import is_number, is_time
from evidcore.page.markup import Html, join, tag
from evidcore.page.numbers import Unit
from evidcore.page.record import Line

_SKIPPED = {"stage", "step", "time_s", "epoch"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart and the figures that belong on it."""

    title: str
    figures: re.Pattern[str]
    unit: Unit = "plain"
    note: str = ""


PANELS = (
    Panel(title="Loss", figures=re.compile(r"loss(?:_(\w+))?")),
    Panel(title="Reward", figures=re.compile(r"reward(?:/(.+))?"), note="mean over answers"),
    Panel(title="Well-formed answers", figures=re.compile(r"reward/format"), unit="rate"),
    Panel(title="KL to the reference", figures=re.compile(r"kl"), note="nats a token"),
    Panel(
        title="Dead groups",
        figures=re.compile(r"dead_groups(?:/(.+))?"),
        unit="rate",
        note="equal rewards teach nothing",
    ),
    Panel(title="Entropy", figures=re.compile(r"entropy"), note="nats a token"),
    Panel(title="Answer length", figures=re.compile(r"completion_tokens"), note="tokens"),
)


def stage_curves(lines: Sequence[Line]) -> Html:
    """Return the charts of one stage's lines, the well-known ones open and the rest folded."""
    names = [
        name
        for name in dict.fromkeys(key for line in lines for key in line)
        if name not in _SKIPPED and not is_time(name) and any(is_number(line.get(name)) for line in lines)
    ]
    shown, left = [], set(names)
    for panel in PANELS:
        mine = [name for name in names if panel.figures.fullmatch(name)][:6]
        if mine:
            left -= set(mine)
            rows = [_curve(_label(panel, name), name, lines) for name in mine]
            shown.append(charts.curves(panel.title, rows, unit=panel.unit, note=panel.note))
    more = [charts.curves(name, [_curve(name, name, lines)]) for name in names if name in left]
    return join([
        tag("div", *shown, class_="curves") if shown else "",
        tag(
            "details",
            tag("summary", f"{len(more)} more figure{'s' * (len(more) > 1)}"),
            tag("div", *more, class_="curves"),
        )
        if more
        else "",
    ])


def _label(panel: Panel, name: str) -> str:
    if not panel.figures.groups:
        return name
    found = panel.figures.fullmatch(name)
    return (found.group(1) if found else None) or "total"


def _curve(label: str, name: str, lines: Sequence[Line]) -> charts.Curve:
    points = [(int(line["step"]), float(line[name])) for line in lines if is_number(line.get(name))]
    return charts.Curve(
        label=label, steps=[step for step, _ in points], values=[value for _, value in points]
    )
