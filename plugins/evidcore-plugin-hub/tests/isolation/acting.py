"""A package that acts where it is loaded. In a process with the variables of the run it leaves a trace."""

import os
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le
from pydantic import AfterValidator

import evidcore.reward
from evidcore.case import Score
from evidcore.contracts import Reward, Scorer

VERSION = "2"
evidcore.reward.patched = True
if "ACTING_TRACE" in os.environ:
    Path(os.environ["ACTING_TRACE"]).write_text(os.environ["HF_TOKEN"])


def even(value: int) -> int:
    if value % 2:
        raise ValueError("is odd")
    return value


class Equal(Scorer):
    """Compares."""

    detects_negation = False

    def __init__(self, *, power: int = 1) -> None: ...

    def __call__(self, candidates, references, questions=None):
        return [float(one == other) for one, other in zip(candidates, references, strict=True)]


class Acting(Reward):
    """Pays for the version of its package."""

    audit_exemption = "it pays one sum for everything"

    def __init__(
        self, *, share: Annotated[float, Ge(0), Le(1)] = 0.5, pairs: Annotated[int, AfterValidator(even)] = 2,
        scorer: Scorer = {"use": "acting-scorer"},  # noqa: B006
    ) -> None:  # fmt: skip
        """Take a share."""

    def __call__(self, rollouts, earlier):
        return [Score(value=0.0, reason=VERSION) for _ in rollouts]
