"""Slices of other patients that lie as high as a slice and show as much lesion."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
from evidcore_plugin_medvol_r1.target import measure
from jaxtyping import Bool, Float, Int

from evidcore.api import Case, Crop, DataError
from evidcore.data import read_geometry

MOST_PATIENTS = 300  # whose slices are held ready
MOST_FOUND = 20_000  # answers that are kept
NOTHING = "No finding is seen."  # what is said of a slice that shows none
HEIGHT = 0.1  # of the scan: this far apart counts as much as an area twice as large


@dataclasses.dataclass(frozen=True)
class _Slices:
    """The slices of all patients that may stand in, one after the other."""

    crops: Sequence[Crop]
    patients: Int[np.ndarray, " slice"]  # places in `names`
    heights: Float[np.ndarray, " slice"]  # 0 at the scan's lowest edge, 1 at its highest
    areas: Float[np.ndarray, " slice"]  # mm²
    names: Sequence[str]
    cases: Sequence[Case]  # by slice
    places: Mapping[Crop, int]  # of a slice in these lists


class MatchedSlices:
    """Finds slices of other patients.

    The height of a slice is its place in the scan, from 0 to 1; its lesion area, in mm², is that of all
    findings that are present. A slice with a lesion is matched by slices with one, one without by slices
    without. The distance of two is the difference of heights over 0.1, plus the binary logarithm of the ratio
    of areas, without its sign. Of each patient the nearest slice counts, of equally near ones one that the
    case and slice decide. Cases whose present findings lack a mask stand in for nobody.
    """

    def __init__(self, cases: Callable[[], Sequence[Case]], cache_folder: Path) -> None:
        """Take where the cases that may stand in come from; of more than 300 patients 300 do."""
        self._cases, self._cache_folder = cases, cache_folder
        self._found: dict[Hashable, list[Crop]] = {}

    def __call__(
        self, case: Case, crop: Crop, z: int, count: int, *, without: Set[str] = frozenset()
    ) -> list[Crop]:
        """Return the nearest slices of `count` other patients, of fewer where there are no more.

        The patient of `case` is left out. A crop of another patient has that patient's lesion area, and that
        patient is left out too. None of the slices shows a finding of `without`.
        """
        asked = (case.id, crop, z, count, frozenset(without))
        if asked in self._found:
            return self._found[asked]
        slices = self._slices
        depth = read_geometry(crop.volume).shape_zyx[0]
        known = slices.places.get(as_scanned(crop))
        area = self._areas(case).get(z, 0.0) if known is None else slices.areas[known]
        apart = np.abs(slices.heights - (z + 0.5) / depth) / HEIGHT
        shows = slices.areas > 0
        if area > 0:
            apart += np.abs(np.log2(np.where(shows, slices.areas, area) / area))
        own = [number for number, name in enumerate(slices.names) if name == patient_of(case)]
        own += [] if known is None else [slices.patients[known]]
        fits: Bool[np.ndarray, " slice"] = (shows == (area > 0)) & ~np.isin(slices.patients, own)
        digest = hashlib.blake2b(f"{case.id}/{z}".encode(), digest_size=8).digest()
        drawn = np.random.default_rng(int.from_bytes(digest, "big")).random(len(apart))
        result: dict[int, Crop] = {}
        for place in np.lexsort((drawn, apart)):
            if len(result) == count:
                break
            if fits[place]:
                crop, owner = slices.crops[place], slices.cases[place]
                if not (without and without & shown_findings(owner, crop, self._cache_folder)):
                    result.setdefault(int(slices.patients[place]), crop)
        if len(self._found) >= MOST_FOUND:
            self._found.clear()
        self._found[asked] = list(result.values())  # not drawn: equal at each step
        return self._found[asked]

    def require_others(self) -> None:
        """Refuse cases of one patient.

        Raises:
            DataError: if no other patient can stand in for one.
        """
        if (count := len(self._by_patient)) < 2:
            raise DataError(
                "cross-view: control = 'others' compares with slices of other patients, and of the "
                f"{len(self._cases())} training cases those with masks of all their findings are of {count} "
                "patients. Give more patients, or another control."
            )

    @functools.cached_property
    def _by_patient(self) -> dict[str, list[Case]]:
        """Return the cases that may stand in, by patient."""
        result: dict[str, list[Case]] = {}
        for case in self._cases():
            if len(case.volumes) == 1 and lacks_mask(case) is None:
                result.setdefault(patient_of(case), []).append(case)
        return result

    @functools.cached_property
    def _slices(self) -> _Slices:
        known = self._by_patient
        names = sorted(known, key=lambda name: hashlib.blake2b(name.encode()).digest())[:MOST_PATIENTS]
        crops: list[Crop] = []
        cases: list[Case] = []
        owners, heights, areas = [], [], []
        for number, case in ((number, case) for number, name in enumerate(names) for case in known[name]):
            ref = case.volumes[0]
            depth, height, width = read_geometry(ref).shape_zyx
            crops += [Crop(volume=ref, box_zyx=(z, z + 1, 0, height, 0, width)) for z in range(depth)]
            cases += [case] * depth
            owners += [number] * depth
            heights += [(z + 0.5) / depth for z in range(depth)]
            measured = self._areas(case)
            areas += [measured.get(z, 0.0) for z in range(depth)]
        places = {crop: place for place, crop in enumerate(crops)}
        return _Slices(crops, np.array(owners, int), np.array(heights), np.array(areas), names, cases, places)

    def _areas(self, case: Case) -> dict[int, float]:
        """Return the lesion area of the slices that show one, in mm²."""
        present = list(case.present())
        if not present:
            return {}
        _, high_mm, wide_mm = read_geometry(case.volumes[0]).spacing_mm_zyx
        pixels = measure(case, present, self._cache_folder).areas
        return {z: count * high_mm * wide_mm for z, count in pixels.items()}


def shown_findings(case: Case, crop: Crop, cache_folder: Path) -> frozenset[str]:
    """Return the findings of a case that its masks show on a slice of it, none on one of another scan."""
    if crop.box_zyx is None or crop.blank or crop.change or crop.volume not in case.volumes:
        return frozenset()
    z = crop.box_zyx[0]
    masked = [name for name in case.present() if name in case.masks]
    return frozenset(name for name in masked if measure(case, [name], cache_folder).areas.get(z, 0) > 0)


def lacks_mask(case: Case) -> str | None:
    """Return the first present finding that has no mask, None where all have one."""
    return next((name for name in case.present() if name not in case.masks), None)


def patient_of(case: Case) -> str:
    """Return whose scan it is: the case's own id where no patient is told."""
    return case.patient or case.id


def as_scanned(crop: Crop) -> Crop:
    """Return a crop as its own pixels show it, whether it is blank or changed."""
    return dataclasses.replace(crop, blank=False, change="")
