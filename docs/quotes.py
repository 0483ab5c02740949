"""Write what pages quote into them, from files and from the code: `make docs`.

A fenced block names behind its language what it quotes: `file=PATH` a file, `component=KIND/NAME`
the class that a component's entry point names, `object=MODULE:NAME` a class, function or method.
"""

import importlib
import inspect
import re
import textwrap
from operator import attrgetter
from pathlib import Path

from evidcore.registry import find

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+) (file|component|object)=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def quoted(kind: str, name: str) -> str:
    """Return the text that a block quotes.

    Args:
        kind: `file`, `component` or `object`.
        name: what stands behind it.
    """
    if kind == "file":
        return (ROOT / name).read_text(encoding="utf-8")
    if kind == "component":
        return inspect.getsource(find(*name.split("/")).load())
    module, _, attribute = name.partition(":")
    return textwrap.dedent(inspect.getsource(attrgetter(attribute)(importlib.import_module(module))))


def refreshed(page: str) -> str:
    """Return a page with every quoted block as its source is now."""

    def block(found: re.Match[str]) -> str:
        language, kind, name = found[1], found[2], found[3]
        return f"```{language} {kind}={name}\n{quoted(kind, name)}```"

    return _BLOCK.sub(block, page)


def pages() -> list[Path]:
    """Return the written pages: those at the root, and docs/ but for the generated reference."""
    below = sorted((ROOT / "docs").rglob("*.md"))
    return [*sorted(ROOT.glob("*.md")), *(path for path in below if path.name != "reference.md")]


if __name__ == "__main__":
    for path in pages():
        before = path.read_text(encoding="utf-8")
        after = refreshed(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
