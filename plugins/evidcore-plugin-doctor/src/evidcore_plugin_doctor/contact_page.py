"""The page of a contact sheet: one file, no network, at most 15 MB whatever its texts are."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

from evidcore_plugin_pages.gallery import AXIAL_SIDES, FILM_SIDES
from evidcore_plugin_pages.jinja import asset, environment
from evidcore_plugin_pages.jinja import page as from_template
from evidcore_plugin_pages.markup import Html, join

from evidcore_plugin_doctor.contact_sheet import MOST_ITEMS, Entry, Sheet
from evidcore_plugin_doctor.fault import CHECKS
from evidcore_plugin_doctor.figure import densities, quantile_table
from evidcore_plugin_doctor.rendering import HISTOGRAM_HU

KICKER = "evidcore contact sheet"
MOST_BYTES = 15_000_000
PICTURES_BYTES = 11_000_000  # of them
_RESERVED_BYTES = 700_000  # for style, script, filters and names of cases without room
_PACKAGE = "evidcore_plugin_doctor"
_MOST_SAID = 1_000  # characters of a text on a card, but for its report
_MOST_NAMED = 100  # characters of a name
_MOST_ROWS = 200  # of a list above the cards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """A page, and how many cases found no room on it."""

    text: str
    no_room: int


def page(sheets: Sequence[Sheet], target: str) -> Page:
    """Return the page of some data sets.

    Args:
        sheets: what is shown.
        target: what the command was pointed at.
    """
    cards = _cards()
    summaries = join(cards.summary(sheet, *_drawn(sheet)) for sheet in sheets)
    left = MOST_BYTES - _RESERVED_BYTES - _size(summaries)
    found: list[Html] = []
    shown: list[Entry] = []
    no_room: list[str] = []
    for sheet in sheets:
        for entry in sheet.entries:
            card = cards.card(entry, sheet.name if len(sheets) > 1 else "")
            if _size(card) > left:
                no_room.append(entry.case.id)
                continue
            left -= _size(card)
            found.append(card)
            shown.append(entry)
    names = sorted(name for name in {n for e in shown for n in e.names()} if len(name) <= _MOST_NAMED)
    checks = {check for entry in shown for check in entry.checks()}
    text = from_template(
        _PACKAGE, "contact_sheet.html", kicker=KICKER, target=target, summaries=summaries, cards_=found,
        title=_cut(", ".join(_cut(sheet.name, _MOST_NAMED) for sheet in sheets)),
        left_out=[one for sheet in sheets if (one := sheet.left_out())], no_room=no_room,
        most_mb=MOST_BYTES // 1_000_000,
        splits=_twice(sorted({entry.split for entry in shown})), names=_twice(names[:_MOST_ROWS]),
        checks=_twice([check for check in CHECKS if check in checks]),
        style=asset(_PACKAGE, "contact_sheet.css"), script=asset(_PACKAGE, "contact_sheet.js"),
    )  # fmt: skip
    return Page(text=text, no_room=len(no_room))


@functools.cache
def _cards() -> Any:
    """Return the macros of cards.html."""
    made = environment(_PACKAGE)
    made.filters |= {
        "cut": _cut, "name": functools.partial(_cut, most=_MOST_NAMED),
        "tojson_text": functools.partial(json.dumps, ensure_ascii=False),
    }  # fmt: skip
    made.globals |= {
        "CHECKS": CHECKS, "MOST_ITEMS": MOST_ITEMS, "MOST_ROWS": _MOST_ROWS,
        "SIDES": {"axial": AXIAL_SIDES, "coronal": FILM_SIDES["y"], "sagittal": FILM_SIDES["x"]},
    }  # fmt: skip
    return made.get_template("cards.html").module


def _drawn(sheet: Sheet) -> tuple[Html | str, Html | str]:
    """Return the table of voxel sizes and values, and how densely values lie; empty without a volume."""
    rows = [
        (split, what, values)
        for what, by_split in sheet.distributions().items()
        for split, values in by_split.items()
    ]
    low, high = HISTOGRAM_HU
    histograms = sheet.histograms()
    drawn = densities(
        "Values", histograms, start=f"{low:.0f} HU".replace("-", "\N{MINUS SIGN}"), stop=f"{high:.0f} HU",
        caption="how densely they lie; 1 is an even spread, what is beyond lies at the ends",
    ) if histograms else ""  # fmt: skip
    return quantile_table(rows) if rows else "", drawn


def _twice(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, name) for name in names]


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="backslashreplace"))


def _cut(text: str, most: int = _MOST_SAID) -> str:
    """Return a text, or its beginning and how much is missing."""
    return text if len(text) <= most else f"{text[:most]} … and {len(text) - most} more characters"
