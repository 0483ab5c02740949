"""Where a step's time goes: parts around what transformers and trl call, and the encoder's own part."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from torch import nn
from transformers import TrainerCallback

P = ParamSpec("P")
R = TypeVar("R")


def timed(part: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count a trainer's method as a part of its `clock`."""

    def wrap(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with cast(Any, args[0]).clock.part(part):
                return method(*args, **kwargs)

        return run

    return wrap


class StepPart(TrainerCallback):  # type: ignore[misc]
    """Opens and closes a trainer's `step_part`."""

    def __init__(self, trainer: Any) -> None:
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
def encoding_counted(trainer: Any, encoder: nn.Module) -> Iterator[None]:
    """Count the passes of a frozen encoder as the part `encode`; those of a trained one are the model's."""
    if any(weight.requires_grad for weight in encoder.parameters()):
        yield
        return
    opening = encoder.register_forward_pre_hook(lambda *_: trainer.clock.enter("encode"))
    closing = encoder.register_forward_hook(lambda *_: trainer.clock.leave(), always_call=True)
    with opening, closing:
        yield
