"""Segmenter `medsam2`: prompts on slices to 3D masks by a frozen MedSAM2, and its sessions on a volume."""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge

from evidcore.api import Cache, DataError, Segmenter, VolumeRef
from evidcore.compute.loading import device_of
from evidcore.contracts import MaskRequest, SegmenterPrompt, SegmenterSession
from evidcore.data import volume_cache
from evidcore.data.content import volume_key
from evidcore.errors import RecipeError
from evidcore_plugin_medsam2.network import Network, View, stacked
from evidcore_plugin_medsam2.pixels import Greys, greys, pixels, to_slice
from evidcore_plugin_medsam2.tracking import Propagate, Target, Tracker
from evidcore_plugin_medsam2.weights import Source

GPU_ROWS, GPU_SLICES = 16, 8  # a pass on a GPU; on the CPU one at a time is as fast, and the same bits always
Arbitrary = Literal["percentiles", "bytes"]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Packed = np.ndarray[Any, np.dtype[np.uint8]]
WINDOW_HU = (-160.0, 240.0)  # level 40, width 400


class MedSam2(Segmenter):
    """Track what a box, a point or a mask shows on a slice through the slices above and below.

    Every slice is encoded once per volume and every prompt answered once per window, whoever asks; both are
    kept in memory up to `kept_gb`. On the CPU a mask is the same bits whatever else is asked with it; on a
    GPU, where objects pass together in bfloat16, a few voxels of an edge may differ.

    Args:
        file: a checkpoint in the layout of SAM 2.1, such as a copy of MedSAM2_latest.pt; relative paths start
            at the recipe.
        folder: any SAM 2.1 in transformers' format, in place of a file.
        id: a repository on the Hugging Face Hub, where neither file nor folder is named.
        revision: its commit.
        checkpoint: a file in it, in the layout of SAM 2.1; empty: it is in transformers' format.
        propagate: "mask" as in MedVol-R1: the mask that a box or point gives on its slice becomes the prompt
            that is tracked; "box": the box or point itself is.
        window_hu: what becomes black and white, in HU.
        arbitrary: how volumes without HU are shown: "percentiles", from the 0.5th to the 99.5th, or "bytes",
            values 0 to 255 as they are, for volumes that were windowed before.
        device: "auto" is the accelerator where there is one, else the CPU.
        dtype: what it computes in; "auto" is bfloat16 on a GPU, as released, and float32 on the CPU. float64
            is for comparisons: in float32 each library rounds otherwise.
        kept_gb: slices' features and masks that are kept in memory.
        on_disk: keep slices' features in the cache folder too, for other runs and processes.
        half_features: keep features in float16, which takes half the room and rounds.

    Source:
        MedSAM2, arXiv:2504.03600; github AdvancingEther/MedVol-R1 @051b20f.
    """

    audit_exemption = "MedSAM2 follows every box through the volume"

    def __init__(
        self,
        recipe_folder: Path,
        cache_folder: Path,
        *,
        file: str = "",
        folder: str = "",
        id: str = "wanglab/MedSAM2",
        revision: str = "e4a6f35edd7e091619cbc0750f462f1574e23955",
        checkpoint: str = "MedSAM2_latest.pt",
        propagate: Propagate = "mask",
        window_hu: tuple[float, float] = WINDOW_HU,
        arbitrary: Arbitrary = "percentiles",
        device: str = "auto",
        dtype: Literal["auto", "float32", "bfloat16", "float64"] = "auto",
        kept_gb: Annotated[float, Ge(0)] = 2.0,
        on_disk: bool = False,
        half_features: bool = False,
    ) -> None:
        if window_hu[0] >= window_hu[1]:
            raise RecipeError(f"medsam2: window_hu is [low, high], low below high; got {list(window_hu)}.")
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", device):
            raise RecipeError(f"medsam2: device must be auto, cpu, cuda or cuda:<number>, got {device!r}.")
        hub = {} if file or folder else {"id": id, "revision": revision, "name": checkpoint}
        self.source = Source(file=file, folder=folder, **hub)
        self._recipe_folder, self._device, self._dtype = recipe_folder, device, dtype
        self.propagate, self.window_hu, self.arbitrary = propagate, window_hu, arbitrary
        self.half_features = half_features
        self.cache = LruCache(int(kept_gb * 1e9))
        self.files = Cache("medsam2", cache_folder) if on_disk else None
        self.lock = threading.Lock()  # while something is computed or cached
        self._network: Network | None = None
        self._digest: str | None = None  # of the weights, for files

    def session(self, volume: VolumeRef) -> Session:
        """Open `volume`; the model is loaded for the first."""
        network = self.network()
        return Session(self, network, volume, self._key(volume, network))

    def network(self) -> Network:
        """Return the model, loaded when first asked for.

        Raises:
            DataError: if its weights cannot be used.
            RunError: if the device is not there.
        """
        with self.lock:
            if self._network is None:
                device = device_of(self._device, "medsam2")
                usual = "bfloat16" if device.type == "cuda" else "float32"
                dtype = getattr(torch, usual if self._dtype == "auto" else self._dtype)
                self._network = Network(self.source.load(self._recipe_folder), device, dtype)
            return self._network

    def _key(self, volume: VolumeRef, network: Network) -> str:
        """Return what names a volume as this segmenter shows and sees it."""
        key = volume_key(volume)
        if self.files is None:
            return key
        if self._digest is None:
            digest = hashlib.blake2b(digest_size=16)  # names the weights, wherever they came from
            for name, tensor in sorted(network.model.state_dict().items()):
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._digest = digest.hexdigest()
        options = (self.window_hu, self.arbitrary, self.half_features, str(network.dtype))
        return hashlib.blake2b(repr((key, self._digest, *options)).encode(), digest_size=16).hexdigest()


class LruCache:
    """A cache in memory, below a limit of bytes; the least recently used values leave first.

    A value that is larger than `most_bytes` is not cached at all.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """Return a value, None where there is none."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Cache a value; others leave for it."""
        if size_bytes > self.most_bytes:
            return
        self.bytes -= self._values.pop(key, (None, 0))[1]
        while self.bytes + size_bytes > self.most_bytes:
            self.bytes -= self._values.popitem(last=False)[1][1]
        self._values[key] = (value, size_bytes)
        self.bytes += size_bytes


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
