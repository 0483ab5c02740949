"""Rewards across trainers: ours as a function for TRL's GRPO trainer, and such a function as a component."""

import importlib.util
import inspect
import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from evidcore.api import Case, Finding, Prompt, Report, Reward, Rollout, Score, Task, TextPart, find
from evidcore.case import Verdict
from evidcore.contracts.judging import Judged
from evidcore.errors import RecipeError, did_you_mean
from evidcore.registry.factory import arguments
from evidcore.reward.composer import NamedReward, RewardComposer

KNOWN = ("report", "case_id", "findings")  # columns that tell of the case; all others are the task's
TRAINER = ("trainer_state", "log_extra", "log_metric", "completion_ids", "environments")  # TRL's own


class TrlReward:
    """A reward as `trl.GRPOTrainer` calls its `reward_funcs`: completions, prompts and columns to numbers."""

    def __init__(self, reward: NamedReward, task: Task, task_name: str) -> None:
        self.reward, self.task, self.task_name = reward, task, task_name
        self.__name__ = reward.name.replace("-", "_")  # TRL logs a reward under it
        self._composer = RewardComposer([reward])

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Return a number for each completion, None where there is no verdict.

        Args:
            prompts: texts or lists of messages; equal ones that follow each other are one group.
            completions: texts or lists of messages.
            columns: of the data set, repeated for each completion: what the task holds an answer against
                (`letter`, `options`, …), and of the case `report`, `case_id` and `findings`, a list of
                `{"name": …, "state": …}`.

        Raises:
            RecipeError: if a column is shorter or longer than the completions.
            ContractError: if the reward breaks its contract.
        """
        given = {name: value for name, value in columns.items() if name not in TRAINER}
        for name, value in given.items():
            if not isinstance(value, Sequence) or len(value) != len(completions):
                count = len(value) if isinstance(value, Sequence) else repr(value)
                has = f"column {name!r} has {count} rows for {len(completions)}"
                raise RecipeError(f"{self.__name__}: {has}.")
        rollouts: list[Rollout] = []
        known = ""
        for place, (asked, completion) in enumerate(zip(prompts, completions, strict=True)):
            row = {name: value[place] for name, value in given.items()}
            mark = json.dumps([asked, row], default=repr)
            if not rollouts or known != mark:
                known, number = mark, rollouts[-1].group + 1 if rollouts else 0
                prompt = self._prompt(number, asked, row)
            text = _text(completion)
            answer = self.task.parse(prompt, text)
            rollouts.append(Rollout(prompt=prompt, group=number, text=text, answer=answer))
        verdicts = self._composer(rollouts).verdicts[self.reward.name]
        return [float(item.value) if isinstance(item, Score) else None for item in verdicts]

    def _prompt(self, number: int, asked: Any, row: Mapping[str, Any]) -> Prompt:
        report = row.get("report")
        case = Case(
            id=str(row.get("case_id", f"row-{number}")), patient=None, volumes=(),
            report=None if report is None else Report(text=report),
            findings=tuple(Finding(**item) for item in row.get("findings") or ()),
        )  # fmt: skip
        reference = {name: value for name, value in row.items() if name not in KNOWN}
        parts = (TextPart(text=_text(asked)),)
        return Prompt(id=f"row-{number}", case=case, task=self.task_name, parts=parts, reference=reference)


def trl_reward(name: str, *, task: str = "choice", options: Mapping[str, Any] | None = None) -> TrlReward:
    """Return an installed reward as a function for TRL.

    Args:
        name: of the reward, or `package/name`.
        task: reads the completions.
        options: of the reward, as a recipe would have them.

    Raises:
        PluginError: if there is no such reward or task.
        RecipeError: if an option is none of theirs, or the reward asks for what only a run can give.
    """
    offer = find("reward", name)
    reward = _built(offer.load(), options or {}, f"reward {name!r}")
    reader = _built(find("task", task).load(), {}, f"task {task!r}")
    package = f"{offer.package} {offer.version}"
    return TrlReward(NamedReward(name=offer.name, reward=reward, package=package), reader, task)


def _built(made: Callable[..., Any], table: Mapping[str, Any], where: str) -> Any:
    needed = [
        item.name
        for item in inspect.signature(made).parameters.values()
        if item.default is item.empty and item.name not in table and item.kind is not item.VAR_KEYWORD
    ]
    if needed:
        listing = ", ".join(map(repr, needed))
        raise RecipeError(f"{where}: needs {listing}, which only a run or an option gives.")
    return made(**arguments(made, table, where))


class TrlFunction(Reward):
    """Calls a function as TRL's GRPO trainer does.

    Columns are the keys of the prompts' references, and `solution` (the gold completion), `answer` and
    `ground_truth` (the right letter, or the gold completion where there are no options), `report`, `case_id`.

    Args:
        function: what is called.
        tasks: by name; they write gold completions.
        name: of the function in messages.
        is_chat: prompts and completions are lists of messages, not texts.
    """

    bounds = (-math.inf, math.inf)

    def __init__(
        self, function: Callable[..., Any], tasks: Mapping[str, Task], *, name: str, is_chat: bool
    ) -> None:
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
            item.name
            for item in parameters
            if item.name not in given
            and item.default is item.empty
            and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
        ]
        if missing:
            what = f"asks for {missing[0]!r}, which the prompts do not have"
            raise RecipeError(f"{self.name}: {what}. They have {', '.join(sorted(given))}.")
        if not any(item.kind is item.VAR_KEYWORD for item in parameters):
            given = {item.name: given[item.name] for item in parameters if item.name in given}
        values = self.function(**given)
        return [None if value is None else Score(value=float(value)) for value in values]

    def _message(self, role: str, text: str) -> Any:
        return [{"role": role, "content": text}] if self.is_chat else text

    def _columns(self, prompt: Prompt) -> dict[str, Any]:
        gold = self.tasks[prompt.task].gold(prompt)[0]
        right = prompt.reference.get("letter", gold)
        report = prompt.case.report
        return {
            "solution": gold, "answer": right, "ground_truth": right, "case_id": prompt.case.id,
            "report": None if report is None else report.text, **prompt.reference,
        }  # fmt: skip


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
    reward = TrlFunction(function, tasks, name=name, is_chat=is_chat)
    return NamedReward(name=name, reward=reward, package=file)


def reward_of(
    function: Callable[..., Any],
    *,
    judges: Collection[Judged],
    bounds: tuple[float, float] = (0.0, 1.0),
    tasks: Collection[str] = ("choice", "report"),
    is_chat: bool = False,
) -> type[Reward]:
    """Return a function with TRL's signature as a class that an entry point of `evidcore.reward` can name.

    RadEval's rewards are such functions: `radeval.rewards.make_reward_fn("bleu", reference_column="report")`.

    Args:
        function: completions, prompts and columns to numbers; `TrlFunction` says which columns it is given.
        judges: what it judges.
        bounds: of its numbers.
        tasks: whose gold answers are its columns.
        is_chat: it takes lists of messages.
    """
    named, known = getattr(function, "__name__", "function"), {name: find("task", name) for name in tasks}

    class Function(Reward):
        """A reward function of another trainer."""

        def __init__(self) -> None:
            self.bounds, self.judges = bounds, frozenset(judges)

        def __call__(
            self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
        ) -> Sequence[Score | None]:
            """Ask the function about answers to its tasks."""
            readers = {name: cast(Task, offer.load()()) for name, offer in known.items()}
            own = [one for one in rollouts if one.prompt.task in readers]
            asked = TrlFunction(function, readers, name=named, is_chat=is_chat)
            scores = dict(zip(map(id, own), asked(own, earlier) if own else (), strict=True))
            return [scores.get(id(one)) for one in rollouts]

    Function.__name__ = Function.__qualname__ = named
    return Function


def _text(said: Any) -> str:
    """Return the text of a completion or prompt that may be a list of messages."""
    content = said if isinstance(said, str) else said[-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
