"""Whether a volume can be read at all, remembered by the file's state."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume.cache import fetch, store
from evidcore.volume.formats import file_state
from evidcore.volume.reading import read

READING = 2  # raise whenever `read` takes or refuses other files


def why_unusable(ref: VolumeRef, cache_folder: Path) -> str | None:
    """Return what `read` has against a volume, None if nothing; read once for each state of its files."""
    identity = (READING, os.path.realpath(ref.path), sorted(ref.marks().items()), file_state(ref.path))
    name = hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()
    entry = cache_folder / "usable" / name
    held = fetch(entry)
    if held is None:
        try:
            read(ref)
            held = b""
        except DataError as error:
            held = str(error).encode()
        store(entry, held)
    return held.decode() or None
