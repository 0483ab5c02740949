"""Whether rewards take more of a stage's time than they should, said once."""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.3  # of the time of a stage's steps
STEPS = 10  # looked at before anything is said: the first ones load and fill caches
_REWARD = "reward_s/"


class SlowRewards:
    """Adds up the times of a stage's steps."""

    def __init__(self) -> None:
        """Start with nothing heard."""
        self._steps, self._step_s = 0, 0.0
        self._reward_s: dict[str, float] = {}
        self._is_told = False

    def hear(self, figures: Mapping[str, float], *, is_last: bool) -> str | None:
        """Take the figures of a step; return what is to be said, once.

        Args:
            figures: with `step_s`, and `reward_s/<name>` for each reward.
            is_last: the stage ends here, however few its steps.
        """
        self._steps += 1
        self._step_s += figures.get("step_s", 0.0)
        for name, seconds in figures.items():
            if name.startswith(_REWARD):
                reward = name.removeprefix(_REWARD)
                self._reward_s[reward] = self._reward_s.get(reward, 0.0) + seconds
        taken_s = sum(self._reward_s.values())
        if self._is_told or taken_s <= SHARE * self._step_s or not (is_last or self._steps >= STEPS):
            return None
        self._is_told = True
        slowest = max(self._reward_s, key=self._reward_s.__getitem__)
        return (
            f"rewards took {100 * taken_s / self._step_s:.0f} % of the first {self._steps} steps "
            f"({taken_s:.1f} of {self._step_s:.1f} s), most of it {slowest!r} "
            f"({self._reward_s[slowest]:.1f} s). Training waits for them: let {slowest!r} judge a group at "
            "once, keep what repeats, or take a faster service for it."
        )
