"""General rewards: format, choice-accuracy, and random as a control."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Le

from evidcore.case import Rollout, Score, Verdict
from evidcore.contracts import Reward

Scores = Sequence[Score | None]


class Format(Reward):
    """1 where the answer keeps its task's strict format, 0 with the reason where it does not."""

    judges = frozenset({"format"})

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Scores:
        return [
            Score(value=float(rollout.answer.malformed is None), reason=rollout.answer.malformed or "")
            for rollout in rollouts
        ]


class ChoiceAccuracy(Reward):
    """1 where the letter is the right one. Letter is compared with letter; other tasks are not applicable.

    Args:
        reading: "strict" gives a malformed answer 0; "lenient" takes the letter a tolerant reader finds.
    """

    judges = frozenset({"correctness"})

    def __init__(self, *, reading: Literal["strict", "lenient"] = "strict") -> None:
        self.reading = reading
        self.declared = {"malformed": "reads leniently, as it is asked to"} if reading == "lenient" else {}

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Scores:
        return [self._judge(rollout) for rollout in rollouts]

    def _judge(self, rollout: Rollout) -> Score | None:
        right = rollout.prompt.reference.get("letter")
        if right is None:
            return None
        answer = rollout.answer
        letter = answer.choice if self.reading == "strict" else answer.lenient_choice
        if letter is None:
            return Score(value=0.0, reason=answer.malformed or "no letter found")
        return Score(value=float(letter == right), reason=f"answered {letter}, right is {right}")


class Random(Reward):
    """A coin that knows nothing of the volume: the control that shows what training by itself moves.

    The toss depends on the seed, the prompt and the text alone, so a resumed run tosses the same.

    Args:
        seed: another seed is another coin.
        probability: how often it says 1.
    """

    judges = frozenset()

    def __init__(self, *, seed: int = 0, probability: Annotated[float, Ge(0), Le(1)] = 0.5) -> None:
        self.seed = seed
        self.probability = probability

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]) -> Scores:
        return [Score(value=self._toss(rollout)) for rollout in rollouts]

    def _toss(self, rollout: Rollout) -> float:
        key = f"{self.seed}\x1f{rollout.prompt.id}\x1f{rollout.text}".encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        return float(number < self.probability * 2**64)
