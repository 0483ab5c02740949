"""One process or many: a launcher such as `accelerate launch -m evidcore run …` starts several.

The first process owns the run folder; stages that train run in all of them, the others in the first, for
which the rest answer their share of the questions (`shared_policy`).
Without GPUs, `python -m torch.distributed.run --nproc_per_node 2 -m evidcore run …` does the same; there,
accelerate's own launcher starts a single process.
"""

import contextlib
import datetime
import functools
import os
import random
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed

Value = TypeVar("Value")
_PATIENCE = datetime.timedelta(days=7)  # the others wait this long while the first one measures


class Processes:
    """This process among those of the run."""

    def __init__(self) -> None:
        """Join the others, where the launcher says that there are some."""
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ["RANK"]) if self.count > 1 else 0
        if self.count > 1:
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            else:
                os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # or each trainer stays alone
            if not distributed.is_initialized():
                backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
                distributed.init_process_group(backend)
            group: Any = distributed.new_group(backend="gloo", timeout=_PATIENCE)
            self._patient: distributed.ProcessGroup = group

    @property
    def is_first(self) -> bool:
        """Tell whether this process owns the run folder."""
        return self.rank == 0

    def block(self, size: int) -> slice:
        """Return which of `size` things in a row are this process's; the shares follow each other."""
        first, end = (-(-size * rank // self.count) for rank in (self.rank, self.rank + 1))
        return slice(first, end)

    def wait(self) -> None:
        """Go on when all have come here."""
        if self.count > 1:
            distributed.barrier(group=self._patient)

    def share(self, value: Value) -> Value:
        """Return the first process's value in all of them."""
        if self.count == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0, group=self._patient, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """Return everyone's value in the first process, by rank, and none in the others."""
        if self.count == 1:
            return [value]
        values: Any = [None] * self.count if self.is_first else None
        distributed.gather_object(value, values, dst=0, group=self._patient)
        return values or []


def pin_threads(count: int) -> None:
    """Have PyTorch take so many threads, which decide the last digits of its sums; 0 leaves it alone."""
    if count:
        torch.set_num_threads(count)


@contextlib.contextmanager
def rng_preserved() -> Iterator[None]:
    """Give back the state of every generator that training draws from."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


processes = functools.cache(Processes)
