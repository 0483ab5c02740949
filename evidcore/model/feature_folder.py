"""Encoder features on disk: a folder for each encoder's weights, bounded; what is damaged is made again."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import shutil
from pathlib import Path

import torch

from evidcore.contracts import Patches
from evidcore.volume.cache import write_atomically

_NAME = re.compile(r"[0-9a-f]{24}")


class FeatureFolder:
    """Features by handle, for one encoder at a time.

    Where the bound is reached, the folders of other encoders leave, the longest unused first; when only the
    own one is left, nothing more is written.
    """

    def __init__(self, root: Path, most_bytes: int) -> None:
        """Look at nothing yet.

        Args:
            root: holds the folders of all encoders; runs and processes share it.
            most_bytes: bound on all of them together.
        """
        self.root, self.most_bytes = root, most_bytes
        self._own = root
        self._own_bytes = 0
        self._others: dict[Path, int] = {}  # bytes of each, the longest unused first

    def follow(self, encoder: str) -> None:
        """Read and write features of the encoder with this digest from now on."""
        self._own = self.root / encoder
        found = [path for path in _entries(self.root) if _NAME.fullmatch(path.name) and path.is_dir()]
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._own)
        others = sorted((path for path in found if path != self._own), key=_last_used_s)
        self._others = {path: _bytes_in(path) for path in others}
        self._own_bytes = _bytes_in(self._own)
        self._has_room_for(0)

    def read(self, handle: int) -> Patches | None:
        """Return features, None where there are none or the file cannot be read."""
        path = self._path(handle)
        try:
            held = torch.load(path, weights_only=True)
        except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
            return None
        z, y, x = held["grid_zyx"]
        return Patches(held["features"], (z, y, x), held["centres_mm"])

    def write(self, handle: int, patches: Patches) -> None:
        """Keep features, in one move, within the bound.

        Raises:
            RunError: if the disk is full; names the folder and EVID_CACHE.
        """
        content = {
            "features": patches.features,
            "grid_zyx": list(patches.grid_zyx),
            "centres_mm": patches.centres_mm,
        }
        held = io.BytesIO()
        torch.save(content, held)
        if not self._has_room_for(held.tell()):
            return
        with contextlib.suppress(FileNotFoundError):  # another process may clear the folder away
            write_atomically(self._path(handle), held.getvalue())
            self._own_bytes += held.tell()

    def _path(self, handle: int) -> Path:
        return self._own / f"{handle:016x}.pt"

    def _has_room_for(self, size_bytes: int) -> bool:
        """Clear other encoders away until so many bytes fit; tell whether they do."""
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
