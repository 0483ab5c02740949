"""Checkpoints inside a stage, that a resume starts from: whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from evidcore.errors import tells_full_disk

COMPLETE = "complete"


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a stage."""
    found = [place.parent for place in (folder / "steps").glob(f"checkpoint-*/{COMPLETE}")]
    return max(found, key=lambda place: int(place.name.rpartition("-")[2]), default=None)


@contextlib.contextmanager
def written_whole(place: Path, *, marks: bool) -> Iterator[None]:
    """Mark a checkpoint that was written to its end; remove one that the disk has no room for.

    Args:
        place: its folder.
        marks: this process is the one that says so.

    Raises:
        OSError: if the disk is full, however a library puts it; names the folder.
    """
    try:
        yield
        if marks:
            with (place / COMPLETE).open("w") as file:
                file.flush()
                os.fsync(file.fileno())
    except Exception as cause:
        if not tells_full_disk(cause):
            raise
        shutil.rmtree(place, ignore_errors=True)  # it could not be resumed from, and takes room
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place)) from cause
