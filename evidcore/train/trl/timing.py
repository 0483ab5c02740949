"""Where a step's time goes: parts around what transformers and trl call, and the encoder's own part."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from torch import nn
from transformers import Trainer, TrainerCallback

from evidcore.compute.clock import Clock, clock_for

SHARE = 0.3  # of the time of a stage's steps
STEPS = 10  # looked at before anything is said: the first ones load and fill caches
_REWARD = "reward_s/"


class SlowRewards:
    """Adds up the times of a stage's steps."""

    def __init__(self) -> None:
        self._steps, self._step_s = 0, 0.0
        self._reward_s: dict[str, float] = {}
        self._is_told = False

    def hear(self, figures: Mapping[str, float], *, is_last: bool) -> str | None:
        """Take the figures of a step; return what is to be said, once.

        Figures are `step_s`, and `reward_s/<name>` for each reward.
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


P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger(__name__)


def timed(part: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count a trainer's method as a part of its `clock`."""

    def wrap(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with cast(Any, args[0]).clock.part(part):
                return method(*args, **kwargs)

        return run

    return wrap


class TimedTrainer(Trainer):  # type: ignore[misc]
    """Has a clock, which stands in `step_part` from a step's first pass to its end; methods open others."""

    step_part: str
    clock: Clock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock = clock_for(self.args.device)
        self._slow_rewards = SlowRewards()
        self.add_callback(_StepPart(self))

    @timed("data")
    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Let transformers fetch the batches of a step."""
        return super().get_batch_samples(*args, **kwargs)

    def lap(self) -> dict[str, float]:
        """Return where the time of the step that ends here went; say once if too much of it into rewards."""
        taken = self.clock.lap()
        slow = self._slow_rewards.hear(taken, is_last=self.state.global_step == self.args.max_steps)
        if slow:
            log.warning("%s: %s", self.args.output_dir, slow)
        return taken


class _StepPart(TrainerCallback):  # type: ignore[misc]
    """Opens and closes a trainer's `step_part`."""

    def __init__(self, trainer: TimedTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Leave out what came before the first step."""
        self.trainer.clock.restart()

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Open it."""
        self.trainer.clock.enter(self.trainer.step_part)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Close it."""
        self.trainer.clock.leave()


@contextlib.contextmanager
def encoding_counted(trainer: TimedTrainer, encoder: nn.Module) -> Iterator[None]:
    """Count the passes of a frozen encoder as the part `encode`; those of a trained one are the model's."""
    if any(weight.requires_grad for weight in encoder.parameters()):
        yield
        return
    hooks = [
        encoder.register_forward_pre_hook(lambda *_: trainer.clock.enter("encode")),
        encoder.register_forward_hook(lambda *_: trainer.clock.leave(), always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
