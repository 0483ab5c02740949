"""What is to be linted: installed components, those of a folder, a function, a recipe's rewards."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from evidcore.errors import PluginError
from evidcore.registry import KIND_NAMES, Offer, find, offers

PREFIX = "evidcore."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One thing to be linted, told in words that another process understands."""

    form: Literal["component", "function", "recipe"]
    kind: str = "reward"
    name: str
    package: str = ""
    version: str = ""
    target: str = ""  # of a component: "module:attribute"
    folder: str = ""  # of a package that need not be installed
    recipe: str = ""
    is_chat: bool = False  # a function takes lists of messages

    @property
    def title(self) -> str:
        """Return what a table calls it."""
        return self.name if self.form == "recipe" else f"{self.kind} {self.name}"


def of_offer(offer: Offer, *, folder: str = "", recipe: str = "") -> Target:
    """Return the target that an offer is."""
    return Target(
        form="component", kind=offer.kind, name=offer.name, package=offer.package, version=offer.version,
        target=offer.target, folder=folder, recipe=recipe,
    )  # fmt: skip


def targets(
    named: Sequence[str], *, kind: str, functions: Sequence[str], is_chat: bool, recipe: str
) -> list[Target]:
    """Return what is to be linted.

    Args:
        named: components, `package/component`, packages, or folders that hold a pyproject.toml; nothing,
            with no function and no recipe: everything installed.
        kind: of the components; empty: any.
        functions: places of functions with TRL's signature, `file.py:function`.
        is_chat: these take lists of messages.
        recipe: whose data are asked about; by itself, whose rewards are linted together.

    Raises:
        PluginError: if nothing of a name is installed and no such folder is there.
    """
    found = [
        Target(form="function", name=place, recipe=recipe, is_chat=is_chat, package=place.rpartition(":")[0])
        for place in functions
    ]
    for name in named:
        if (Path(name) / "pyproject.toml").is_file():
            found += [of_offer(one, folder=name, recipe=recipe) for one in _of_folder(Path(name), kind)]
        else:
            found += [of_offer(one, recipe=recipe) for one in _installed(name, kind)]
    if recipe and not found:
        return [Target(form="recipe", name=f"rewards of {Path(recipe).name}", recipe=recipe)]
    if not named and not functions:
        found = [of_offer(one) for one in offers() if kind in ("", one.kind) and one.kind != "command"]
    return found


def _installed(name: str, kind: str) -> list[Offer]:
    bare = name.rpartition("/")[2]
    rows = [one for one in offers() if kind in ("", one.kind)]
    of_package = [one for one in rows if one.package == name and one.kind != "command"]
    if of_package:
        return of_package
    kinds = {one.kind for one in rows if one.name == bare} or {kind or "reward"}
    return [find(one, name) for one in sorted(kinds, key=KIND_NAMES.index)]


def _of_folder(folder: Path, kind: str) -> Iterator[Offer]:
    """Yield what a package's pyproject.toml offers; nothing of it is imported.

    Raises:
        PluginError: if the file cannot be read, or offers nothing.
    """
    file = folder / "pyproject.toml"
    try:
        project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError) as cause:
        raise PluginError(
            f"{file}: is no table of a project ({cause!r}). Make one with `evid new`."
        ) from cause
    groups: dict[str, dict[str, str]] = project.get("entry-points", {})
    found = [
        Offer(
            kind=group.removeprefix(PREFIX), name=name, package=str(project.get("name", folder.name)),
            version=str(project.get("version", "")), target=target,
        )
        for group, names in groups.items()
        if group.startswith(PREFIX) and kind in ("", group.removeprefix(PREFIX))
        for name, target in names.items()
    ]  # fmt: skip
    if not found:
        raise PluginError(
            f"{file}: offers no component{f' of kind {kind!r}' if kind else ''}. Name one under "
            f'[project.entry-points."evidcore.reward"].'
        )
    yield from found


def reach(folder: str) -> None:
    """Put a package's modules on the path of this process."""
    for place in (Path(folder), Path(folder) / "src"):
        if place.is_dir():
            sys.path.insert(0, str(place.resolve()))
