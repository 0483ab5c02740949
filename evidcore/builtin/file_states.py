"""The files that a case names, and their state: what a data set's fingerprint takes of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from evidcore.case import Case
from evidcore.volume import file_state


def named_states(files: Iterable[str], folder: Path) -> Iterator[str]:
    """Yield for each file its name and the name, time and size of every file behind it, as JSON.

    Args:
        files: volumes and masks; a DICOM folder or a header with its data beside it are many files.
        folder: names are told from here, so that a folder may move.
    """
    for file in files:
        state = file_state(file)
        behind = state and [[os.path.relpath(name, folder), *facts] for name, *facts in state]
        yield json.dumps([os.path.relpath(file, folder), behind])


def files_of(case: Case) -> list[str]:
    """Return the paths of a case's volumes in their order, then those of its masks."""
    return [ref.path for ref in case.volumes] + sorted({ref.path for ref in case.masks.values()})
