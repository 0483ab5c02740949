"""Reader `policy-reader`: the model that is being trained, or as its stage began with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from evidcore.api import Policy, Reader
from evidcore.contracts import ImageQuestion
from evidcore_plugin_emrl.model_reader import ask


class PolicyReader(Reader):
    """Ask the policy what crops show, greedily; it is told neither case nor report.

    A reader that learns with the policy may come to say what pays: `at = "start"` stays as it was.

    Args:
        at: "now", with the weights of the step; "start", with those that the stage began with, which are
            held in memory beside them.
        instruction: stands below each question, such as the form of the answer.
        max_new_tokens: of an answer.
    """

    deterministic: ClassVar[bool] = True
    costs = "the model that is trained reads every slice"

    def __init__(
        self,
        policy: Policy,
        start_policy: Policy,
        *,
        at: Literal["now", "start"] = "now",
        instruction: str = "",
        max_new_tokens: Annotated[int, Ge(1)] = 64,
    ) -> None:
        self._policy = policy if at == "now" else start_policy
        self._instruction = instruction
        self._max_new_tokens = max_new_tokens

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Ask the model, equal questions once."""
        return ask(self._policy, questions, self._instruction, self._max_new_tokens)
