"""One process or many: `accelerate launch -m evidcore run …` starts the same program several times.

The first process owns the run folder; stages that train run in all of them, the others in the first alone.
"""

from __future__ import annotations

import datetime
import functools
import os
from typing import TypeVar

Value = TypeVar("Value")
_PATIENCE = datetime.timedelta(days=7)  # the others wait this long while the first one measures


class Processes:
    """This process among those of the run."""

    def __init__(self) -> None:
        """Join the others, where the launcher says that there are some."""
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = 0
        if self.count > 1:
            from accelerate import PartialState

            self.rank = int(PartialState(timeout=_PATIENCE).process_index)

    @property
    def is_first(self) -> bool:
        """Tell whether this process owns the run folder."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()

    def share(self, value: Value) -> Value:
        """Return the first process's value in all of them."""
        if self.count > 1:
            from accelerate.utils import broadcast_object_list

            held = [value]
            broadcast_object_list(held, from_process=0)
            return held[0]
        return value


@functools.cache
def processes() -> Processes:
    """Return this process among those of the run."""
    return Processes()
