"""A reward, a scorer and a reader that are asked in a process of their own."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import TypeAdapter

from evidcore.case import Rollout, Score, Unscored, Verdict
from evidcore.contracts import KINDS, Checked, ImageQuestion, Reader, Reward, Scorer
from evidcore.errors import ContractError
from evidcore.registry import Offer
from evidcore_plugin_hub.isolation.limits import CROSSING, limits_of
from evidcore_plugin_hub.isolation.process import IsolatedProcess

Number = int | float


@dataclasses.dataclass
class _Score:
    value: Number
    parts: dict[str, Number]
    reason: str


@dataclasses.dataclass
class _Unscored:
    kind: Literal["not-applicable", "failed"]
    reason: str


_NOTHING: TypeAdapter[Any] = TypeAdapter(Any)
_VERDICTS: TypeAdapter[Any] = TypeAdapter(list[_Score | _Unscored | None])
_CHECKED = TypeAdapter(list[Checked])
_NUMBERS = TypeAdapter(list[Number | None])
_TEXTS = TypeAdapter(list[str | None])


class _Isolated:
    """What the three share: the process, and what the component says of itself."""

    def __init__(self, process: IsolatedProcess) -> None:
        self._process = process
        vars(self).update(process.start())

    def ready(self) -> None:
        """Ask the component whether anything is missing."""
        self._process.ask("ready", _NOTHING)

    def _each(self, form: TypeAdapter[Any], count: int, *given: Any) -> Any:
        """Return what it gives, one each."""
        found = self._process.ask("__call__", form, *given)
        if len(found) != count:
            raise ContractError(f"{self._process.offer} gave {len(found)} answers to {count}.")
        return found


class IsolatedReward(_Isolated, Reward):
    """A reward in a process of its own."""

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Have it judge; what calls it counts the verdicts and holds them to its bounds."""
        found = self._process.ask("__call__", _VERDICTS, rollouts, earlier)
        return [one and (Score if isinstance(one, _Score) else Unscored)(**vars(one)) for one in found]

    def checks(self, gold: Sequence[Rollout]) -> Sequence[Checked]:
        """Return what it tells of itself."""
        found: list[Checked] = self._process.ask("checks", _CHECKED, gold)
        return found


class IsolatedScorer(_Isolated, Scorer):
    """A scorer in a process of its own."""

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Have it compare."""
        found: list[float | None] = self._each(_NUMBERS, len(candidates), candidates, references, questions)
        return found


class IsolatedReader(_Isolated, Reader):
    """A reader in a process of its own."""

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Have it read."""
        found: list[str | None] = self._each(_TEXTS, len(questions), questions)
        return found


_KINDS: Mapping[str, type[IsolatedReward | IsolatedScorer | IsolatedReader]] = {
    "reward": IsolatedReward, "scorer": IsolatedScorer, "reader": IsolatedReader,
}  # fmt: skip


def isolate(
    offer: Offer, table: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> Reward | Scorer | Reader:
    """Return a component that is built and asked in a process of its own.

    Args:
        offer: the component.
        table: its recipe table, checked.
        given: what the core gives; what can cross is given.
        where: what messages call the table.
    """
    limits = limits_of(table["isolated"])
    bare = {key: value for key, value in table.items() if key != "isolated"}
    crossing = {name: given[name] for name in CROSSING if name in given}
    traits = {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) is typing.ClassVar else hint
        for name, hint in typing.get_type_hints(KINDS[offer.kind]).items()
    }
    return _KINDS[offer.kind](IsolatedProcess(offer, bare, crossing, where, limits, traits))
