"""A cache of volumes: uncompressed, so that a slice is read without the rest.

An entry is made when a part of a volume is first asked for, or by `evid data prepare`. Its name is the key of
the volume's content, so it is right wherever the file is and whichever process made it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.cache import Cache, CachedArray, CorruptEntry
from evidcore.case import VolumeRef
from evidcore.data.content import volume_key
from evidcore.data.grid import Array, Geometry, Volume
from evidcore.data.nifti import save_volume
from evidcore.data.pictures import colours, save_picture
from evidcore.data.reading import opened, read, read_geometry, volume_from
from evidcore.errors import DataError

LEAST_BYTES = 1 << 20  # smaller volumes are read as fast as they are looked up
PERCENTILES = (0.5, 99.5)
PERCENTILE_SAMPLE = 1_000_000  # voxels; enough for the 0.5 % tails, and quick on a whole-body scan
LAYOUT = 3  # raise whenever an entry holds something else

VOLUMES = Cache("volumes")


@dataclasses.dataclass(kw_only=True)
class CachedVolume:
    """A volume of which slices are read as they are needed."""

    ref: VolumeRef
    geometry: Geometry
    _slices: CachedArray
    _cache: VolumeCache

    @property
    def is_on_disk(self) -> bool:
        """Tell whether it is in the cache on disk; otherwise it is in memory."""
        return self._slices.is_on_disk

    @property
    def size_bytes(self) -> int:
        """Size of all its voxels."""
        return self._slices.size_bytes

    def part(self, box_zyx: tuple[int, int, int, int, int, int]) -> Array:
        """Return the voxels of a box z0, z1, y0, y1, x0, x1 as a read-only (z, y, x) view."""
        z0, z1, y0, y1, x0, x1 = box_zyx
        edges = zip(((z0, z1), (y0, y1), (x0, x1)), self.geometry.shape_zyx, strict=True)
        if any(not 0 <= start < stop <= count for (start, stop), count in edges):
            raise DataError(
                f"{self.ref.path}: the box {tuple(box_zyx)} (z0, z1, y0, y1, x0, x1) must hold voxels of "
                f"the volume, whose shape is {self.geometry.shape_zyx}. "
                f"Boxes run from start to stop, stop excluded."
            )
        return self._sound(z0, z1)[:, y0:y1, x0:x1]

    def slice(self, z: int) -> Array:
        """Return an axial slice as a read-only (y, x) view."""
        _, height, width = self.geometry.shape_zyx
        plane: Array = self.part((z, z + 1, 0, height, 0, width))[0]
        return plane

    def volume(self) -> Volume:
        """Return all of it."""
        return volume_from(self._sound(0, self.geometry.shape_zyx[0]), self.ref, *opened(self.ref))

    def _sound(self, start: int, stop: int) -> Array:
        """Return slices; make a damaged entry again."""
        try:
            return self._slices.slices(start, stop)
        except CorruptEntry:
            self._slices = self._cache.get_or_put(self.ref)._slices
            return self._slices.slices(start, stop)


class VolumeCache:
    """Volumes by their content: on disk for their slices, the last two that were read whole in memory."""

    def __init__(self) -> None:
        self._recent: deque[tuple[str, Volume]] = deque(maxlen=2)  # zooms of one volume follow each other

    def get(self, ref: VolumeRef) -> CachedVolume | None:
        """Return a volume if it is on disk."""
        return self._get(volume_key(ref), ref)

    def get_or_put(self, ref: VolumeRef, *, keep_newer_than: float = math.inf) -> CachedVolume:
        """Return a volume whose slices are read one by one; read and put it on disk if it is not there.

        Volumes below 1 MiB, and those that exceed the quota, are held in memory instead. Entries used after
        `keep_newer_than`, in seconds since 1970, are not evicted for it.
        """
        key = volume_key(ref)
        cached = self._get(key, ref)
        if cached is not None:
            return cached
        loaded = self._in_memory(key)
        volume = loaded or read(ref)
        is_same = loaded is not None or volume_key(ref) == key  # not if the file was replaced meanwhile
        if is_same and volume.array.nbytes >= LEAST_BYTES:
            name, ends = f"{key}-{LAYOUT}", _percentile_ends(volume.array)
            facts = {"affine": volume.affine.tolist(), "percentile_ends": ends}
            if VOLUMES.put_array(name, volume.array, facts, keep_newer_than=keep_newer_than):
                cached = self._get(key, ref)
        if cached is not None:
            return cached
        if is_same and self._in_memory(key) is None:
            self._recent.append((key, volume))
        slices = CachedArray(volume.array, {})
        return CachedVolume(ref=ref, geometry=volume.geometry, _slices=slices, _cache=self)

    def read(self, ref: VolumeRef) -> Volume:
        """Return a whole volume: the last two come from memory, those on disk are mapped, others are read."""
        key = volume_key(ref)
        volume = self._in_memory(key)
        if volume is None:
            cached = self._get(key, ref)
            volume = read(ref) if cached is None else cached.volume()  # unpacking a .nii.gz is as fast
            if volume_key(ref) == key:  # not if the file was replaced while it was read
                self._recent.append((key, volume))
        return volume

    def percentile_ends(self, ref: VolumeRef) -> tuple[float, float]:
        """Return the 0.5th and 99.5th percentile of a volume's values, from the disk where it is there."""
        slices = VOLUMES.get_array(f"{volume_key(ref)}-{LAYOUT}")
        if slices is None:
            return _percentile_ends(self.read(ref).array)
        low, high = slices.facts["percentile_ends"]
        return low, high

    def _get(self, key: str, ref: VolumeRef) -> CachedVolume | None:
        slices = VOLUMES.get_array(f"{key}-{LAYOUT}")
        if slices is None:
            return None
        z, y, x = slices.shape
        geometry = Geometry(shape_zyx=(z, y, x), affine=np.array(slices.facts["affine"]))
        return CachedVolume(ref=ref, geometry=geometry, _slices=slices, _cache=self)

    def _in_memory(self, key: str) -> Volume | None:
        return next((volume for known, volume in tuple(self._recent) if known == key), None)


volume_cache = VolumeCache()  # this process's


def changed_copy(
    ref: VolumeRef,
    cache: Cache,
    key: str | Sequence[Any],
    change_of: Callable[[Volume], Callable[[Volume], Array]],
) -> VolumeRef:
    """Return a scan with other voxels, which a cache keeps under a key; of a picture each colour is changed.

    `change_of` takes the scan, a picture in greys, and returns what makes voxels (z, y, x) of its volumes.
    """
    is_picture = read_geometry(ref).shape_zyx[0] == 1  # which NIfTI cannot hold

    def write(path: Path) -> None:
        volume = read(ref)
        change = change_of(volume)
        if not is_picture:
            return save_volume(dataclasses.replace(volume, array=change(volume)), path)
        shown = colours(ref.path)
        planes = volume.array if shown is None else np.moveaxis(shown, -1, 0)
        changed = [change(dataclasses.replace(volume, array=plane[None]))[0] for plane in planes]
        save_picture(changed[0] if shown is None else np.stack(changed, axis=-1), path)

    path = cache.file(key, ".png" if is_picture else ".nii.gz", write)
    return VolumeRef(path=str(path), intensity=ref.intensity)


def _percentile_ends(array: Array) -> tuple[float, float]:
    flat = array.reshape(-1)
    stride = flat.size // PERCENTILE_SAMPLE | 1  # odd: does not keep to a few columns
    low, high = np.percentile(flat[::stride], PERCENTILES)
    return float(low), float(high)
