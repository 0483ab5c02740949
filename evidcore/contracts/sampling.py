"""What writes the answers of rollouts: an engine continues rows, wherever it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol


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
