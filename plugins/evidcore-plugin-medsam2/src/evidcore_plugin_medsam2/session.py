"""A session on one volume: slices are encoded once, prompts answered once."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from evidcore.api import Cache, DataError, VolumeRef
from evidcore.contracts import MaskRequest, SegmenterPrompt, SegmenterSession
from evidcore.data.cached_volume import CachedVolume
from evidcore_plugin_medsam2.kept import Kept
from evidcore_plugin_medsam2.network import Network, View, stacked
from evidcore_plugin_medsam2.pixels import Greys, greys, pixels, to_slice
from evidcore_plugin_medsam2.tracking import Propagate, Target, Tracker

Arbitrary = Literal["percentiles", "bytes"]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Packed = np.ndarray[Any, np.dtype[np.uint8]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a volume is shown and its objects are tracked; see `MedSam2`."""

    window_hu: tuple[float, float]
    arbitrary: Arbitrary
    propagate: Propagate
    features_in: torch.dtype
    rows_per_pass: int
    slices_per_pass: int


class Session(SegmenterSession):
    """MedSAM2 that looks at one volume, slice by slice as they are needed."""

    def __init__(
        self,
        network: Network,
        volume: CachedVolume,
        key: str,
        kept: Kept,
        files: Cache | None,
        lock: threading.Lock,
        settings: Settings,
    ) -> None:
        """Take what it shares with the other sessions.

        Args:
            network: the model.
            volume: whose slices are read when they are needed.
            key: names what is shown: the volume's content, and for `files` the window and the weights.
            kept: what was computed before, for any volume.
            files: features of any volume on disk.
            lock: held while something is computed or kept.
            settings: of the component.
        """
        self.volume, self.settings = volume, settings
        self._network, self._key, self._lock = network, key, lock
        self._kept, self._files = kept, files
        self._ends: tuple[float, float] | None = None
        _, height, width = volume.geometry.shape_zyx
        self.tracker = Tracker(
            network,
            self.look,
            (height, width),
            propagate=settings.propagate,
            rows_per_pass=settings.rows_per_pass,
        )

    @property
    def ref(self) -> VolumeRef:
        """The volume."""
        return self.volume.ref

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
            self.refuse_unusable(request.prompts, request.z_window, shape, self.ref.path)
            start, stop = request.z_window or (0, shape[0])  # a clip of its own, as released
            asked.append([Target(prompt=item, start=start, stop=stop) for item in request.prompts])
        with self._lock:
            result = self._found(dict.fromkeys(itertools.chain.from_iterable(asked)))
        masks = []
        for targets in asked:
            mask = np.zeros(shape, dtype=np.bool_)
            for target in targets:
                part = mask[target.start : target.stop]
                part |= _unpacked(result[target], part.shape)
            masks.append(mask)
        return masks

    def _found(self, targets: Iterable[Target]) -> dict[Target, Packed]:
        """Return the mask of each object in its window, as bits."""
        result = {target: self._kept.get((self._key, target.key())) for target in targets}
        new = [target for target, known in result.items() if known is None]
        shape_yx = self.volume.geometry.shape_zyx[1:]
        for target, logits in zip(new, self.tracker.track(new), strict=True):
            packed = np.packbits(np.concatenate([
                to_slice(low[None], shape_yx).numpy().reshape(-1) for low in logits
            ]))  # fmt: skip
            result[target] = packed
            self._kept.put((self._key, target.key()), packed, packed.nbytes)
        return {target: packed for target, packed in result.items() if packed is not None}

    def look(self, slices: Sequence[int]) -> View:
        """Return what the encoder sees in slices, a row each; only what is new is encoded."""
        known = {z: self._known(z) for z in slices}
        views = {z: view for z, view in known.items() if view is not None}
        new = [z for z in known if z not in views]
        for start in range(0, len(new), self.settings.slices_per_pass):
            part = new[start : start + self.settings.slices_per_pass]
            shown = [pixels(self._greys(z), self._network.size_px) for z in part]
            seen = self._network.encode(torch.stack(shown))
            for row, z in enumerate(part):
                own = seen.rows(slice(row, row + 1)).to(self._network.device, self.settings.features_in)
                view = View(**{
                    name: part.clone() for name, part in vars(own).items()
                })  # not the pass's memory
                views[z] = view
                self._kept.put((self._key, z), view, view.size_bytes)
                if self._files is not None:
                    self._files.put(f"{self._key}-{z}", view.written())
        rows = stacked([views[z] for z in slices])
        return rows.to(self._network.device, self._network.real)

    def _known(self, z: int) -> View | None:
        """Return what was seen of a slice before, in memory or in a file."""
        view: View | None = self._kept.get((self._key, z))
        if view is None and self._files is not None:
            content = self._files.get(f"{self._key}-{z}")
            if content is not None:
                view = View.read(content).to(self._network.device, self.settings.features_in)
                self._kept.put((self._key, z), view, view.size_bytes)
        return view

    def _greys(self, z: int) -> Greys:
        """Return a slice in the greys of the window."""
        plane = self.volume.slice(z)
        if self.ref.intensity == "hu":
            return greys(plane, *self.settings.window_hu)
        if self.settings.arbitrary == "percentiles":
            if self._ends is None:
                self._ends = self.volume.intensities.percentile_ends
            low, high = self._ends
            return greys(plane, low, high if high > low else low + 1)
        if plane.min() < 0 or plane.max() > 255:
            raise DataError(
                f"{self.ref.path}: slice {z} has values from {plane.min():g} to {plane.max():g}, and "
                f"arbitrary = 'bytes' takes 0 to 255. Write arbitrary = 'percentiles'."
            )
        return greys(plane, 0, 255)


def _unpacked(packed: Packed, shape: tuple[int, ...]) -> Mask:
    """Return a mask from its bits."""
    return np.unpackbits(packed, count=int(np.prod(shape))).reshape(shape).view(np.bool_)
