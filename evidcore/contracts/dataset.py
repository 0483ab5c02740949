"""Where cases come from and what of them is shown."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from evidcore.case import Box, Case, Part, Split, VisualPart, VolumeRef
from evidcore.data.encoder_input import EncoderInput, Grid


class Dataset(ABC):
    """Cases by split. Core gives: `recipe_folder` (relative paths start there), `cache_folder`.

    Case ids are unique over all splits; no patient is in two splits.
    """

    findings: tuple[str, ...] = ()  # the finding vocabulary, in a fixed order; empty where there is none
    left_out: Mapping[Split, Mapping[str, str]] = MappingProxyType({})  # case id -> why, of the last walk

    @abstractmethod
    def cases(self, split: Split) -> Iterable[Case]:
        """Yield the cases of `split`, lazily, always in the same order."""

    def listed(self, split: Split) -> Iterable[Case]:
        """Yield every case that the set names, also those that `cases` would stop at or leave out."""
        return self.cases(split)  # a check lists all faults, training stops at the first

    def unlisted(self) -> Iterable[str]:
        """Say, a message each, what in the set's own tables cannot be read as a case or a part of one."""
        return ()

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short hash that changes whenever any case would."""

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the volumes of `case`, in their order, with `finding` removed; None where this set cannot.

        Grids and all else in the volumes stay as they are. Where the finding is absent nothing changes.
        """
        return None


class View(ABC):
    """What the model is shown of a case, and the way back. Core gives: nothing.

    The box convention of the model belongs here: tasks, tools, rewards and pages speak voxels.
    """

    tags_slices: ClassVar[bool] = False  # the text names each slice's source index

    @abstractmethod
    def render(self, case: Case) -> tuple[Part, ...]:
        """Return the text and visual parts that show `case`."""

    @abstractmethod
    def size_zyx(self, part: VisualPart, encoder: EncoderInput) -> Grid:
        """Return the voxel size at which `encoder` will be given `part`."""

    @abstractmethod
    def to_source(self, part: VisualPart, box: Sequence[float]) -> Box | None:
        """Return a box in the view's convention as voxels of the source volume, None where it has no slice.

        Raises:
            ValueError: if the box lies outside what was shown; names it.
        """

    def from_source(self, part: VisualPart, box: Box) -> Sequence[float] | None:
        """Return voxels of the source volume in the view's convention, None where the view has no such way.

        Raises:
            ValueError: if the box lies outside what was shown; names it.
        """
        return None
