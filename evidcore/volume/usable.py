"""Whether a volume can be read at all, remembered by the file's state."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume.cache import fetch, store
from evidcore.volume.content import READING
from evidcore.volume.formats import file_state
from evidcore.volume.reading import read


def why_unusable(ref: VolumeRef, cache_folder: Path) -> str | None:
    """Return what `read` has against a volume, None if nothing; read once for each state of its files.

    What the system has against reading it now may pass, and is not remembered.
    """
    state = file_state(ref.path)
    identity = (READING, os.path.realpath(ref.path), sorted(ref.marks().items()), state)
    name = hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest()
    entry = cache_folder / "usable" / name
    held = None if state is None else fetch(entry)
    if held is None:
        lasts = state is not None
        try:
            read(ref)
            held = b""
        except DataError as error:
            held = str(error).encode()
            lasts = lasts and not _is_of_system(error.__cause__)
        if lasts:
            store(entry, held)
    return held.decode() or None


def _is_of_system(cause: BaseException | None) -> bool:
    """Tell a failed call of the system, which has a number, from what a reader finds wrong with content."""
    return isinstance(cause, OSError) and cause.errno is not None
