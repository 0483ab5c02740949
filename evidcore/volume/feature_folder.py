"""Features of encoders on disk: a bounded folder for each encoder's weights, shared by processes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from pathlib import Path

import torch
from safetensors import torch as safetensors

from evidcore.contracts import Patches
from evidcore.volume.cache import fetch, store

log = logging.getLogger(__name__)

SUFFIX = ".features"  # a checksum, then a safetensors file
_NAME = re.compile(r"[0-9a-f]{24}")
_COUNTED_EVERY = 64  # a process looks at what others wrote after each such part of the bound


class FeatureFolder:
    """Features by handle, for one encoder at a time, shared by runs and processes.

    Where the bound is reached, the folders of other encoders leave, the longest unused first; when only the
    own one is left, nothing more is written: if the oldest features left instead, an epoch over a set that
    does not fit would find none of its own.
    """

    def __init__(self, root: Path, most_bytes: int) -> None:
        """Look at nothing yet.

        Args:
            root: holds the folders of all encoders; runs and processes share it.
            most_bytes: bound on all of them together.
        """
        self.root, self.most_bytes = root, most_bytes
        self._own = root
        self._own_bytes = self._uncounted_bytes = 0
        self._others: dict[Path, int] = {}  # bytes of each, the longest unused first

    def follow(self, encoder: str) -> None:
        """Read and write features of the encoder with this digest from now on."""
        self._own = self.root / encoder
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._own)
        self._count()
        self._has_room_for(0)

    def __contains__(self, handle: int) -> bool:
        """Tell whether there is a file of features."""
        return os.access(self._path(handle), os.R_OK)

    def read(self, handle: int) -> Patches | None:
        """Return features, None where there are none or what lies there is damaged."""
        path = self._path(handle)
        if handle not in self:
            return None
        content = fetch(path)
        if content is None:
            log.warning("%s: is damaged, its checksum does not fit; the volume is encoded again", path)
            return None
        held = safetensors.load(content)
        z, y, x = held["grid_zyx"].tolist()
        return Patches(held["features"], (z, y, x), held["centres_mm"])

    def write(self, handle: int, patches: Patches) -> None:
        """Keep features, in one move, within the bound.

        Raises:
            RunError: if the disk is full; names the folder and EVID_CACHE.
        """
        content = safetensors.save({
            "features": patches.features.contiguous(),
            "grid_zyx": torch.tensor(patches.grid_zyx),
            "centres_mm": patches.centres_mm.contiguous(),
        })
        if not self._has_room_for(len(content)):
            return
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # others may clear it away
            store(self._path(handle), content)
            self._own_bytes += len(content)
            self._uncounted_bytes += len(content)

    def _path(self, handle: int) -> Path:
        return self._own / f"{handle:016x}{SUFFIX}"

    def _count(self) -> None:
        """Look at what lies there, of all processes."""
        found = [path for path in _entries(self.root) if _NAME.fullmatch(path.name) and path.is_dir()]
        others = sorted((path for path in found if path != self._own), key=_last_used_s)
        self._others = {path: _bytes_in(path) for path in others}
        self._own_bytes, self._uncounted_bytes = _bytes_in(self._own), 0

    def _has_room_for(self, size_bytes: int) -> bool:
        """Clear other encoders away until so many bytes fit; tell whether they do."""
        if self._uncounted_bytes * _COUNTED_EVERY > self.most_bytes:
            self._count()
        most = self.most_bytes - size_bytes
        while self._others and self._own_bytes + sum(self._others.values()) > most:
            oldest = next(iter(self._others))
            del self._others[oldest]
            shutil.rmtree(oldest, ignore_errors=True)
        return self._own_bytes <= most


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _bytes_in(folder: Path) -> int:
    found = 0
    for path in _entries(folder):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def _last_used_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
