"""One token of each row as one launch of a GPU: a small batch waits for launches, not for arithmetic.

A CUDA graph repeats what it has seen, in the same places of memory. So it holds for rows that stay, and for a
number of places behind their prompts; where either ends, a step runs by itself and the next one is captured.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from evidcore.model.shared_prefix import SharedPrefix, Window, next_logits
from evidcore.model.vlm import VolumeVLM

log = logging.getLogger(__name__)

PLACES = 128  # of its own that each row attends to in one graph; the next has as many more
_refused: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models whose steps could not be captured


def can_capture(model: VolumeVLM) -> bool:
    """Tell whether steps of this model can be graphs: on a GPU, no weights gathered between its layers."""
    return (
        model.device.type == "cuda"
        and model not in _refused
        and not any(isinstance(item, FSDPModule | FullyShardedDataParallel) for item in model.modules())
        and not any(hasattr(weight, "ds_id") for weight in model.parameters())  # of ZeRO-3
    )


class StepGraph:
    """Appends tokens to the rows of a `SharedPrefix`, while these are the same rows."""

    def __init__(self, model: VolumeVLM, shared: SharedPrefix) -> None:
        self.model, self.shared = model, shared
        self.replay: Callable[[], Tensor] | None = None

    def __call__(
        self, token: Int[Tensor, " row"], position: Int[Tensor, "*axis row one"]
    ) -> Float[Tensor, "row vocabulary"]:
        """Append a token to each row; return the logits behind it, which the next call overwrites."""
        shared, window = self.shared, self.shared.window
        embeds, _ = self.model.model.embed(token[:, None])
        if window is None or shared.step >= window.stop:
            self.replay = None
            stop = min((shared.step // PLACES + 1) * PLACES, shared.own.shape[4])
            shared.window = Window(shared, stop)
            self.embeds, self.position = embeds.clone(), position.clone()
        else:
            self.embeds.copy_(embeds)
            self.position.copy_(position)
            self.replay = self.replay or self._captured()
        assert shared.window is not None
        shared.window.place.fill_(shared.step)
        logits = self._run() if self.replay is None else self.replay()
        shared.step += 1
        return logits

    def _run(self) -> Tensor:
        """Compute a step from tensors that stay where they are."""
        assert self.shared.window is not None
        self.shared.window.hide(self.shared)
        return next_logits(self.model, self.shared, self.position, inputs_embeds=self.embeds)

    def _captured(self) -> Callable[[], Tensor] | None:
        """Return the step as a graph; None where that fails, once with a word in the log."""
        if self.model in _refused:
            return None
        try:
            return captured(self._run, self.model.device)
        except torch.OutOfMemoryError:  # nothing that lies unused can be given back in a capture
            torch.cuda.empty_cache()
        except RuntimeError as error:
            _refused.add(self.model)
            log.warning("tokens are computed launch by launch, the model's step is no CUDA graph: %s", error)
        return None


def forget() -> None:
    """Give back the memory of graphs that are not used any more."""
    _pool_of.cache_clear()


def captured(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Return `run` as a CUDA graph. It has run before, so nothing is set up in the capture."""
    aside = _pool_of(device)
    generator = torch.cuda.default_generators[aside.stream.device_index]
    numbers = generator.clone_state()
    graph = torch.cuda.CUDAGraph()  # transformers' own needs a copy of the prompt for each answer
    aside.stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(aside.stream):
            graph.capture_begin(aside.memory, capture_error_mode="thread_local")  # others read volumes
            try:
                output = run()
            finally:
                graph.capture_end()
    except RuntimeError:  # what has begun with a capture is not ended by one that fails
        generator.graphsafe_set_state(numbers)  # a failed capture ends no run and moves no draw
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(aside.stream.device_index, aside.memory)
        _pool_of.cache_clear()
        raise
    torch.cuda.current_stream(device).wait_stream(aside.stream)
    aside.last = graph

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


class _CapturePool:
    """Where a device's graphs are captured: one takes the memory of the one before."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.memory = torch.cuda.graph_pool_handle()
        self.last: torch.cuda.CUDAGraph | None = None  # holds the memory


_pool_of = functools.cache(_CapturePool)
