"""What writes the answers of rollouts: an engine continues rows, wherever it runs."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from evidcore.contracts.answering import RolloutStrategy
    from evidcore.contracts.stage import Workload


@dataclasses.dataclass(frozen=True)
class Prefix:
    """What a row continues: tokens, and the handles of the images among them."""

    ids: tuple[int, ...]
    handles: tuple[int, ...] = ()
    prompt: Prefix | None = None  # what it begins with, where the row has written since


@dataclasses.dataclass(frozen=True)
class Continuation:
    """What a row wrote."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]  # of each token as it was sampled; in this process before top-k and the like
    ended: bool  # with an end token
    entropies: tuple[float, ...] = ()  # in nats before each token, of the same distribution; where asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    max_new_tokens: int
    end_ids: tuple[int, ...]
    pad_id: int
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    forbidden_ids: tuple[int, ...] = ()  # image tokens: they would stand for images that are not there


class Rows(Protocol):
    """What continues rows, with the weights of one step."""

    def __call__(
        self, prefixes: Sequence[Prefix], sampling: Sampling, *, seeds: Sequence[int], entropies: bool = False
    ) -> list[Continuation]:
        """Continue each prefix to an end token, a stop text or `max_new_tokens`; each by its seed."""


class Engine(ABC):
    """Kind `sampler`: what writes the answers of rollouts.

    A strategy never sees it: budgets, tools' turns and forks are the same whatever engine runs. Each process
    of a run has its own.
    """

    is_policy: ClassVar[bool] = False  # its passes are the trained model's own: there is nothing to correct
    gives_entropies: ClassVar[bool] = False  # with what rows wrote

    def refusals(self, workload: Workload, strategy: RolloutStrategy) -> Sequence[str]:
        """Say what a stage asks for that it cannot do, before anything runs; empty: nothing."""
        if strategy.reads_entropies and not self.gives_entropies:
            return ("the rollout reads entropies of tokens, which it does not give.",)
        return ()

    @abstractmethod
    def begin(self, model: Any, processor: Any, stop_texts: Sequence[str]) -> Rows:
        """Take the weights as they are now, and return what continues rows with them.

        It is called before each step's answers, in every process.

        Args:
            model: a VolumeVLM in evaluation mode.
            processor: its processor.
            stop_texts: rows pause behind one.
        """
