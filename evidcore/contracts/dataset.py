"""Where cases come from and what of them is shown."""

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

from evidcore.cache import plain_file
from evidcore.case import Box, Case, Part, Split, VisualPart, VolumeRef
from evidcore.data.encoder_input import EncoderInput, Grid
from evidcore.errors import RecipeError


def _without_excluded(method: Callable[..., Iterable[Case]]) -> Callable[..., Iterable[Case]]:
    @functools.wraps(method)
    def cases(self: Any, split: Split) -> Iterable[Case]:
        every = method(self, split)
        return (case for case in every if self.keeps(case.id)) if self.excluded else every

    return cases


def _with_excluded(method: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(method)
    def fingerprint(self: Any) -> str:
        known = "\n".join([method(self), *sorted(self.excluded)])
        return hashlib.sha256(known.encode()).hexdigest()[:16] if self.excluded else method(self)

    return fingerprint


class Excluding:
    """Has a data set leave out the cases that a recipe excludes by their ids."""

    excluded: MutableMapping[str, bool] = cast(Any, MappingProxyType({}))  # id to leave out -> was it met

    def exclude(self, named: Sequence[str] | str, folder: Path, where: str) -> None:
        """Leave out cases by a list of ids, or a text file, as `ids_of` takes it."""
        self.excluded = dict.fromkeys(self.ids_of(named, folder, f"{where}.exclude"), False)

    @staticmethod
    def ids_of(named: Sequence[str] | str, folder: Path, where: str) -> list[str]:
        """Return ids that a recipe lists, or names a text file of in its folder with one on each line."""
        if isinstance(named, str):
            file = folder / named
            try:
                named = plain_file(file).read_text(encoding="utf-8-sig").split("\n")
            except (OSError, ValueError) as cause:
                remedy = "Name a text file in UTF-8 with one id on each line."
                raise RecipeError(f"{where}: {file}: cannot be read ({cause}). {remedy}") from cause
        return [item.strip() for item in named if item.strip()]

    def keeps(self, case_id: str) -> bool:
        """Tell whether a recipe leaves a case in; a set that may stop at one asks before it looks at it."""
        if is_excluded := case_id in self.excluded:
            self.excluded[case_id] = True
        return not is_excluded

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in {"cases", "listed", "fingerprint"} & vars(cls).keys():
            around = _with_excluded if name == "fingerprint" else _without_excluded
            setattr(cls, name, around(vars(cls)[name]))


class Dataset(Excluding, ABC):
    """Cases by split. Core gives: `recipe_folder` (relative paths start there), `cache_folder`.

    Case ids are unique over all splits; no patient is in two splits.
    """

    findings: tuple[str, ...] = ()  # the finding vocabulary, in a fixed order; empty where there is none
    left_out: Mapping[Split, Mapping[str, str]] = MappingProxyType({})  # case id -> why, of the last walk
    derived_from: "Dataset | None" = None  # whose cases it changes: asked where this one says nothing itself

    @abstractmethod
    def cases(self, split: Split) -> Iterable[Case]:
        """Yield the cases of `split`, lazily, always in the same order."""

    def listed(self, split: Split) -> Iterable[Case]:
        """Yield every case that the set names, also those that `cases` would stop at or leave out."""
        return self.cases(split)  # a check lists all faults, training stops at the first

    def unlisted(self) -> Iterable[str]:
        """Say, a message each, what in the set's own tables cannot be read as a case or a part of one."""
        return () if self.derived_from is None else self.derived_from.unlisted()

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short hash that changes whenever any case would."""

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the volumes of `case`, in their order, with `finding` removed; None where this set cannot.

        Grids and all else in the volumes stay as they are. Where the finding is absent nothing changes.
        """
        return None if self.derived_from is None else self.derived_from.without(case, finding)


class View(ABC):
    """What the model is shown of a case, and the way back. Core gives: nothing.

    The box convention of the model belongs here: tasks, tools, rewards and pages speak voxels.
    """

    tags_slices: ClassVar[bool] = False  # the text names each slice's source index
    box_unit: str = ""  # of boxes: "thousandths" of a picture's sides, its "pixels"; "" where there are none

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
