"""A session on one volume: slices are encoded once, prompts answered once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from evidcore.api import DataError, VolumeRef
from evidcore.contracts import MaskRequest, SegmenterPrompt, SegmenterSession
from evidcore.data import volume_cache
from evidcore_plugin_medsam2.network import Network, View, stacked
from evidcore_plugin_medsam2.pixels import Greys, greys, pixels, to_slice
from evidcore_plugin_medsam2.tracking import Target, Tracker

if TYPE_CHECKING:
    from evidcore_plugin_medsam2.segmenter import MedSam2

GPU_ROWS, GPU_SLICES = 16, 8  # a pass on a GPU; on the CPU one at a time is as fast, and the same bits always
Arbitrary = Literal["percentiles", "bytes"]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Packed = np.ndarray[Any, np.dtype[np.uint8]]


class Session(SegmenterSession):
    """MedSAM2 that looks at one volume, slice by slice as they are needed."""

    def __init__(self, segmenter: MedSam2, network: Network, volume: VolumeRef, key: str) -> None:
        """Share the features and masks of `segmenter`; `key` names the content, and for files the options."""
        self.volume = volume_cache.get_or_put(volume)
        self._segmenter, self._network, self._key = segmenter, network, key
        self._features_in = torch.float16 if segmenter.half_features else network.real
        is_gpu = network.device.type != "cpu"
        self._slices_per_pass = GPU_SLICES if is_gpu else 1
        self._ends: tuple[float, float] | None = None
        _, height, width = self.volume.geometry.shape_zyx
        rows, propagate = GPU_ROWS if is_gpu else 1, segmenter.propagate
        self.tracker = Tracker(network, self.look, (height, width), propagate=propagate, rows_per_pass=rows)

    def mask(self, prompts: Sequence[SegmenterPrompt], z_window: tuple[int, int] | None = None) -> Mask:
        """Return the objects that are prompted, OR-ed, shape (z, y, x).

        The model is shown the window alone, as in MedVol-R1, so a wider window may change the mask within.
        """
        return self.masks([MaskRequest(prompts=tuple(prompts), z_window=z_window)])[0]

    def masks(self, requests: Sequence[MaskRequest]) -> list[Mask]:
        """Answer many requests; objects that are new, of whichever request, are tracked together."""
        shape = self.volume.geometry.shape_zyx
        asked: list[list[Target]] = []
        for request in requests:
            self.refuse_unusable(request.prompts, request.z_window, shape, self.volume.ref.path)
            start, stop = request.z_window or (0, shape[0])  # a clip of its own, as released
            prompts = self.on_slices(request.prompts)
            asked.append([Target(prompt=item, start=start, stop=stop) for item in prompts])
        with self._segmenter.lock:
            result = self._found(dict.fromkeys(itertools.chain.from_iterable(asked)))
        masks = []
        for targets in asked:
            mask = np.zeros(shape, dtype=np.bool_)
            for target in targets:
                part = mask[target.start : target.stop]
                part |= np.unpackbits(result[target], count=part.size).reshape(part.shape).view(np.bool_)
            masks.append(mask)
        return masks

    def _found(self, targets: Iterable[Target]) -> dict[Target, Packed]:
        """Return the mask of each object in its window, as bits."""
        result = {target: self._segmenter.cache.get((self._key, target.key())) for target in targets}
        new = [target for target, known in result.items() if known is None]
        shape_yx = self.volume.geometry.shape_zyx[1:]
        for target, logits in zip(new, self.tracker.track(new), strict=True):
            slices = [to_slice(low[None], shape_yx).numpy().reshape(-1) for low in logits]
            result[target] = packed = np.packbits(np.concatenate(slices))
            self._segmenter.cache.put((self._key, target.key()), packed, packed.nbytes)
        return {target: packed for target, packed in result.items() if packed is not None}

    def look(self, slices: Sequence[int]) -> View:
        """Return what the encoder sees in slices, a row each; only what is new is encoded."""
        known = {z: self._cached(z) for z in slices}
        views = {z: view for z, view in known.items() if view is not None}
        new = [z for z in known if z not in views]
        for start in range(0, len(new), self._slices_per_pass):
            part = new[start : start + self._slices_per_pass]
            shown = [pixels(self._greys(z), self._network.size_px) for z in part]
            seen = self._network.encode(torch.stack(shown))
            for row, z in enumerate(part):
                own = seen.rows(slice(row, row + 1)).to(self._network.device, self._features_in)
                # a clone, which holds no memory of the whole pass
                view = View(**{name: part.clone() for name, part in vars(own).items()})
                views[z] = view
                self._segmenter.cache.put((self._key, z), view, view.size_bytes)
                if self._segmenter.files is not None:
                    self._segmenter.files.put(f"{self._key}-{z}", view.written())
        rows = stacked([views[z] for z in slices])
        return rows.to(self._network.device, self._network.real)

    def _cached(self, z: int) -> View | None:
        """Return what was seen of a slice before, in memory or in a file."""
        view: View | None = self._segmenter.cache.get((self._key, z))
        if view is None and self._segmenter.files is not None:
            content = self._segmenter.files.get(f"{self._key}-{z}")
            if content is not None:
                view = View.read(content).to(self._network.device, self._features_in)
                self._segmenter.cache.put((self._key, z), view, view.size_bytes)
        return view

    def _greys(self, z: int) -> Greys:
        """Return a slice in the greys of the window."""
        plane = self.volume.slice(z)
        if self.volume.ref.intensity == "hu":
            return greys(plane, *self._segmenter.window_hu)
        if self._segmenter.arbitrary == "percentiles":
            if self._ends is None:
                self._ends = volume_cache.percentile_ends(self.volume.ref)
            low, high = self._ends
            return greys(plane, low, high if high > low else low + 1)
        if plane.min() < 0 or plane.max() > 255:
            why = f"slice {z} has values from {plane.min():g} to {plane.max():g}"
            remedy = "arbitrary = 'bytes' takes 0 to 255. Write arbitrary = 'percentiles'."
            raise DataError(f"{self.volume.ref.path}: {why}, and {remedy}")
        return greys(plane, 0, 255)
