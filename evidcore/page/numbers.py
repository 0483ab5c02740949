"""How numbers are written: rates in per cent, differences in points, the exact value always beneath."""

from __future__ import annotations

import math
from typing import Literal

from evidcore.page.markup import Html, escape, tag

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"
_THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"

Unit = Literal["rate", "points", "score", "count", "seconds", "plain"]


def written(value: float, unit: Unit = "plain") -> str:
    """Return `value` as it reads on the page.

    Args:
        value: a rate or score in 0..1, a difference of rates in -1..1, a count, seconds, or any number.
        unit: how to read it.
    """
    if not math.isfinite(value):
        return "not finite"
    if unit == "rate":
        return f"{100 * value:.1f} %"
    if unit == "points":
        return f"{100 * value:+.1f}".replace("-", MINUS)
    if unit == "score":
        return f"{value:.3f}".replace("-", MINUS)
    if unit == "count":
        return f"{value:,.0f}".replace(",", _THIN_SPACE)
    if unit == "seconds":
        return _duration(value)
    return f"{value:.4g}".replace("-", MINUS)


def number(value: float | None, unit: Unit = "plain") -> Html:
    """Return `value` with its exact form in the element; None reads as a dash."""
    if value is None:
        return tag("span", DASH, class_="none", title="not measured")
    return tag("data", written(value, unit), value=repr(value))


def interval(low: float | None, high: float | None, unit: Unit = "plain") -> Html:
    """Return an interval, or a dash where there is none."""
    if low is None or high is None:
        return tag("span", DASH, class_="none", title="no interval")
    bare: Unit = unit
    first = written(low, bare).removesuffix(" %")
    last = written(high, bare).removesuffix(" %")
    return tag(
        "span",
        tag("data", first, value=repr(low)),
        escape(" to "),
        tag("data", last, value=repr(high)),
        class_="interval",
    )


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
