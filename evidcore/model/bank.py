"""Encoder input and frozen-encoder features by content handle: trainers move 8 bytes, not volumes."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from safetensors import torch as safetensors
from torch import Tensor

from evidcore.cache import Cache
from evidcore.case import Crop
from evidcore.contracts import Encoder, EncoderInput, Grid, Patches
from evidcore.data import content_key
from evidcore.data.prefetch import Prefetched, thread_count
from evidcore.data.preparation import prepare
from evidcore.errors import RunError
from evidcore.model.parts import evaluating, multiplied

Precision = Literal["float32", "float16"]
VOLUMES_PER_PASS = 8
PREFETCH_BYTES = 1 << 30  # bound on encoder input that is prepared before it is asked for
LAYOUT = 5  # raise whenever files on disk hold something else


class FeatureBank:
    """Resolve handles of crops to the encoder's features of them.

    Features are kept while the encoder's weights stay as they are: in memory up to `memory_bytes`, the least
    recently used leave first, and in `cache` where one is given. An encoder that is being trained is run
    each time.
    """

    def __init__(
        self,
        spec: EncoderInput,
        *,
        precision: Precision = "float32",
        memory_bytes: int = 1 << 30,
        cache: Cache | None = None,
        made_by: Callable[[Encoder], object] = type,
    ) -> None:
        """Start empty; "float16" halves and rounds features. `cache` keeps them, by weights and `made_by`."""
        self.spec = spec
        self.dtype = getattr(torch, precision)
        self.memory_bytes = memory_bytes
        self._cache, self._made_by = cache, made_by
        self._digest, self._began_s = "", 0.0  # of the weights; since when they have been followed
        self.encoded = 0  # volumes that went through the encoder
        self._crops: dict[int, tuple[Crop, Grid]] = {}
        self._kept: OrderedDict[int, Patches] = OrderedDict()
        self._prefetched: Prefetched[int, Tensor] = Prefetched()
        self._bytes = 0
        self._encoder: tuple[tuple[int, int], ...] = ()  # whose features are kept: weights, their versions

    def handle(self, crop: Crop, size_zyx: Grid) -> int:
        """Return the content handle (63 bits) of `crop` at `size_zyx` voxels, and remember the crop."""
        key = content_key(crop, self.spec, size_zyx)
        self._crops.setdefault(key, (crop, size_zyx))
        return key

    def crop(self, handle: int) -> Crop:
        """Return what `handle` stands for."""
        return self._lookup(handle)[0]

    def size_zyx(self, handle: int) -> Grid:
        """Return the voxel size at which the encoder is given what `handle` stands for."""
        return self._lookup(handle)[1]

    def handles(self) -> list[int]:
        """Return all handles that were made."""
        return list(self._crops)

    def forget(self, handles: Collection[int]) -> None:
        """Forget handles and their features in memory."""
        for handle in handles:
            self._prefetched.drop(handle)
            del self._crops[handle]
            cached = self._kept.pop(handle, None)
            self._bytes -= cached.features.nbytes if cached else 0

    def prefetch(self, handle: int) -> None:
        """Begin to prepare, in another thread, what the encoder will be given soon.

        What cannot be read is told where it is asked for.
        """
        if handle not in self._kept and not (self._cache and self._cache.path(self._key(handle)).exists()):
            bytes_each = 4 * self.spec.channels * math.prod(self.size_zyx(handle))
            self._prefetched.begin(handle, self._prepare, handle, most=PREFETCH_BYTES // bytes_each)

    def pixels(self, handles: Sequence[int]) -> Float[Tensor, "volume channel z y x"]:
        """Return encoder input for handles of one size."""
        return torch.stack(list(self._prepared(handles)))

    def patches(
        self, handles: Sequence[int], encoder: Encoder, *, live: bool = False
    ) -> list[tuple[list[int], Patches]]:
        """Return the encoder's output for distinct handles, in batches of one patch grid each.

        A `live` encoder is being trained: it runs on all, with gradients, and nothing is kept.
        """
        device = next(encoder.parameters()).device
        if live:
            by_size: dict[Grid, list[int]] = {}
            for handle in handles:
                by_size.setdefault(self._lookup(handle)[1], []).append(handle)
            self.encoded += len(handles)
            with multiplied(encoder):
                return [(group, encoder(self.pixels(group).to(device))) for group in by_size.values()]
        self._follow(encoder)
        result = self._gather(handles, encoder, device)
        by_grid: dict[Grid, list[int]] = {}
        for handle in handles:
            by_grid.setdefault(result[handle].grid_zyx, []).append(handle)
        weight = torch.promote_types(next(encoder.parameters()).dtype, torch.float32)
        return [
            (
                group,
                Patches(
                    torch.cat([result[handle].features for handle in group]).to(device, weight),
                    grid,
                    result[group[0]].centres_mm.to(device),
                ),
            )
            for grid, group in by_grid.items()
        ]

    def clear(self) -> None:
        """Forget all features in memory; handles stay."""
        self._kept.clear()
        self._bytes = 0

    def __deepcopy__(self, memo: dict[int, object]) -> FeatureBank:
        """Stay shared: a copy of a model, such as a KL reference, looks at the same volumes."""
        return self

    def _lookup(self, handle: int) -> tuple[Crop, Grid]:
        if handle not in self._crops:
            raise RunError(
                f"image handle {handle} is not known in this process; images must pass through the processor "
                "of this model, in the process that uses them."
            )
        return self._crops[handle]

    def _prepared(self, handles: Sequence[int]) -> Iterator[Float[Tensor, "channel z y x"]]:
        """Yield encoder input for each handle; the next ones are prepared meanwhile."""
        for place, handle in enumerate(handles):
            for item in handles[place : place + 2 * thread_count()]:
                self._prefetched.begin(item, self._prepare, item)
            yield self._prefetched.take(handle, self._prepare, handle)

    def _prepare(self, handle: int) -> Float[Tensor, "channel z y x"]:
        crop, size_zyx = self._lookup(handle)
        return prepare(crop, self.spec, size_zyx, handle)

    def _follow(self, encoder: Encoder) -> None:
        """Forget features of other weights."""
        # every in-place change of a tensor raises its version: an optimiser step, a loaded checkpoint
        weights = [*encoder.parameters(), *encoder.buffers()]
        now = tuple((id(weight), weight._version) for weight in weights)
        if self._encoder == now:
            return
        self.clear()
        self._encoder = now
        if self._cache is not None:
            made_by = f"{LAYOUT} {self._made_by(encoder)} {self.dtype}"
            digest = hashlib.blake2b(made_by.encode(), digest_size=12)
            for weight in weights:
                digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            self._digest, self._began_s = digest.hexdigest(), time.time()

    @torch.no_grad()
    def _gather(self, handles: Sequence[int], encoder: Encoder, device: torch.device) -> dict[int, Patches]:
        """Return features for all handles: from memory, from disk, or encoded now."""
        result: dict[int, Patches] = {}
        missing: dict[Grid, list[int]] = {}
        for handle in handles:
            cached = self._kept.get(handle)
            if cached is not None:
                self._kept.move_to_end(handle)
            elif (cached := self._read(handle)) is not None:
                self._keep(handle, cached)
            if cached is None:
                missing.setdefault(self._lookup(handle)[1], []).append(handle)
            else:
                self._prefetched.drop(handle)
                result[handle] = cached
        with evaluating(encoder):
            for group in missing.values():
                prepared = self._prepared(group)
                for start in range(0, len(group), VOLUMES_PER_PASS):
                    some = group[start : start + VOLUMES_PER_PASS]
                    # a lone volume is summed in another order than one among others: give it company, or a
                    # feature would depend on what happened to be kept already
                    pixels = torch.stack(list(itertools.islice(prepared, len(some)))).to(device)
                    if len(some) == 1 and not encoder.is_batch_invariant:
                        pixels = torch.cat([pixels, pixels])
                    output = encoder(pixels)
                    self.encoded += len(some)
                    features = output.features.to("cpu", self.dtype)
                    centres = output.centres_mm.to("cpu")
                    for handle, item in zip(some, features[: len(some)].split(1), strict=True):
                        result[handle] = Patches(item.clone(), output.grid_zyx, centres)
                        self._keep(handle, result[handle])
                        self._write(handle, result[handle])
        return result

    def _key(self, handle: int) -> str:
        return f"{self._digest}-{handle:016x}"

    def _read(self, handle: int) -> Patches | None:
        content = None if self._cache is None else self._cache.get(self._key(handle))
        if content is None:
            return None
        stored = safetensors.load(content)
        z, y, x = stored["grid_zyx"].tolist()
        return Patches(stored["features"], (z, y, x), stored["centres_mm"])

    def _write(self, handle: int, patches: Patches) -> None:
        if self._cache is None:
            return
        content = safetensors.save({
            "features": patches.features.contiguous(),
            "grid_zyx": torch.tensor(patches.grid_zyx),
            "centres_mm": patches.centres_mm.contiguous(),
        })
        # where the set does not fit its first part stays: an epoch would find none of what the last one wrote
        self._cache.put(self._key(handle), content, keep_newer_than=self._began_s)

    def _keep(self, handle: int, patches: Patches) -> None:
        size = patches.features.nbytes
        while self._kept and self._bytes + size > self.memory_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.features.nbytes
        if size <= self.memory_bytes:
            self._kept[handle] = patches
            self._bytes += size
