"""Dataset `implant`: phantom lesions with exact masks planted into the CT of another data set."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import nibabel
import numpy as np
from annotated_types import Ge, Le

from evidcore.cache import Cache, key_of
from evidcore.case import Case, Finding, MaskRef, Report, Span, Split, VolumeRef
from evidcore.contracts import Dataset
from evidcore.data import Volume, content_hash, read, read_mask, save_volume
from evidcore.errors import DataError, RecipeError
from evidcore_plugin_phantoms.implant.planting import KINDS, KindName, Lesion, LesionSpec, Planted, plant
from evidcore_plugin_phantoms.wording import ABSENT, naming, on_the, one_of, written

log = logging.getLogger(__name__)
VOLUME, MASKS, BEFORE, FACTS = "volume.nii.gz", "masks.npz", "before.npz", "lesions.json"
VERSION = 1  # raised where the same options plant something else, as tests/test_golden.py finds out
Reasons = Mapping[str, str]  # by kind
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
        sizes_mm: smallest and largest diameter by kind, in place of the usual ones.
        prevalence: how likely each kind is in each case.
        contrast: multiplies the difference in HU between a lesion and the tissue around it. 1 is as in
            patients, 0.3 is hard to see; 0 plants nothing but exchanged noise, a control for traces of
            the planting itself.
        copies: so many cases are made of each scan, with other lesions each.
        no_place: what becomes of a case in which a lesion was wanted and the scan has no place for it:
            "negative" counts it as absent (the anatomy then tells something about the answer),
            "leave-out" leaves the case out by name.
        report: "planted" tells of the lesions alone; "appended" adds that to the source's report.
        seed: decides everything that is drawn.
    """

    cache_folder: Path = dataclasses.field(kw_only=False)
    source: Dataset
    kinds: tuple[KindName, ...] = ("lung nodule", "hypodense lesion", "stone")
    inside: dict[KindName, str] | None = None
    sizes_mm: dict[KindName, tuple[float, float]] | None = None
    prevalence: Annotated[float, Ge(0), Le(1)] = 0.5
    contrast: Annotated[float, Ge(0), Le(3)] = 1.0
    copies: Annotated[int, Ge(1)] = 1
    no_place: Literal["negative", "leave-out"] = "negative"
    report: Literal["planted", "appended"] = "planted"
    seed: Annotated[int, Ge(0)] = 17

    def __post_init__(self) -> None:
        """Refuse options that contradict each other; nothing is read before cases are asked for."""
        for option, named in (("inside", self.inside or {}), ("sizes_mm", self.sizes_mm or {})):
            if unknown := [kind for kind in named if kind not in self.kinds]:
                raise RecipeError(
                    f"implant: {option} names {unknown[0]!r}, but kinds are "
                    f"{', '.join(self.kinds) or 'none'}. Add it to kinds, or drop it here."
                )
        for kind, (smallest, largest) in (self.sizes_mm or {}).items():
            if not 0 < smallest <= largest:
                raise RecipeError(
                    f"implant: sizes_mm of {kind!r} must be [smallest, largest] in mm, above 0 and rising, "
                    f"got [{smallest:g}, {largest:g}]."
                )
        self.findings = tuple(dict.fromkeys([*self.source.findings, *self.kinds]))
        self.left_out: dict[Split, dict[str, str]] = {}

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split`; a scan is planted into when its case is asked for, and kept.

        Raises:
            DataError: if a scan cannot be used.
        """
        left_out = self.left_out.setdefault(split, {})
        left_out.clear()
        for case in self.source.cases(split):
            for name, copy in self._names(case):
                try:
                    made = self._planted(case, name, copy)
                except DataError as cause:
                    raise DataError(f"{cause} (case {case.id!r})") from cause
                if isinstance(made, Case):
                    yield made
                else:
                    left_out[name] = made
                    log.warning("implant: case %r is left out: %s", name, made)
        left_out |= self.source.left_out.get(split, {})

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case of `split`; where lesions cannot be planted, the source's case once."""
        for case in self.source.listed(split):
            all_made = True
            for name, copy in self._names(case):
                try:
                    made = self._planted(case, name, copy)
                except DataError as cause:
                    made = str(cause)
                if isinstance(made, Case):
                    yield made
                else:
                    all_made = False
            if not all_made:
                yield case

    def unlisted(self) -> Iterable[str]:
        """Say what the source cannot read."""
        return self.source.unlisted()

    def fingerprint(self) -> str:
        """Hash the source's fingerprint, the options and the version of what is planted."""
        options = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        options |= {"cache_folder": "", "source": self.source.fingerprint(), "version": VERSION}
        return key_of(options)

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the scan without a planted lesion, with the tissue that it replaced; others stay.

        None for what the patient himself has: it is not known how he would look without.
        """
        told = case.notes["implant"]
        if any(lesion["kind"] == finding for lesion in told["lesions"]) and finding not in told["own"]:
            (ref,) = case.volumes
            fill = functools.partial(_write_without, Path(ref.path), finding)
            cache = Cache("implant", self.cache_folder)
            key = {"of": Path(ref.path).parent.name, "without": finding}
            return (dataclasses.replace(ref, path=str(cache.file(key, ".nii.gz", fill))),)
        return case.volumes if case.state_of(finding) == "absent" else None

    def _names(self, case: Case) -> list[tuple[str, int]]:
        """Return what the copies of a case are called, with their numbers."""
        if self.copies == 1:
            return [(case.id, 0)]
        return [(f"{case.id}+{copy}", copy) for copy in range(self.copies)]

    def _planted(self, case: Case, name: str, copy: int) -> Case | str:
        """Return the case with its lesions, or why it is left out."""
        self._check(case)
        ref, wishes = case.volumes[0], self._wishes(case, copy)
        masks = {wish.region: case.masks[wish.region] for wish in wishes if wish.region}
        if not wishes:
            return self._case(case, name, copy, Path(), (), {})
        # masks of a grid that the ref bends would not fit the straight one that is written: they are copied
        bent = ref.spacing_mm_zyx is not None or ref.axes is not None or ref.tilted == "resample"
        carried = dict(case.masks) if bent else {}
        masks |= carried
        asked: dict[str, Any] = {
            "carried": sorted(carried),
            "volume": [content_hash(ref.path), ref.marks()],
            "masks": {
                key: [content_hash(mask.path), mask.key, mask.label, mask.axes] for key, mask in masks.items()
            },
            "wishes": [[wish.kind.name, wish.size_mm, wish.region] for wish in wishes],
            "contrast": self.contrast,
            "dice": [self.seed, case.id, copy],
        }

        def make() -> tuple[Volume, Planted]:
            volume = read(ref)
            regions = {key: read_mask(mask, like=volume) for key, mask in masks.items()}
            rng = self._rng(case, copy, "lesions")
            planted = plant(volume, wishes, regions, contrast=self.contrast, rng=rng)
            kept = {key: regions[key] for key in carried}
            return volume, dataclasses.replace(planted, masks={**kept, **planted.masks})

        cache = Cache("implant", self.cache_folder)
        folder = cache.folder({**asked, "version": VERSION}, lambda partial: _write(partial, *make()))
        known = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        if known["no_place"] and self.no_place == "leave-out":
            return "; ".join(f"{kind}: {why}" for kind, why in known["no_place"].items())
        lesions = tuple(
            Lesion(**{**facts, "centre_zyx": tuple(facts["centre_zyx"])}) for facts in known["lesions"]
        )
        if lesions:
            copied = {key: MaskRef(path=str(folder / MASKS), key=key) for key in carried}
            case = dataclasses.replace(case, masks={**case.masks, **copied})
        return self._case(case, name, copy, folder, lesions, known["no_place"])

    def _check(self, case: Case) -> None:
        ref, wrong = case.volumes[0], ""
        if len(case.volumes) != 1:
            wrong = f"lesions are planted into one volume, the case has {len(case.volumes)}. "
            wrong += "Leave one in the source's table."
        elif ref.intensity != "hu":
            wrong = f"lesions are planted in HU, the volume's intensity is {ref.intensity!r}. "
            wrong += "Set intensity = 'hu' on the source if the values are HU."
        elif taken := sorted(case.masks.keys() & set(self.kinds)):
            wrong = f"the source has a mask {taken[0]!r} already. Rename it, or leave the kind out."
        for kind, region in (self.inside or {}).items():
            if region not in case.masks and not wrong:
                wrong = f"there is no mask {region!r} to plant a {kind} in. "
                wrong += (
                    f"It has: {', '.join(sorted(case.masks)) or 'none'}. Correct inside, or give the mask."
                )
        if wrong:
            raise DataError(f"{ref.path}: {wrong}")

    def _wishes(self, case: Case, copy: int) -> list[LesionSpec]:
        draws = self._rng(case, copy, "wishes").random(len(self.kinds))
        sizes, inside = self.sizes_mm or {}, self.inside or {}
        return [
            LesionSpec(
                kind=KINDS[kind], size_mm=sizes.get(kind, KINDS[kind].size_mm), region=inside.get(kind, "")
            )
            for kind, chance in zip(self.kinds, draws, strict=True)
            if chance < self.prevalence
        ]

    def _rng(self, case: Case, copy: int, what: str) -> np.random.Generator:
        text = f"{self.seed}/{case.id}/{copy}/{what}".encode()
        return np.random.default_rng(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big"))

    def _case(
        self, case: Case, name: str, copy: int, folder: Path, planted: Sequence[Lesion], no_place: Reasons
    ) -> Case:
        """Return a case with what a folder of the cache holds; without lesions the source's scan stands."""
        lesions = {lesion.kind: lesion for lesion in planted}
        own = {finding.name: finding for finding in case.findings}
        if self.report == "planted":  # the new report does not hold what their spans point at
            own = {key: dataclasses.replace(finding, span=None) for key, finding in own.items()}
        absent = [
            kind
            for kind in self.kinds
            if kind not in lesions and (kind not in own or own[kind].state == "absent")
        ]
        before = case.report.text if case.report is not None and self.report == "appended" else ""
        # first what was not planted, then what was; sentences of `before` get no spans
        rng = self._rng(case, copy, "words")
        lines = [naming(one_of(rng, ABSENT), kind, "normal") for kind in absent]
        for lesion in planted:
            pattern, place = one_of(rng, PRESENT), lesion.region.replace("_", " ")
            if lesion.region == "lung":
                place = f"{lesion.side} lung" if lesion.side else "lung"
            else:
                place = ("soft tissue" if place == "soft" else place) + on_the(lesion.side)
            slots = {"size": f"{lesion.size_mm:.0f}", "place": place}
            lines.append(naming(pattern, lesion.kind, "abnormal", **slots))
        report = written(lines, before.rstrip())
        told = [Span(start=start, end=end, label=label) for start, end, label in report.spans]
        spans = dict(zip([*absent, *(lesion.kind for lesion in planted)], told, strict=True))
        for kind in self.kinds:
            if kind in lesions:
                lesion = lesions[kind]
                own[kind] = Finding(name=kind, side=lesion.side, size_mm=lesion.size_mm, span=spans[kind])
            elif kind in absent:
                own[kind] = Finding(name=kind, state="absent", span=spans[kind])
        masks = {kind: MaskRef(path=str(folder / MASKS), key=kind) for kind in lesions}
        # the scan in the cache is written straight, in HU, with its true spacing
        plain = VolumeRef(path=str(folder / VOLUME), intensity=case.volumes[0].intensity)
        notes = {
            "lesions": [dataclasses.asdict(lesion) for lesion in planted],
            "no_place": dict(no_place),
            "own": [each.name for each in case.findings if each.state != "absent"],  # the patient's
        }
        return dataclasses.replace(
            case,
            id=name,
            volumes=(plain,) if planted else case.volumes,
            report=Report(text=report.text, spans=tuple(told)),
            findings=tuple(own[key] for key in self.findings if key in own),
            masks={**case.masks, **masks},
            notes={**case.notes, "implant": notes},
        )


def _write(folder: Path, volume: Volume, planted: Planted) -> None:
    if planted.lesions:
        save_volume(dataclasses.replace(volume, array=planted.array), folder / VOLUME)
        arrays: dict[str, Any] = dict(planted.masks)
        np.savez_compressed(folder / MASKS, **arrays)
        replaced: dict[str, Any] = {}
        for kind, (at, hu) in planted.before.items():
            replaced |= {f"{kind} at": at, f"{kind} hu": hu}
        np.savez_compressed(folder / BEFORE, **replaced)
    facts = {
        "lesions": [dataclasses.asdict(lesion) for lesion in planted.lesions],
        "no_place": dict(planted.no_place),
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _write_without(volume: Path, kind: str, path: Path) -> None:
    """Write a planted scan without one of its lesions."""
    image = nibabel.nifti1.Nifti1Image.from_filename(volume)
    array = np.asanyarray(image.dataobj).transpose(2, 1, 0).copy()
    with np.load(volume.with_name(BEFORE)) as replaced:
        array.reshape(-1)[replaced[f"{kind} at"]] = replaced[f"{kind} hu"]
    nibabel.save(nibabel.Nifti1Image(array.transpose(2, 1, 0), None, image.header), path)
