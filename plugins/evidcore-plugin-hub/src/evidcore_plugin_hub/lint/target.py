"""What is to be linted, and how: in a process of its own, which somebody's code may end.

This is no sandbox: the code runs with all rights of who calls it. Lint what you would also train with.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.api import find
from evidcore.cache import plain_file
from evidcore.errors import EvidError, PluginError
from evidcore.registry import KIND_NAMES, Offer, offers
from evidcore_plugin_hub.worker import Broken, Late, Raised, Worker

PREFIX = "evidcore."
TIME_LIMIT_S = 300.0  # of one target; loading of libraries counts
AFTERWARDS_S = 20.0  # in which the process must end once all is done
ORDER = ("not applicable", "fine", "note", "alarm")  # the worst last
CASES = 8  # made, or of each data entry of a recipe
PROCESS = "a reward's exit ended a run with status 0; a print broke the output for other programs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One thing to be linted: a component, functions of TRL, or else the rewards of a recipe."""

    offer: Offer  # of functions and recipes it has a name alone
    functions: Sequence[str] = ()  # `file.py:function`, with TRL's signature; they are summed
    folder: str = ""  # of a package that need not be installed
    recipe: str = ""  # whose data are asked about
    overrides: Sequence[str] = ()  # of its keys
    cases: int = CASES
    is_chat: bool = False  # a function takes lists of messages
    rollouts: str = ""  # of a run, whose first step is judged too

    def result(
        self, checks: Sequence[Mapping[str, Any]], judges: Sequence[str] | None = None, *, stage: str = ""
    ) -> dict[str, Any]:
        """Return what was found of it as plain JSON values; its outcome is that of the worst check."""
        named = {key: getattr(self.offer, key) for key in ("kind", "name", "package", "version")}
        outcome = max((check["outcome"] for check in checks), key=ORDER.index, default=ORDER[0])
        return {**named, "stage": stage, "judges": judges, "checks": [*checks], "outcome": outcome}


def rewards_target(recipe: str = "", *, functions: Sequence[str] = (), **keys: Any) -> Target:
    """Return a recipe's rewards, or functions in their place, as a target."""
    named = ", ".join(functions) or f"rewards of {Path(recipe).name}"
    offer = Offer(kind="reward", name=named, package="", version="", target="")
    return Target(offer=offer, functions=functions, recipe=recipe, **keys)


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
    result = [rewards_target(recipe, functions=(place,), is_chat=is_chat) for place in functions]
    for name in named:
        is_folder = (Path(name) / "pyproject.toml").is_file()
        rows = _of_folder(Path(name), kind) if is_folder else _installed(name, kind)
        folder = name if is_folder else ""
        result += [Target(offer=row, folder=folder, recipe=recipe) for row in rows]
    if recipe and not result:
        return [rewards_target(recipe)]
    if not named and not functions:
        rows = [row for row in offers() if kind in ("", row.kind) and row.kind != "command"]
        result = [Target(offer=row) for row in rows]
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
        project: dict[str, Any] = tomllib.loads(plain_file(file).read_text(encoding="utf-8"))["project"]
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
    """Yield the results of each target as plain JSON values; each may take `time_limit_s`.

    A new process goes on behind one that ended its process.

    Raises:
        EvidError: if a target asks for something impossible, as a file that is not there.
    """
    worker: Worker | None = None
    for number, target in enumerate(targets, 1):
        worker = worker or Worker("evidcore_plugin_hub.lint.linting:Linter", keeps_errors=True)
        try:
            results: list[dict[str, Any]] = worker.ask("lint", target, limit_s=time_limit_s)
        except (Late, Broken, Raised) as cause:
            worker.end()
            if isinstance(cause, Raised) and "EvidError" in cause.classes:
                raise EvidError(cause.safe + cause.message) from None
            said = worker.last_words()
            says = f"{cause}; the last that it said: {said[:200]!r}" if said else str(cause)
            yield target.result([_alarm(says)])
            worker = None
            continue
        if number == len(targets) and not worker.ends_by_itself(AFTERWARDS_S):
            left = "leaves a thread or process running that keeps the process from ending"
            last = results.pop()
            results.append(
                target.result([*last["checks"], _alarm(left)], last["judges"], stage=last["stage"])
            )
        yield from results


def _alarm(says: str) -> dict[str, Any]:
    """Return the check of the process, as `Linter` has others."""
    named = {"check": "process", "outcome": "alarm", "says": says, "task": "", "reward": "", "figures": {}}
    return {**named, "guards": PROCESS}
