"""Rollout `entropy-regrounding`: look again from where the model was unsure where to look."""

import hashlib
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated

from annotated_types import Ge, Le

from evidcore.api import Episode, Tool
from evidcore.contracts import Sampler
from evidcore_plugin_medvr.rollout import OPEN, ToolCall


class EntropyRegrounding(ToolCall):
    """Fork answers at the coordinates of a call, more often the less sure the model was of them.

    A share of a group's answers is sampled from the prompt. Where one of them calls a tool with a box, it may
    be forked just before the first coordinate: the fork draws other coordinates, and goes on from there.

        P(fork) = clip(base_probability + gamma · dH, 0, 1)    where dH = H(coordinates) - H(beginning) > 0

    `H(beginning)` is the mean entropy of the first tokens of the answer. `H(coordinates)` is the largest mean
    entropy of a window of tokens between the brackets of the box, each divided by the logarithm of the
    vocabulary. A call is forked once at most, while the group has forks left; what is left in the end is
    sampled from the prompt. Coins are hashes of what was drawn, so that a resumed run forks alike.

    With `base_share = 1` it samples what `tool-call` samples.

    Args:
        tools: as for `tool-call`.
        max_tool_calls: as for `tool-call`.
        spelling: as for `tool-call`.
        show_tools: as for `tool-call`.
        base_share: share of a group's answers that is sampled from the prompt; at least one is.
        base_probability: P(fork) where the coordinates are as unsure as the beginning.
        gamma: how much it grows with dH; 0 forks at random.
        gate: fork only where dH is above 0.
        beginning_tokens: how many tokens the beginning has.
        window_tokens: how many tokens a window has; 0: all coordinates are one.
        normalize: divide entropies by the logarithm of the vocabulary; without it they are in nats.

    Source:
        Jiang et al. 2026, MedVR, arXiv:2604.08203. The share, the law and gamma are the paper's; base
        probability and windows are not published, and follow ARPO (github dongguanting/ARPO @e257337).
    """

    reads_entropies = True

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        max_tool_calls: Annotated[int, Ge(0)] = 2,
        spelling: Mapping[str, str] | None = None,
        show_tools: bool = True,
        base_share: Annotated[float, Ge(0), Le(1)] = 0.5,
        base_probability: Annotated[float, Ge(0), Le(1)] = 0.5,
        gamma: Annotated[float, Ge(0)] = 0.5,
        gate: bool = True,
        beginning_tokens: Annotated[int, Ge(1)] = 20,
        window_tokens: Annotated[int, Ge(0)] = 8,
        normalize: bool = True,
    ) -> None:
        super().__init__(tools, max_tool_calls=max_tool_calls, spelling=spelling, show_tools=show_tools)
        self.base_share, self.base_probability = base_share, base_probability
        self.gamma, self.gate = gamma, gate
        self.beginning_tokens, self.window_tokens, self.normalize = beginning_tokens, window_tokens, normalize

    def _sampled_first(self, answers_per_prompt: int) -> int:
        """Return the share of a group, one at least."""
        return max(1, math.floor(self.base_share * answers_per_prompt))

    def probability(self, sampler: Sampler, episode: Episode, start: int, stop: int) -> float:
        """Return how likely an episode is forked at coordinates that are its tokens `start` to `stop`."""
        own = episode.entropies[start:stop]
        width = min(self.window_tokens or len(own), len(own))
        windows = [fmean(own[at : at + width]) for at in range(len(own) - width + 1)]
        rise = max(windows) - fmean(episode.entropies[: self.beginning_tokens])
        if self.normalize:
            rise /= math.log(sampler.vocabulary)
        if self.gate and rise <= 0:
            return 0.0
        return min(1.0, max(0.0, self.base_probability + self.gamma * rise))

    def _forked(self, sampler: Sampler, episode: Episode) -> Episode | None:
        """Return a fork of an episode that pauses behind a call, None where the coin says no."""
        place = self.coordinates(sampler, episode)
        if place is None:
            return None
        # what was drawn decides: a number from 0 to below 1
        drawn = hashlib.blake2b(f"{episode.prompt.id}/{episode.ids}".encode(), digest_size=7).digest()
        coin = int.from_bytes(drawn, "big") / 2**56
        return sampler.fork(episode, place[0]) if coin < self.probability(sampler, episode, *place) else None

    def coordinates(self, sampler: Sampler, episode: Episode) -> tuple[int, int] | None:
        """Return the tokens of the last call's first list of numbers, from its first to behind its last."""
        begin = episode.replies[-1].stop if episode.replies else 0
        text = sampler.text(episode)
        call = text.rfind(OPEN)
        result = None if call < 0 else re.compile(r"\[\s*(-?\d[^\[\]]*)\]").search(text, call)
        if result is None:
            return None
        ids = episode.ids[begin:]
        start, stop = (  # the tokens that write these characters of the turn
            begin + bisect_right(range(len(ids)), at, key=lambda token: len(sampler.decode(ids[: token + 1])))
            for at in result.span(1)
        )
        return start, max(stop, start + 1)
