"""HTML that escapes by default: a plain `str` is text, `Html` is markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

_VOID = frozenset({"br", "hr", "img", "input", "meta", "link", "col"})


class Html(str):
    """Text that is markup already; everything else is escaped on its way in."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Return `value` as markup: unchanged if it is markup, escaped otherwise."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(pieces: Iterable[object], between: str = "") -> Html:
    """Return the pieces one after the other, each escaped unless it is markup."""
    return Html(str(escape(between)).join(escape(piece) for piece in pieces))


def tag(element: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Args:
        element: its name.
        children: text or markup; None is left out.
        attributes: `class_` loses its underscore, other underscores become hyphens; True writes the bare
            name; None and False leave the attribute out.
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        written.append(f" {label}" if value is True else f' {label}="{escape(value)}"')
    opening = f"<{element}{''.join(written)}>"
    if element in _VOID:
        return Html(opening)
    inside = "".join(escape(child) for child in children if child is not None)
    return Html(f"{opening}{inside}</{element}>")


def data_block(value: Any, **attributes: object) -> Html:
    """Return a JSON block for the page's script; no text in it can end the block."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    safe = written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return tag("script", Html(safe), type="application/json", **attributes)
