"""`evidcore.audit_policy`: does any function that answers questions look at the volumes it is shown?"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from evidcore.api import Crop, Prompt
from evidcore.compute.signals import stop_request
from evidcore.data import Volume
from evidcore.data.preparation import show
from evidcore.errors import EvidError, RunError
from evidcore.hooks import write_pages
from evidcore_plugin_audit.external import audit_alone, write_alone
from evidcore_plugin_audit.given_recipe import Given, Overrides, given_recipe
from evidcore_plugin_audit.handout import TextPolicy
from evidcore_plugin_audit.run_reader import Run

Table = str | Mapping[str, Any]  # a component: its name, or its name and options
_DEFAULTS = {
    "task": {"use": "choice", "think": False, "rules": True}, "view": "volume", "split": "test",
    "max_new_tokens": 256, "seed": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What a policy is asked: words and voxels, and nothing that tells whose or under which condition."""

    text: str  # the options and the form of the answer are in it; `<image>` where a volume is shown
    max_new_tokens: int
    _crops: tuple[Crop, ...] = dataclasses.field(repr=False)  # private: a path names the patient

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The volumes shown, in the order of the text; read at each access, so that no batch is held.

        `array` (z, y, x) is in HU as whole numbers, or as the file has it; `spacing_mm_zyx` and `affine` say
        where it lies.
        """
        return tuple(show(crop) for crop in self._crops)


Answering = Callable[[Sequence[Question]], Sequence[str]]


class CalledPolicy(TextPolicy):
    """A function as a policy."""

    source = "a function"
    remedy = "Name an evaluation that reads what was written."

    def __init__(self, function: Answering) -> None:
        self._function = function

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        asked = [
            Question(text=prompt.written(), max_new_tokens=max_new_tokens, _crops=prompt.crops())
            for prompt in prompts
        ]
        try:
            texts = self._function(asked)
        except EvidError:
            raise
        except Exception as cause:  # whatever the function does
            raise RunError(
                f"the policy failed while it answered {len(asked)} questions",
                f": {type(cause).__name__}: {cause}",
            ) from cause
        kind = type(texts).__name__
        if not isinstance(texts, list | tuple) or len(texts) != len(asked):
            count = f"{len(texts)} in a {kind}" if isinstance(texts, Sized) else f"a {kind}"
            raise RunError(
                f"the policy was asked {len(asked)} questions and must return a list of as many texts, got "
                f"{count}."
            )
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise RunError(
                    f"answer {number} of the policy must be a text, got a {type(text).__name__}. "
                    "Return '' for none."
                )
        return [text.encode(errors="replace").decode() for text in texts]


def audit_policy(
    policy: Answering,
    recipe: Given | None = None,
    *,
    dataset: Table | None = None,
    task: Table | None = None,
    view: Table | None = None,
    conditions: Sequence[Table] | None = None,
    split: str | None = None,
    max_new_tokens: int | None = None,
    seed: int | None = None,
    overrides: Overrides = (),
    stage: str = "",
    limit: int = 0,
    out: str | os.PathLike[str] = "runs",
) -> Run:
    """Ask a function the same questions over the right, another patient's and blank volumes.

    `verdict` of the run says whether its answers rest on what it was shown, `results` and `answers` what that
    follows from. The same code measures as in `evid audit policy`.

    Args:
        policy: takes a list of `Question` and returns as many texts.
        recipe: says what is asked; its model is not used. None: `dataset` and what follows say it.
        dataset: a data set by its name, or its table.
        task: likewise; None: multiple choice without thinking, with the form of an answer told.
        view: likewise; what is shown of a case. None: "volume".
        conditions: likewise; None: all that the audit has.
        split: of the data set; None: "test".
        max_new_tokens: told to the policy; None: 256.
        seed: of what is drawn; None: 0.
        overrides: changed keys of the recipe, as in `run`.
        stage: of the recipe, which one asks: "05-audit", or its number; empty: the last.
        limit: cases per data entry; 0: all.
        out: where runs lie.

    Raises:
        RecipeError: if data or task cannot be asked about so.
        RunError: if the policy fails, or does not return as many texts as it was asked questions.
    """
    if not callable(policy):
        raise TypeError(f"policy: must be a function from questions to texts, got {policy!r}.")
    if limit < 0:
        raise ValueError(f"limit: must be 0 or more cases, got {limit}.")
    given: dict[str, Any] = {
        "dataset": dataset, "task": task, "view": view, "conditions": conditions, "split": split,
        "max_new_tokens": max_new_tokens, "seed": seed,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    if recipe is None and dataset is None:
        raise TypeError("what is asked is not told: give a dataset, or a recipe.")
    if recipe is not None and given:
        raise TypeError(f"the recipe says what is asked. Leave out {', '.join(given)}, or use overrides.")
    asked = _recipe({**_DEFAULTS, **given}) if recipe is None else recipe
    _, assembly, audited = audit_alone(given_recipe(asked, overrides), stage, limit)
    who = f"Python function {getattr(policy, '__qualname__', type(policy).__qualname__)}"
    with stop_request.installed():
        folder, _ = write_alone(assembly, audited, Path(out), who, policy=CalledPolicy(policy))
    write_pages(folder.path)
    return Run(folder.path)


def _recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe of one audit. Its model is never built: a recipe must name one."""
    task = _table(given["task"])
    name = str(task.get("use", "task")).rpartition("/")[2]
    data = [{"dataset": "cases", "task": name, "split": given["split"]}]
    audit = {"kind": "audit", "data": data, "max_new_tokens": given["max_new_tokens"]}
    if "conditions" in given:
        audit["conditions"] = [_table(item) for item in given["conditions"]]
    return {
        "schema": 1, "name": "audit", "seed": given["seed"], "dataset": {"cases": _table(given["dataset"])},
        "task": {name: task},
        "model": {
            "language": {"id": "none/a-python-function", "revision": "none"},
            "encoder": {"use": "published-vision"}, "bridge": {"use": "published-tokens"},
            "view": _table(given["view"]),
        },
        "stage": [audit],
    }  # fmt: skip


def _table(component: Table) -> Mapping[str, Any]:
    return {"use": component} if isinstance(component, str) else component
