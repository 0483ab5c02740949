"""Segmenter `medsam2`: prompts on slices to 3D masks by a frozen MedSAM2."""

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge

from evidcore.api import Cache, Segmenter, VolumeRef
from evidcore.compute.loading import device_of
from evidcore.data.content import volume_key
from evidcore.errors import RecipeError
from evidcore_plugin_medsam2.network import Network
from evidcore_plugin_medsam2.session import Arbitrary, Session
from evidcore_plugin_medsam2.tracking import Propagate
from evidcore_plugin_medsam2.weights import Source

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
