"""Stages that were run before and ship with a recipe, in the folder that its key `fitted` names."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evidcore.cache import appearing
from evidcore.runs.folder import difference, write, write_object
from evidcore.runs.inputs import INPUTS, as_json
from evidcore.runs.read import read_object

_MAY_DIFFER = ("code", "versions")  # of what a stage's result depends on; what differs is told
_OPTIONS = ("stage", "dataset", "task", "model", "service", "words")
Inputs = Mapping[str, Any]


class Fitted:
    """A folder of finished stages, each in a folder of its own.

    A stage is brought from it where all that the recipe says and all data are as they were. Code and versions
    may have changed since: what has, stands in the result. An option that came later counts as what it was
    before there was one, as long as the recipe leaves it out.
    """

    def __init__(self, folder: Path | None, given: Iterable[tuple[str | int, ...]] = ()) -> None:
        """Read what the stages were run with.

        `given` names where the recipe says something, as `Recipe.origins` does.
        """
        files = [] if folder is None else sorted(folder.glob(f"*/{INPUTS}"))
        self._stages = {file.parent: read_object(file) for file in files}
        self._given = {part for key in given for part in key}
        self._keys: dict[str, str] = {}  # by the hash under which one was shipped, that of today

    def restore(self, inputs: Inputs, stored: Path) -> None:
        """Copy the stage with these inputs into the store, where it is not there yet and was shipped."""
        now = json.loads(as_json(inputs))
        for folder, shipped in self._stages.items():
            upstream = {name: self._keys.get(key, key) for name, key in shipped.get("upstream", {}).items()}
            before = {**shipped, "upstream": upstream}
            known = {
                name: self._known(before.get(name), table) if name in _OPTIONS else table
                for name, table in now.items()
            }
            if not difference(_code(before, is_code=False), _code(known, is_code=False)):
                self._keys[folder.name] = stored.name
                if not stored.is_dir():
                    _copy(folder, stored, before, difference(_code(before), _code(now)))
                return

    def _known(self, before: Any, now: Any) -> Any:
        """Return a value without the options that are neither in `before` nor in the recipe."""
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            keys = (key for key in now if key in before or key in self._given)
            return {key: self._known(before.get(key), now[key]) for key in keys}
        if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
            return [self._known(*both) for both in zip(before, now, strict=True)]
        return now


def _copy(folder: Path, stored: Path, inputs: Inputs, changes: list[str]) -> None:
    """Copy a shipped stage in one move, with its inputs and what has changed since it was run."""
    result = read_object(folder / "result.json")
    took = "" if result.get("took_s") is None else f" in {result['took_s'] / 60:.1f} minutes"
    names = ", ".join(sorted({change.partition(":")[0] for change in changes}))
    changed = f"; changed since: {names}" if names else ""
    result["fitted_before"] = f"fitted before, by this recipe{took}{changed}"
    stored.parent.mkdir(exist_ok=True)
    with appearing(stored) as part:
        shutil.copytree(folder, part)
        write(part / INPUTS, as_json(inputs))
        write_object(part / "result.json", result)


def _code(inputs: Inputs, *, is_code: bool = True) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if (key in _MAY_DIFFER) == is_code}
