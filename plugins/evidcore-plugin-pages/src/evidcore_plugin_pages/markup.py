"""How numbers are written, and elements of charts; a plain `str` is text, `Html` is markup.

Rates are in per cent, differences in points, the exact value always beneath.
"""

import json
import math
from collections.abc import Iterable
from typing import Any, Literal

from markupsafe import Markup, escape

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"
_THIN_SPACE = "\N{NARROW NO-BREAK SPACE}"

Html = Markup  # what is markup already; everything else is escaped on its way in
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
    if unit != "seconds":
        return f"{value:.4g}".replace("-", MINUS)
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def number(value: float | None, unit: Unit = "plain") -> Html:
    """Return `value` with its exact form in the element; None reads as a dash."""
    if value is None:
        return tag("span", DASH, class_="none", title="not measured")
    return tag("data", written(value, unit), value=repr(value))


def interval(low: float | None, high: float | None, unit: Unit = "plain") -> Html:
    """Return an interval, or a dash where there is none."""
    if low is None or high is None:
        return tag("span", DASH, class_="none", title="no interval")
    first = written(low, unit).removesuffix(" %")
    last = written(high, unit).removesuffix(" %")
    ends = tag("data", first, value=repr(low)), tag("data", last, value=repr(high))
    return tag("span", join(ends, " to "), class_="interval")


def join(pieces: Iterable[object], between: str = "") -> Html:
    """Return the pieces one after the other, each escaped unless it is markup."""
    return escape(between).join(map(escape, pieces))


def tag(element: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        element: its name, of an element with an end.
        children: text or markup; None is left out.
        attributes: `class_` loses its underscore, other underscores become hyphens.
    """
    labels = {key.rstrip("_").replace("_", "-"): escape(value) for key, value in attributes.items()}
    opening = "".join([element, *(f' {label}="{value}"' for label, value in labels.items())])
    inside = join(child for child in children if child is not None)
    return Html(f"<{opening}>{inside}</{element}>")


def data_block(value: Any, **attributes: object) -> Html:
    """Return a JSON block for the page's script; no text in it can end the block."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    safe = written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return tag("script", Html(safe), type="application/json", **attributes)
