"""What a model answered, and what a reward said to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from evidcore.case.scan import MaskRef
from evidcore.case.shown import Crop, Prompt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Box:
    """A box in voxels of the case's volume, edges as in a slice: start included, stop excluded."""

    z: int  # the axial slice it lies on
    y0: int
    y1: int
    x0: int
    x1: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an answer points at, in voxels of the source volume."""

    slice: int | None = None
    boxes: tuple[Box, ...] = ()
    mask: MaskRef | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A completion, read by its task.

    `malformed` gives the reason where the strict format does not hold; lenient fields may still be filled.
    """

    text: str  # the completion as written
    malformed: str | None = None
    think: str | None = None
    choice: str | None = None  # the letter under the strict format
    lenient_choice: str | None = None  # the letter a tolerant reader finds
    report: str | None = None
    evidence: Evidence | None = None
    value: object = None  # anything else that was read, for an evaluation or rewards that know it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action:
    """One tool call inside an episode."""

    tool: str
    arguments: Mapping[str, Any]
    error: str | None = None  # what the tool answered when the call was bad


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """A prompt and everything that followed it, as token ids.

    `loss_mask` is 1 on tokens that the model wrote and 0 on tokens that a tool gave. `crops` are pixels that
    tools added, each at the position in `ids` of its first token.
    """

    prompt: Prompt
    ids: tuple[int, ...] = ()
    loss_mask: tuple[int, ...] = ()
    crops: tuple[tuple[int, Crop], ...] = ()
    actions: tuple[Action, ...] = ()
    finished: bool = False  # the model ended its turn

    def __post_init__(self) -> None:
        """Refuse a mask that does not fit the tokens."""
        if len(self.ids) != len(self.loss_mask):
            raise ValueError(f"{len(self.ids)} tokens but {len(self.loss_mask)} loss mask entries")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """One sampled answer, ready to be judged. Rollouts of one `group` answer the same prompt."""

    prompt: Prompt
    group: int
    text: str
    answer: Answer
    actions: tuple[Action, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A reward's verdict on one rollout: the value that trains, its parts and why."""

    value: float
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unscored:
    """No verdict: not applicable, or failed. Never counted as 0."""

    kind: Literal["not-applicable", "failed"]
    reason: str


Verdict = Score | Unscored
