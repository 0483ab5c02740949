"""A reward function with TRL's signature as a reward, for audits: completions, prompts and columns."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.case import Prompt, Rollout, Score, Verdict
from evidcore.contracts import Reward, Task
from evidcore.errors import RecipeError, did_you_mean
from evidcore.reward.composer import NamedReward


class TrlFunction(Reward):
    """Calls a function as TRL's GRPO trainer does.

    Columns are the keys of the prompts' references, and `solution` (the gold completion), `answer` and
    `ground_truth` (the right letter, or the gold completion where there are no options), `report`, `case_id`.
    """

    bounds = (-math.inf, math.inf)

    def __init__(
        self, function: Callable[..., Any], tasks: Mapping[str, Task], *, name: str, is_chat: bool
    ) -> None:
        """Take the function.

        Args:
            function: what is called.
            tasks: by name; they write gold completions.
            name: of the function in messages.
            is_chat: prompts and completions are lists of messages, not texts.
        """
        self.function, self.tasks, self.name, self.is_chat = function, tasks, name, is_chat

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | None]:
        """Call the function once; None stays None."""
        rows = [self._columns(rollout.prompt) for rollout in rollouts]
        names = dict.fromkeys(name for row in rows for name in row)
        given: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
        given["prompts"] = [self._message("user", rollout.prompt.words()) for rollout in rollouts]
        given["completions"] = [self._message("assistant", rollout.text) for rollout in rollouts]
        parameters = inspect.signature(self.function).parameters.values()
        missing = [
            one.name
            for one in parameters
            if one.name not in given
            and one.default is one.empty
            and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
        if missing:
            raise RecipeError(
                f"{self.name}: asks for {missing[0]!r}, which the prompts do not have. "
                f"They have {', '.join(sorted(given))}."
            )
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            given = {one.name: given[one.name] for one in parameters if one.name in given}
        values = self.function(**given)
        return [None if value is None else Score(value=float(value)) for value in values]

    def _message(self, role: str, text: str) -> Any:
        return [{"role": role, "content": text}] if self.is_chat else text

    def _columns(self, prompt: Prompt) -> dict[str, Any]:
        gold = self.tasks[prompt.task].gold(prompt)[0]
        right = prompt.reference.get("letter", gold)
        report = prompt.case.report
        return {
            "solution": gold,
            "answer": right,
            "ground_truth": right,
            "report": None if report is None else report.text,
            "case_id": prompt.case.id,
            **prompt.reference,
        }


def read_function(place: str, tasks: Mapping[str, Task], *, is_chat: bool) -> NamedReward:
    """Return the reward of `file.py:function`, of weight 1.

    Raises:
        RecipeError: if there is no such file or function, or the file cannot be run.
    """
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise RecipeError(f"--trl {place}: there is no file {file or place!r}. Write it as file.py:function.")
    spec = importlib.util.spec_from_file_location(f"evidcore_trl_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"--trl {place}: {file!r} is no Python file. Write it as file.py:function.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as cause:
        raise RecipeError(
            f"--trl {place}: the file cannot be run: {type(cause).__name__}: {cause}. It is imported by "
            "itself; what is to run as a script belongs under `if __name__ == '__main__'`."
        ) from cause
    function = vars(module).get(name)
    if not callable(function):
        known = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        listing = ", ".join(known) or "none"
        raise RecipeError(f"--trl {place}: no such function.{did_you_mean(name, known)} There: {listing}.")
    return NamedReward(
        name=name, reward=TrlFunction(function, tasks, name=name, is_chat=is_chat), package=file
    )
