"""Features of slices in files, below a limit of bytes; the longest unused leaves first."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import torch as safetensors

from evidcore.volume.cache import fetch, store
from evidcore_plugin_medsam2.network import View

if TYPE_CHECKING:
    from transformers import Sam2VideoModel

SUFFIX = ".features"  # a checksum, then a safetensors file

log = logging.getLogger(__name__)


class FeatureFiles:
    """Views by name in one folder, shared by runs and processes; what is damaged is made again.

    Processes count on their own: each may pass the limit by what the others write at the same time.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """Look at nothing yet.

        Args:
            folder: made when the first view is written.
            most_bytes: of all files together.
        """
        self.folder, self.most_bytes = folder, most_bytes

    def read(self, name: str) -> View | None:
        """Return a view as it was written, None where there is none."""
        path = self.folder / f"{name}{SUFFIX}"
        if not path.exists():
            return None
        content = fetch(path)
        if content is None:
            log.warning("%s: is damaged, its checksum does not fit; the slice is encoded again", path)
            return None
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.utime(path)
        held = safetensors.load(content)
        return View(fine=held["fine"], middle=held["middle"], coarse=held["coarse"])

    def write(self, name: str, view: View) -> None:
        """Keep a view; others leave for it.

        Raises:
            RunError: if the disk is full; names the folder and EVID_CACHE.
        """
        on_cpu = view.to(torch.device("cpu"), view.coarse.dtype)
        content = safetensors.save({
            "fine": on_cpu.fine.contiguous(),
            "middle": on_cpu.middle.contiguous(),
            "coarse": on_cpu.coarse.contiguous(),
        })
        held = self._held()
        room = self.most_bytes - len(content)
        if room < 0:
            return
        taken = sum(size for _, size, _ in held)
        for _, size, path in held:
            if taken <= room:
                break
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            taken -= size
        store(self.folder / f"{name}{SUFFIX}", content)

    def _held(self) -> list[tuple[float, int, Path]]:
        """Return when each file was last used, its size and its path, the longest unused first."""
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as listing:
            for item in listing:
                with contextlib.suppress(FileNotFoundError):
                    facts = item.stat()
                    found.append((facts.st_mtime, facts.st_size, Path(item.path)))
        return sorted(found)


def weights_digest(model: Sam2VideoModel) -> str:
    """Name what encodes slices by its weights, wherever they came from."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
