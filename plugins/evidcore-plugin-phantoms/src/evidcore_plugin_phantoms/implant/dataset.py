"""Dataset `implant`: phantom lesions with exact masks planted into the CT of another data set."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import nibabel
import numpy as np
from annotated_types import Ge, Le
from pydantic import TypeAdapter

from evidcore.api import Cache, Case, DataError, Dataset, Finding, MaskRef, Report, VolumeRef, read, read_mask
from evidcore.cache import key_of
from evidcore.case import Split
from evidcore.data import content_hash, save_volume
from evidcore.errors import RecipeError
from evidcore_plugin_phantoms.implant.planting import KINDS, KindName, Lesion, LesionSpec, Site
from evidcore_plugin_phantoms.implant.tissue import NoPlace
from evidcore_plugin_phantoms.wording import ABSENT, naming, on_the, one_of, written

log = logging.getLogger(__name__)
VOLUME, MASKS, BEFORE, FACTS = "volume.nii.gz", "masks.npz", "before.npz", "lesions.json"
VERSION = 1  # raised where the same options plant something else, as tests/test_golden.py finds out
PRESENT = (
    "There is a {name} of {size} mm in the {place}.",
    "A {name} measuring {size} mm is seen in the {place}.",
    "{Name} of {size} mm in the {place}.",
)


@dataclasses.dataclass(kw_only=True, eq=False)
class Implant(Dataset):
    """Cases of another data set, in HU, with phantom lesions planted into their scans.

    Every lesion is an ellipsoid of known place, size and density, with partial volume at its edge and noise
    like that of the tissue around; its mask is exact: the voxels that it fills to more than half. No file of
    the source is changed; scans with lesions lie in the cache folder. A report tells what was planted and
    what was not. "Absent" means that nothing was planted: what the patient himself has is not known here,
    unless the source has a finding of the same name.

    Args:
        cache_folder: keeps the scans with lesions.
        source: the data set whose scans are planted into, one volume a case.
        kinds: what may be planted. Without further options a lung nodule lies in aerated lung, the others
            in any soft tissue.
        inside: mask of the case in which a kind is planted: `{ "hypodense lesion" = "liver" }`.
        prevalence: how likely each kind is in each case.
        contrast: multiplies the difference in HU between a lesion and the tissue around it. 1 is as in
            patients, 0.3 is hard to see; 0 plants nothing but exchanged noise, a control for traces of
            the planting itself.
        copies: so many cases are made of each scan, with other lesions each.
        no_place: what becomes of a case in which a lesion was wanted and the scan has no place for it:
            "negative" counts it as absent (the anatomy then tells something about the answer),
            "leave-out" leaves the case out by name.
        seed: decides everything that is drawn.
    """

    cache_folder: Path = dataclasses.field(kw_only=False)
    source: Dataset
    kinds: tuple[KindName, ...] = ("lung nodule", "hypodense lesion", "stone")
    inside: dict[KindName, str] | None = None
    prevalence: Annotated[float, Ge(0), Le(1)] = 0.5
    contrast: Annotated[float, Ge(0), Le(3)] = 1.0
    copies: Annotated[int, Ge(1)] = 1
    no_place: Literal["negative", "leave-out"] = "negative"
    seed: Annotated[int, Ge(0)] = 17

    def __post_init__(self) -> None:
        """Refuse a mask for a kind that is not planted; nothing is read before cases are asked for."""
        for kind in (self.inside or {}).keys() - set(self.kinds):
            why = f"inside names {kind!r}, but kinds are {', '.join(self.kinds) or 'none'}"
            raise RecipeError(f"implant: {why}. Add it to kinds, or drop it here.")
        self.derived_from = self.source
        self.findings = tuple(dict.fromkeys([*self.source.findings, *self.kinds]))
        self.left_out: dict[Split, dict[str, str]] = {}

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split`; a scan is planted into when its case is asked for, and kept.

        Raises:
            DataError: if a scan cannot be used.
        """
        left_out = self.left_out[split] = {}
        for case in self.source.cases(split):
            for copy in range(self.copies):
                try:
                    yield self._planted(case, copy)
                except NoPlace as cause:
                    left_out[self._name(case, copy)] = str(cause)
                    log.warning("implant: case %r is left out: %s", self._name(case, copy), cause)
                except DataError as cause:
                    raise DataError(f"{cause} (case {case.id!r})") from cause
        left_out |= self.source.left_out.get(split, {})

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case of `split`; where lesions cannot be planted, the source's case once."""
        for case in self.source.listed(split):
            made = []
            for copy in range(self.copies):
                with contextlib.suppress(DataError, NoPlace):
                    made.append(self._planted(case, copy))
            yield from made if len(made) == self.copies else [*made, case]

    def fingerprint(self) -> str:
        """Hash the source's fingerprint, the options and the version of what is planted."""
        options = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        options |= {"cache_folder": "", "source": self.source.fingerprint(), "version": VERSION}
        return key_of(options)

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the scan without a planted lesion, with the tissue that it replaced; others stay.

        None for what the patient himself has: it is not known how he would look without.
        """
        notes = case.notes["implant"]
        if any(lesion["kind"] == finding for lesion in notes["lesions"]) and finding not in notes["own"]:
            (ref,) = case.volumes
            fill = functools.partial(_write_without, Path(ref.path), finding)
            cache = Cache("implant", self.cache_folder)
            key = {"of": Path(ref.path).parent.name, "without": finding}
            return (dataclasses.replace(ref, path=str(cache.file(key, ".nii.gz", fill))),)
        return case.volumes if case.state_of(finding) == "absent" else None

    def _name(self, case: Case, copy: int) -> str:
        return case.id if self.copies == 1 else f"{case.id}+{copy}"

    def _planted(self, case: Case, copy: int) -> Case:
        """Return a copy of the case with its lesions.

        Raises:
            NoPlace: if it is left out.
            DataError: if the scan cannot be used.
        """
        for fault in self._faults(case):
            raise DataError(f"{case.volumes[0].path}: {fault}")
        ref, wishes = case.volumes[0], self._wishes(case, copy)
        if not wishes:
            return self._case(case, copy, Path(), (), {})
        # masks of a grid that the ref bends would not fit the straight one that is written: they are copied
        bent = ref.spacing_mm_zyx is not None or ref.axes is not None or ref.tilted == "resample"
        carried = dict(case.masks) if bent else {}
        masks = {wish.region: case.regions[wish.region] for wish in wishes if wish.region} | carried
        key: dict[str, Any] = {
            "carried": sorted(carried),
            "volume": [content_hash(ref.path), ref.to_params()],
            "masks": {
                name: [content_hash(mask.path), mask.key, mask.label, mask.axes]
                for name, mask in masks.items()
            },
            "wishes": [[wish.kind.name, wish.kind.size_mm, wish.region] for wish in wishes],
            "contrast": self.contrast,
            "dice": [self.seed, case.id, copy],
            "version": VERSION,
        }

        def fill(folder: Path) -> None:
            volume = read(ref)
            regions = {name: read_mask(mask, like=volume) for name, mask in masks.items()}
            site = Site(volume)
            site.plant(wishes, regions, self.contrast, self._rng(case, copy, "lesions"))
            if site.lesions:
                save_volume(dataclasses.replace(volume, array=site.finished(site.array)), folder / VOLUME)
                arrays: dict[str, Any] = {name: regions[name] for name in carried} | site.masks
                np.savez_compressed(folder / MASKS, **arrays)
                replaced: dict[str, Any] = {}
                for kind in site.masks:
                    replaced[f"{kind} at"], replaced[f"{kind} hu"] = site.before(kind)
                np.savez_compressed(folder / BEFORE, **replaced)
            lesions = [dataclasses.asdict(lesion) for lesion in site.lesions]
            facts = {"lesions": lesions, "no_place": site.no_place}
            (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")

        folder = Cache("implant", self.cache_folder).folder(key, fill)
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        if facts["no_place"] and self.no_place == "leave-out":
            raise NoPlace("; ".join(f"{kind}: {why}" for kind, why in facts["no_place"].items()))
        lesions = TypeAdapter(tuple[Lesion, ...]).validate_python(facts["lesions"])
        if lesions:
            copied = {name: MaskRef(path=str(folder / MASKS), key=name) for name in carried}
            case = dataclasses.replace(case, masks={**case.masks, **copied})
        return self._case(case, copy, folder, lesions, facts["no_place"])

    def _faults(self, case: Case) -> Iterator[str]:
        if len(case.volumes) != 1:
            why = f"lesions are planted into one volume, the case has {len(case.volumes)}"
            yield f"{why}. Leave one in the source's table."
        if case.volumes[0].intensity != "hu":
            why = f"lesions are planted in HU, the volume's intensity is {case.volumes[0].intensity!r}"
            yield f"{why}. Set intensity = 'hu' on the source if the values are HU."
        for kind in sorted(case.masks.keys() & set(self.kinds)):
            yield f"the source has a mask {kind!r} already. Rename it, or leave the kind out."
        for kind, region in (self.inside or {}).items():
            if region not in case.regions:
                listed = ", ".join(sorted(case.regions)) or "none"
                why = f"there is no mask {region!r} to plant a {kind} in. It has: {listed}"
                yield f"{why}. Correct inside, or give the mask."

    def _wishes(self, case: Case, copy: int) -> list[LesionSpec]:
        draws = self._rng(case, copy, "wishes").random(len(self.kinds))
        return [
            LesionSpec(kind=KINDS[kind], region=(self.inside or {}).get(kind, ""))
            for kind, chance in zip(self.kinds, draws, strict=True)
            if chance < self.prevalence
        ]

    def _rng(self, case: Case, copy: int, what: str) -> np.random.Generator:
        text = f"{self.seed}/{case.id}/{copy}/{what}".encode()
        return np.random.default_rng(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big"))

    def _case(
        self, case: Case, copy: int, folder: Path, lesions: Sequence[Lesion], no_place: Mapping[str, str]
    ) -> Case:
        """Return a case with what a folder of the cache holds; without lesions the source's scan stands."""
        planted = {lesion.kind for lesion in lesions}
        # the new report does not hold what the spans of the source's point at
        findings = {each.name: dataclasses.replace(each, span=None) for each in case.findings}
        absent = [
            kind
            for kind in self.kinds
            if kind not in planted and (kind not in findings or findings[kind].state == "absent")
        ]
        report = _report(case, self._rng(case, copy, "words"), absent, lesions)
        spans = iter(report.spans)
        findings |= {kind: Finding(name=kind, state="absent", span=next(spans)) for kind in absent}
        for each in lesions:
            span = next(spans)
            findings[each.kind] = Finding(name=each.kind, side=each.side, size_mm=each.size_mm, span=span)
        # the scan in the cache is written straight, in HU, with its true spacing
        plain = VolumeRef(path=str(folder / VOLUME), intensity=case.volumes[0].intensity)
        notes = {
            "lesions": [dataclasses.asdict(lesion) for lesion in lesions],
            "no_place": dict(no_place),
            "own": [each.name for each in case.findings if each.state != "absent"],  # the patient's
        }
        masks = {lesion.kind: MaskRef(path=str(folder / MASKS), key=lesion.kind) for lesion in lesions}
        return dataclasses.replace(
            case,
            id=self._name(case, copy),
            volumes=(plain,) if lesions else case.volumes,
            report=report,
            findings=tuple(findings[name] for name in self.findings if name in findings),
            masks={**case.masks, **masks},
            notes={**case.notes, "implant": notes},
        )


def _report(case: Case, rng: np.random.Generator, absent: Sequence[str], lesions: Sequence[Lesion]) -> Report:
    """Tell what was not planted, then what was."""
    lines = [naming(one_of(rng, ABSENT), kind, "normal") for kind in absent]
    for lesion in lesions:
        pattern, size = one_of(rng, PRESENT), f"{lesion.size_mm:.0f}"
        is_guess = lesion.region in case.predicted.keys() - case.masks.keys()
        region = KINDS[lesion.kind].tissue if is_guess else lesion.region
        place = {"soft": "soft tissue"}.get(region, region.replace("_", " ")) + on_the(lesion.side)
        if region == "lung":
            place = f"{lesion.side} lung" if lesion.side else "lung"
        lines.append(naming(pattern, lesion.kind, "abnormal", size=size, place=place))
    return written(lines)[0]


def _write_without(volume: Path, kind: str, path: Path) -> None:
    """Write a planted scan without one of its lesions."""
    image = nibabel.nifti1.Nifti1Image.from_filename(volume)
    array = np.asanyarray(image.dataobj).transpose(2, 1, 0).copy()
    with np.load(volume.with_name(BEFORE)) as replaced:
        array.reshape(-1)[replaced[f"{kind} at"]] = replaced[f"{kind} hu"]
    nibabel.save(nibabel.Nifti1Image(array.transpose(2, 1, 0), None, image.header), path)
