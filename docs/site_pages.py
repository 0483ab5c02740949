"""Builds the documentation as a site: `make site`.

The pages are read on a code host too, where a link may go to any file of the repository. On the site such a
file is a page or a download below `repository/`, and a fence says its language only. Zensical does the rest;
a link or an anchor that goes nowhere ends it.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!\w+:)([^)#\s]+)((?:#[^)\s]*)?)\)")
FENCE = re.compile(r"^```(\w+)[^\n]*(\n.*?^```)$", re.MULTILINE | re.DOTALL)
LEFT_OUT = {".py", ".pyc"}  # programs beside the pages


def write(folder: Path) -> None:
    """Write all pages of docs/, and whatever they link to, into an empty folder."""
    inside = (path for path in (ROOT / "docs").rglob("*") if path.is_file() and path.suffix not in LEFT_OUT)
    waiting, done = [path.relative_to(ROOT).as_posix() for path in inside], set()
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        place = folder / on_site(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            text, linked = page(source)
            place.write_text(text, encoding="utf-8")
            waiting += linked
        else:
            shutil.copyfile(ROOT / source, place)


def page(source: str) -> tuple[str, list[str]]:
    """Return a page as the site has it, and the files that it links to."""
    linked: list[str] = []

    def pointed(found: re.Match[str]) -> str:
        mark, words, link, anchor = found.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        if (ROOT / target).is_dir():
            target = f"{target}/README.md"
        if not (ROOT / target).is_file():
            return words  # a folder without a page
        linked.append(target)
        way = posixpath.relpath(on_site(target), posixpath.dirname(on_site(source)))
        return f"{mark}[{words}]({way}{anchor})"

    written, end = "", 0
    text = (ROOT / source).read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        written += LINK.sub(pointed, text[end : fence.start()]) + f"```{fence[1]}{fence[2]}"
        end = fence.end()
    return written + LINK.sub(pointed, text[end:]), linked


def on_site(source: str) -> str:
    """Return where a file of the repository lies among the site's pages."""
    return source.removeprefix("docs/") if source.startswith("docs/") else f"repository/{source}"


def build(folder: Path) -> None:
    """Write the pages into `folder/pages` and the site into `folder/site`, in place of older ones.

    Raises:
        CalledProcessError: if a page has a fault.
    """
    for old in ("pages", "site"):
        shutil.rmtree(folder / old, ignore_errors=True)
    write(folder / "pages")
    shutil.copyfile(ROOT / "docs" / "zensical.toml", folder / "zensical.toml")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    build(ROOT / "build" / "site")
