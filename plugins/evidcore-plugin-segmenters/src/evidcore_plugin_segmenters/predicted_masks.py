"""Data set `predicted-masks`: the cases of another one, with masks that a segmenter makes of words."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from evidcore.api import Cache, Case, DataError, Dataset, MaskRef, Segmenter, VolumeRef
from evidcore.cache import key_of
from evidcore.case import Split
from evidcore.data.content import volume_key
from evidcore.errors import RecipeError
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.inputs import identity_of


@dataclasses.dataclass(kw_only=True, eq=False)
class PredictedMasks(Dataset):
    """Cases of another data set, with masks of what words name, as a segmenter sees it.

    They stand in `case.predicted`, apart from true masks: no metric, label, gold answer or training goes by
    them. Conditions `occluded` and `occluded-elsewhere` cover them, `implant` plants in them, a run's page
    draws them. They are made when a case is first listed, of its first volume, and once for equal volumes,
    words and segmenters: options, files that these name, and package.

    Args:
        source: the data set whose scans are segmented.
        segmenter: one that takes words, such as `sam3` or `voxtell`.
        names: what it is asked for, and what the masks are called: "liver", "left lung". What a case has a
            true mask of is not asked for.
    """

    recipe_folder: Path = dataclasses.field(kw_only=False)
    cache_folder: Path = dataclasses.field(kw_only=False)
    source: Dataset
    segmenter: Segmenter
    names: Annotated[tuple[str, ...], MinLen(1)]

    def __post_init__(self) -> None:
        """Take the source's vocabulary; nothing is read before cases are asked for."""
        self.derived_from, self.findings = self.source, self.source.findings

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split`; masks that are not in the cache are made."""
        yield from map(self._segmented, self.source.cases(split))
        self.left_out = self.source.left_out

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case of `split`, one that cannot be segmented as the source has it."""
        for case in self.source.listed(split):
            with contextlib.suppress(DataError):
                case = self._segmented(case)
            yield case

    def fingerprint(self) -> str:
        return key_of([self.source.fingerprint(), self._identity, self.names])

    @functools.cached_property
    def _identity(self) -> list[Any]:
        return identity_of(self.segmenter, self.recipe_folder)

    def _segmented(self, case: Case) -> Case:
        names = self.names if case.volumes and self.keeps(case.id) else ()
        made = {name: self._mask(case.volumes[0], name) for name in names if name not in case.masks}
        return dataclasses.replace(case, predicted={**case.predicted, **made})

    def _mask(self, volume: VolumeRef, words: str) -> MaskRef:
        offer = offer_of(self.segmenter)

        def write(path: Path) -> None:
            with blame(offer, f"looking for {words!r} in {volume.path}"):
                self.segmenter.ready()
                session = self.segmenter.session(volume)
                try:
                    mask = session.mask([Segmenter.TextPrompt(words=words)])
                except ValueError as cause:  # it takes no words, or not these
                    text = f"predicted-masks: {offer.name!r} cannot look for {words!r}: {cause}"
                    raise RecipeError(text) from cause
            np.savez_compressed(path, mask=mask)

        key = [volume_key(volume), words, self._identity]
        path = Cache("masks", self.cache_folder).file(key, ".npz", write)
        return MaskRef(path=str(path), key="mask", by=offer.name)
