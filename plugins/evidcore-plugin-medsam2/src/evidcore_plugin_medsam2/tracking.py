"""Objects from the slices of their prompts through their windows, both ways with a memory of their own.

The order of events for one object: its prompt is decoded on its slice; with `propagate = "mask"` what comes
out is a mask prompt in its place; the slice is remembered; then each way starts from that memory alone. A row
is one way of one object; rows are independent, so rows of any slices and both ways go through the network
together, each step to the next slice of its way.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evidcore.api import Segmenter
from evidcore_plugin_medsam2.network import Found, Network, Remembered, View, stacked
from evidcore_plugin_medsam2.pixels import to_model, to_slice

Propagate = Literal["mask", "box"]
Item = TypeVar("Item")

ON_OBJECT, FIRST_CORNER, LAST_CORNER = 1, 2, 3  # labels of points: the prompt encoder of SAM 2.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One object: its prompt, and the slices from start to stop that it is looked for on."""

    prompt: Segmenter.SlicePrompt
    start: int
    stop: int

    def key(self) -> Hashable:
        """Return what names it without holding the mask of a prompt."""
        if not isinstance(self.prompt, Segmenter.MaskPrompt):
            return self
        bits = np.packbits(self.prompt.mask).tobytes()
        return self.prompt.z, hashlib.blake2b(bits, digest_size=16).digest(), self.start, self.stop

    def ways(self) -> list[range]:
        """Return the slices up and down from the prompt's, nearest first; none if there is none."""
        up, down = range(self.prompt.z + 1, self.stop), range(self.prompt.z - 1, self.start - 1, -1)
        return [way for way in (up, down) if way]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Row:
    """One way of one object."""

    target: int
    slices: range
    span: int  # over which pointers are dated


class Tracker:
    """Tracks objects of one volume."""

    def __init__(
        self,
        network: Network,
        look: Callable[[Sequence[int]], View],
        shape_yx: tuple[int, int],
        *,
        propagate: Propagate,
        rows_per_pass: int,
    ) -> None:
        """Track with `look`, which gives what the encoder sees in slices of `shape_yx`, a row each."""
        self.network, self.look, self.shape_yx = network, look, shape_yx
        self.propagate, self.rows_per_pass = propagate, rows_per_pass

    def track(self, targets: Sequence[Target]) -> list[Float[Tensor, "slice low_y low_x"]]:
        """Return the low-resolution logits of each object on the slices of its window."""
        with self.network.computing():
            result: list[Found] = []
            memories: list[Remembered] = []
            for part in _parts(targets, self.rows_per_pass):
                view = self.look([target.prompt.z for target in part])
                first = self._prompted(part, view)
                memory = self.network.remember(view, first, is_prompted=True)
                rows = [slice(number, number + 1) for number in range(len(part))]
                result += [first.rows(row) for row in rows]
                memories += [memory.rows(row) for row in rows]
            low_yx = result[0].logits.shape[1:] if result else (0, 0)
            logits = [torch.empty(target.stop - target.start, *low_yx) for target in targets]
            for target, first, out in zip(targets, result, logits, strict=True):
                out[target.prompt.z - target.start] = first.logits[0].float().cpu()
            most = self.network.model.config.max_object_pointers_in_encoder
            every = [
                _Row(target=number, slices=way, span=min(target.stop - target.start, most) - 1)
                for number, target in enumerate(targets)
                for way in target.ways()
            ]
            every.sort(key=lambda row: -len(row.slices))  # those still under way are always the first
            for ways in _parts(every, self.rows_per_pass):
                for step, tracked in enumerate(self._steps(ways, memories)):
                    for way, low in zip(ways, tracked.float().cpu(), strict=False):  # those still under way
                        logits[way.target][way.slices[step] - targets[way.target].start] = low
        return logits

    def _steps(
        self, rows: Sequence[_Row], memories: Sequence[Remembered]
    ) -> Iterator[Float[Tensor, "row low_y low_x"]]:
        """Yield the logits of the rows that are still under way, slice by slice."""
        network = self.network
        prompted = Remembered(
            features=torch.cat([memories[row.target].features for row in rows], dim=1),
            pointer=torch.cat([memories[row.target].pointer for row in rows]),
        )
        spans = torch.tensor([row.span for row in rows], dtype=torch.float32, device=network.device)
        passed: list[Remembered] = []
        for step in range(len(rows[0].slices)):
            going = sum(len(row.slices) > step for row in rows)
            view = self.look([row.slices[step] for row in rows[:going]])
            still = slice(going)
            passed = [item.rows(still) for item in passed]
            result = network.follow(view, prompted.rows(still), passed, spans[still])
            yield result.logits
            if step + 1 < len(rows[0].slices):
                passed.append(network.remember(view, result, is_prompted=False))
                old = len(passed) - network.memories - 1
                if old >= 0:  # of such slices only the pointers are still needed
                    passed[old] = dataclasses.replace(passed[old], features=passed[old].features[:0])

    def _prompted(self, targets: Sequence[Target], view: View) -> Found:
        """Return each object on the slice of its prompt, in the order of `targets`."""
        masks: dict[int, Bool[Tensor, "1 y x"]] = {}
        result: dict[int, Found] = {}
        # a box is two points, and a pass takes equally many of all
        for kind in (Segmenter.BoxPrompt, Segmenter.PointPrompt):
            numbers = [number for number, item in enumerate(targets) if isinstance(item.prompt, kind)]
            if not numbers:
                continue
            marks = [_points(targets[number].prompt) for number in numbers]
            height, width = self.shape_yx
            places = torch.tensor([[place for place, _ in mark] for mark in marks], dtype=torch.float32)
            places = places * self.network.size_px / torch.tensor([width, height])
            labels = torch.tensor([[label for _, label in mark] for mark in marks], dtype=torch.int32)
            some = self.network.from_points(_rows_of(view, numbers), places, labels)
            for row, number in enumerate(numbers):
                result[number] = some.rows(slice(row, row + 1))
                masks[number] = to_slice(result[number].logits, self.shape_yx)
        for number, target in enumerate(targets):
            if isinstance(target.prompt, Segmenter.MaskPrompt):
                masks[number] = torch.from_numpy(target.prompt.mask.copy())[None]
        taken = [number for number in masks if self.propagate == "mask" or number not in result]
        if taken:
            size_px, device = self.network.size_px, self.network.device
            shown = torch.cat([to_model(masks[number], size_px).to(device) for number in taken])
            some = self.network.from_masks(_rows_of(view, taken), shown)
            result |= {number: some.rows(slice(row, row + 1)) for row, number in enumerate(taken)}
        return stacked([result[number] for number in range(len(targets))])


def _points(prompt: Segmenter.SlicePrompt) -> list[tuple[tuple[int, int], int]]:
    """Return a prompt as points (x, y) with labels; corners are voxels of the box, as in training."""
    match prompt:
        case Segmenter.BoxPrompt(box=box):
            return [((box.x0, box.y0), FIRST_CORNER), ((box.x1 - 1, box.y1 - 1), LAST_CORNER)]
        case Segmenter.PointPrompt(y=y, x=x):
            return [((x, y), ON_OBJECT)]
        case Segmenter.MaskPrompt():
            raise TypeError("a mask is no points")


def _rows_of(view: View, numbers: Sequence[int]) -> View:
    if len(numbers) == len(view.coarse):
        return view
    return view.rows(torch.tensor(numbers, device=view.coarse.device))


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
