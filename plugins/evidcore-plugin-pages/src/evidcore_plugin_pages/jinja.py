"""Pages from jinja2 templates: text is escaped, one base, one file that loads nothing."""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from evidcore_plugin_pages.markup import DASH, Html, interval, number, written

NOTICE = "Research software, not for clinical use. Not a medical device; not for diagnosis or treatment."
_OURS = "evidcore_plugin_pages"
_TAG = re.compile(r"(</?[A-Za-z_]+>)")


def page(package: str, template: str, *, style: str = "", script: str = "", **values: Any) -> str:
    """Return a whole page: a template that extends `base.html`.

    Args:
        package: the module in whose folder `templates` the template lies.
        template: its file.
        style: comes after the style sheet of every page.
        script: comes after the script of every page.
        values: what the template shows; `title` and `kicker` are those of every page.
    """
    style, script = asset(_OURS, "style.css") + style, asset(_OURS, "script.js") + script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    given = {"style": Html(style), "script": Html(script), "script_sha256": Html(digest)}
    return environment(package).get_template(template).render(**given, **values) + "\n"


def text(package: str, template: str, **values: Any) -> str:
    """Return what a template of a package writes without markup, no line end behind it."""
    plain = environment(package).overlay(autoescape=False)
    return plain.get_template(template).render(**values).rstrip("\n")


def part(macro: str, *values: Any, template: str = "parts.html", **options: Any) -> Html:
    """Return what a macro of a template here makes of some values."""
    return Html(getattr(_module(template), macro)(*values, **options))


def asset(package: str, name: str) -> str:
    """Return a file that lies in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


@functools.cache
def environment(package: str) -> Environment:
    """Return the templates of a package, with those here behind them."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(_OURS)]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.globals |= {
        "DASH": DASH, "NOTICE": NOTICE, "interval": interval, "number": number, "written": written,
        "tags_apart": _TAG.split,
    }  # fmt: skip
    made.tests["flat"] = lambda items: not any(isinstance(item, Mapping | list) for item in items)
    return made


@functools.cache
def _module(template: str) -> Any:
    return environment(_OURS).get_template(template).module
