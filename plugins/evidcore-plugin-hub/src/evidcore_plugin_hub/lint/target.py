"""What is to be linted, and how: in a process of its own, which somebody's code may end.

This is no sandbox: the code runs with all rights of who calls it. Lint what you would also train with.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from evidcore.errors import EvidError, PluginError
from evidcore.registry import KIND_NAMES, Offer, find, offers
from evidcore_plugin_hub.worker import Broken, Late, Raised, Worker

PREFIX = "evidcore."
TIME_LIMIT_S = 300.0  # of one target; loading of libraries counts
AFTERWARDS_S = 20.0  # in which the process must end once all is done
ORDER = ("not applicable", "fine", "note", "alarm")  # the worst last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One thing to be linted, in words that another process understands."""

    form: Literal["component", "function", "recipe"]
    kind: str = "reward"
    name: str
    package: str = ""
    version: str = ""
    target: str = ""  # of a component: "module:attribute"
    folder: str = ""  # of a package that need not be installed
    recipe: str = ""
    is_chat: bool = False  # a function takes lists of messages

    def result(self, checks: Sequence[dict[str, Any]], judges: Sequence[str] | None = None) -> dict[str, Any]:
        """Return what was found of it as plain JSON values; its outcome is that of the worst check."""
        named = {key: getattr(self, key) for key in ("kind", "name", "package", "version")}
        outcome = max((item["outcome"] for item in checks), key=ORDER.index, default=ORDER[0])
        return {**named, "judges": judges, "checks": [*checks], "outcome": outcome}


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
    result = [
        Target(form="function", name=place, recipe=recipe, is_chat=is_chat, package=place.rpartition(":")[0])
        for place in functions
    ]
    for name in named:
        is_folder = (Path(name) / "pyproject.toml").is_file()
        rows = _of_folder(Path(name), kind) if is_folder else _installed(name, kind)
        result += [_of_offer(item, folder=name if is_folder else "", recipe=recipe) for item in rows]
    if recipe and not result:
        return [Target(form="recipe", name=f"rewards of {Path(recipe).name}", recipe=recipe)]
    if not named and not functions:
        result = [_of_offer(item) for item in offers() if kind in ("", item.kind) and item.kind != "command"]
    return result


def _of_offer(offer: Offer, **more: str) -> Target:
    fields = {key: getattr(offer, key) for key in ("kind", "name", "package", "version", "target")}
    return Target(form="component", **fields, **more)  # type: ignore[arg-type]


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
        raise PluginError(
            f"{file}: is no table of a project ({cause!r}). Make one with `evid new`."
        ) from cause
    result = [
        Offer(
            kind=group.removeprefix(PREFIX), name=name, package=str(project.get("name", folder.name)),
            version=str(project.get("version", "")), target=target,
        )
        for group, names in project.get("entry-points", {}).items()
        if group.startswith(PREFIX) and kind in ("", group.removeprefix(PREFIX))
        for name, target in names.items()
    ]  # fmt: skip
    if not result:
        raise PluginError(
            f"{file}: offers no component{f' of kind {kind!r}' if kind else ''}. Name one under "
            f'[project.entry-points."evidcore.reward"].'
        )
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
            result: dict[str, Any] = worker.ask("lint", dataclasses.asdict(target), limit_s=time_limit_s)
        except (Late, Broken, Raised) as cause:
            worker.end()
            yield target.result([_ended(_how(cause, time_limit_s, worker.last_words()))])
            worker = None
            continue
        if number == len(targets) and not worker.ends_by_itself(AFTERWARDS_S):
            left = "leaves a thread or process running that keeps the process from ending"
            result = target.result([*result["checks"], _ended(left)], result["judges"])
        yield result


def _ended(says: str) -> dict[str, Any]:
    from evidcore_plugin_hub.lint.linting import as_json  # imports what this process does without else

    return as_json("process", "alarm", says)


def _how(cause: Exception, time_limit_s: float, last: str) -> str:
    """Return in words how a process ended; raise what a person can fix."""
    if isinstance(cause, Raised):
        if "EvidError" in cause.error.classes:
            raise EvidError(cause.error.safe + cause.error.message) from None
        name, message = cause.error.name, cause.error.message
        status = int(message) if name == "SystemExit" and message.isdecimal() else 1
        ended, last = f"ended the process with status {status}", last or str(cause)
    elif isinstance(cause, Broken) and cause.status is not None:
        by = f"by signal {-cause.status}" if cause.status < 0 else f"with status {cause.status}"
        ended = f"ended the process {by}"
    else:
        ended = f"no answer for {time_limit_s:g} s" if isinstance(cause, Late) else str(cause)
    return f"{ended}; the last that it said: {last[:200]!r}" if last else ended
