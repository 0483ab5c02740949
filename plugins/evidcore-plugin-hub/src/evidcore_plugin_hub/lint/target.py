"""What is to be linted, and how: in a process of its own, which somebody's code may end.

This is no sandbox: the code runs with all rights of who calls it. Lint what you would also train with.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from evidcore.api import find
from evidcore.errors import EvidError, PluginError
from evidcore.registry import KIND_NAMES, Offer, offers
from evidcore_plugin_hub.worker import Broken, Late, Raised, Worker

PREFIX = "evidcore."
TIME_LIMIT_S = 300.0  # of one target; loading of libraries counts
AFTERWARDS_S = 20.0  # in which the process must end once all is done
ORDER = ("not applicable", "fine", "note", "alarm")  # the worst last
GUARDS = tomllib.loads(Path(__file__).with_name("guards.toml").read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One thing to be linted."""

    form: Literal["component", "function", "recipe"]
    offer: Offer  # a function and a recipe have their place as its name
    folder: str = ""  # of a package that need not be installed
    recipe: str = ""
    is_chat: bool = False  # a function takes lists of messages

    def result(
        self, checks: Sequence[Mapping[str, Any]], judges: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return what was found of it as plain JSON values; its outcome is that of the worst check."""
        named = {key: getattr(self.offer, key) for key in ("kind", "name", "package", "version")}
        outcome = max((check["outcome"] for check in checks), key=ORDER.index, default=ORDER[0])
        return {**named, "judges": judges, "checks": [*checks], "outcome": outcome}


def function_target(place: str, *, recipe: str = "", is_chat: bool = False) -> Target:
    """Return a function with TRL's signature, `file.py:function`, as a target."""
    offer = Offer(kind="reward", name=place, package=place.rpartition(":")[0], version="", target="")
    return Target(form="function", offer=offer, recipe=recipe, is_chat=is_chat)


def targets(
    named: Sequence[str],
    *,
    kind: str = "",
    functions: Sequence[str] = (),
    is_chat: bool = False,
    recipe: str = "",
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
    result = [function_target(place, recipe=recipe, is_chat=is_chat) for place in functions]
    for name in named:
        is_folder = (Path(name) / "pyproject.toml").is_file()
        rows = _of_folder(Path(name), kind) if is_folder else _installed(name, kind)
        folder = name if is_folder else ""
        result += [Target(form="component", offer=row, folder=folder, recipe=recipe) for row in rows]
    if recipe and not result:
        name = f"rewards of {Path(recipe).name}"
        offer = Offer(kind="reward", name=name, package="", version="", target="")
        return [Target(form="recipe", offer=offer, recipe=recipe)]
    if not named and not functions:
        rows = [row for row in offers() if kind in ("", row.kind) and row.kind != "command"]
        result = [Target(form="component", offer=row) for row in rows]
    return result


def _installed(name: str, kind: str) -> list[Offer]:
    rows = [item for item in offers() if kind in ("", item.kind)]
    of_package = [item for item in rows if item.package == name and item.kind != "command"]
    kinds = {item.kind for item in rows if item.name == name.rpartition("/")[2]} or {kind or "reward"}
    return of_package or [find(item, name) for item in sorted(kinds, key=KIND_NAMES.index)]


def _of_folder(folder: Path, kind: str) -> list[Offer]:
    """Return what a package's pyproject.toml offers; nothing of it is imported."""
    file = folder / "pyproject.toml"
    try:
        project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError) as cause:
        raise PluginError(f"{file}: is no table of a project ({cause!r}). `evid new` makes one.") from cause
    package, version = str(project.get("name", folder.name)), str(project.get("version", ""))
    result = [
        Offer(kind=group.removeprefix(PREFIX), name=name, package=package, version=version, target=target)
        for group, names in project.get("entry-points", {}).items()
        if group.startswith(PREFIX) and kind in ("", group.removeprefix(PREFIX))
        for name, target in names.items()
    ]
    if not result:
        what = f"offers no component{f' of kind {kind!r}' if kind else ''}"
        raise PluginError(f'{file}: {what}. Name one under [project.entry-points."evidcore.reward"].')
    return result


def lint_all(targets: Sequence[Target], *, time_limit_s: float = TIME_LIMIT_S) -> Iterator[dict[str, Any]]:
    """Yield the result of each target as plain JSON values; each may take `time_limit_s`.

    A new process goes on behind one that ended its process.

    Raises:
        EvidError: if a target asks for something impossible, as a file that is not there.
    """
    worker: Worker | None = None
    for number, target in enumerate(targets, 1):
        worker = worker or Worker("evidcore_plugin_hub.lint.linting:Linter", keeps_errors=True)
        try:
            result: dict[str, Any] = worker.ask("lint", target, limit_s=time_limit_s)
        except (Late, Broken, Raised) as cause:
            worker.end()
            if isinstance(cause, Raised) and "EvidError" in cause.classes:
                raise EvidError(cause.safe + cause.message) from None
            last = worker.last_words()
            says = f"{cause}; the last that it said: {last[:200]!r}" if last else str(cause)
            yield target.result([_alarm(says)])
            worker = None
            continue
        if number == len(targets) and not worker.ends_by_itself(AFTERWARDS_S):
            left = "leaves a thread or process running that keeps the process from ending"
            result = target.result([*result["checks"], _alarm(left)], result["judges"])
        yield result


def _alarm(says: str) -> dict[str, Any]:
    """Return the check of the process, as `Linter` has others."""
    named = {"check": "process", "outcome": "alarm", "says": says, "task": "", "reward": "", "figures": {}}
    return {**named, "guards": GUARDS["process"]}
