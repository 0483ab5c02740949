"""The contract of a file format; it is not in `contracts`, which load torch: reading a scan needs none."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal

from evidcore.case import MaskRef, VolumeRef
from evidcore.data.grid import Mask, Volume


class Format(ABC):
    """A file format: a file to a volume, or to a mask on its volume's grid. Core gives: nothing.

    The name of its entry point is the ending of the files that it reads, in lower case: `nii.gz`. A format
    with several endings has an entry point for each. Its module is imported when such a file is opened.

    The core checks that the file exists and is not empty, turns the axes to the body's, scales and resamples.
    Every method raises a DataError that names the file, the value and what to do, if a file cannot be used.
    """

    from evidcore.data.grid import FileGrid as FileGrid
    from evidcore.data.stored import Stored as Stored

    takes: ClassVar[frozenset[Literal["axes", "key"]]] = frozenset()  # of a VolumeRef; others are refused

    def recognises(self, path: str) -> bool:
        """Tell by content whether `path` is of this format.

        It is asked of folders, of files whose ending no installed format has, and, of another package's
        format, of files that the core reads too. One format may say so.
        """
        return False

    @abstractmethod
    def open(self, ref: VolumeRef) -> Stored:
        """Read the header of a volume: its grid, and how its voxels are loaded."""

    def mask(self, ref: MaskRef, like: Volume) -> Mask | None:
        """Return a mask, shape (z, y, x) on the grid of `like`; None for a label map, which the core opens.

        Args:
            ref: the file, and which object of it is meant.
            like: the volume that the mask belongs to; `like.file_geometry` is the grid that its file states.
        """
        return None

    def files(self, path: str) -> list[Path]:
        """Return every file whose bytes may matter to the volume or mask at `path`, in order of name."""
        return [Path(path)]
