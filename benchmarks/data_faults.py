"""How often `evid data check` finds faults planted into scans, and how often it cries at sound ones.

EVID_SHARED_DATA=FOLDER python benchmarks/data_faults.py [--part chosen] [--only WORD,WORD]
    1 core, a quarter of an hour, no download

Real scans, in FOLDER: CT of 16 patients, whole and on a coarser grid, a chest with belly and a chest; MR: 42
crops of hippocampi and 14 others. Generated: chest phantoms. Thresholds were chosen on one half of the
patients (`--part chosen`); the other half, with the sets that are no half of anything, gives the figures.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import gzip
import os
import resource
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
import psutil
from evidcore_plugin_dicom.phantom import write_series
from evidcore_plugin_doctor.answers import contradictions
from evidcore_plugin_doctor.blind import BlindView
from evidcore_plugin_doctor.check import check, copied_reports, list_cases
from evidcore_plugin_doctor.fault import Fault
from evidcore_plugin_doctor.inspection import inspect
from evidcore_plugin_doctor.likeness import Library
from evidcore_plugin_doctor.masks import misnumbered
from evidcore_plugin_doctor.repeats import Home
from evidcore_plugin_doctor.rims import interpolated
from evidcore_plugin_doctor.statements import claims, mask_sides, unlike_files, unlike_patients
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_plugin_tables.target import open_folder
from scipy import ndimage
from side_by_side import parser

from evidcore.builtin.choice import LETTERS, Choice
from evidcore.case import Case, Finding, Intensity, MaskRef, Question, Report, Split, VolumeRef
from evidcore.data import Geometry, Volume, read, read_mask, save_volume
from evidcore.data.reading import opened
from evidcore.registry import factory

Part = Literal["chosen", "reported"]
Array = np.ndarray[Any, np.dtype[Any]]
Rng = np.random.Generator
PHANTOMS = 10  # of each part
NEEDED = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scan:
    """A scan that faults are planted into."""

    name: str
    patient: str
    array: Array  # (z, y, x) in body axes
    spacing_mm: tuple[float, float, float]  # z, y, x
    intensity: Intensity = "hu"
    mask: Array | None = None  # (z, y, x), what an expert drew
    is_real: bool = True

    def like(self, array: Array, **changed: Any) -> Scan:
        """Return the scan with other voxels."""
        return dataclasses.replace(self, array=array, **changed)


# --- scans -------------------------------------------------------------------------------------


def real_cts(data: Path, part: Part) -> Iterator[Scan]:
    """Yield each patient's CT whole, on a coarser grid, and a crop of it."""
    patients = sorted((data / "ibsi_validation").glob("STS_*"))[part == "reported" :: 2]
    for folder in patients:
        volume = read(VolumeRef(path=str(folder / "CT_image.nii.gz")))
        mask = read_mask(MaskRef(path=str(folder / "CT_mask.nii.gz")), volume)
        whole = Scan(
            name=folder.name,
            patient=folder.name,
            array=_whole(volume.array),
            spacing_mm=volume.spacing_mm_zyx,
            mask=mask,
        )
        yield whole
        yield _resampled(whole, (3.27, 2.0, 2.0))
    if part == "reported":
        for name in ("totalsegmentator/example_ct.nii.gz", "chest_imaging_platform/ct-64.nrrd"):
            volume = read(VolumeRef(path=str(data / name)))
            scan = Scan(
                name=Path(name).name,
                patient=name,
                array=_whole(volume.array),
                spacing_mm=volume.spacing_mm_zyx,
            )
            yield scan
            yield _cropped(scan)


def real_mrs(data: Path, part: Part) -> Iterator[Scan]:
    """Yield MR scans, with their masks where there are some."""
    images = sorted((data / "msd_hippocampus" / "images").glob("*.nii.gz"))[part == "reported" :: 2]
    pairs = [(image, data / "msd_hippocampus" / "labels" / image.name) for image in images]
    folders = sorted((data / "ibsi_validation").glob("STS_*"))[part == "reported" :: 2]
    images = [folder / "MR_T1_image.nii.gz" for folder in folders]
    pairs += [(image, image.with_name("MR_T1_mask.nii.gz")) for image in images if image.exists()]
    if part == "reported":
        others = ("pyradiomics/brain1", "pyradiomics/brain2", "pyradiomics/breast1")
        pairs += [(data / f"{name}_image.nrrd", data / f"{name}_label.nrrd") for name in others]
        pairs += [
            (data / "totalsegmentator/example_mr_sm.nii.gz", data / "none"),
            (data / "ivadomed_data_testing/sub-unf01_T2w.nii.gz", data / "none"),
            (data / "pyradiomics/prostate_phantom_subvolume.nrrd", data / "none"),
        ]
    for image, label in pairs:
        volume = read(VolumeRef(path=str(image), intensity="arbitrary", tilted="resample"))
        mask = read_mask(MaskRef(path=str(label)), volume) if label.exists() else None
        yield Scan(
            name=f"{image.parent.name}-{image.name}",
            patient=str(image),
            array=volume.array.copy(),
            spacing_mm=volume.spacing_mm_zyx,
            intensity="arbitrary",
            mask=mask,
        )


def generated(folder: Path, part: Part) -> Iterator[Scan]:
    """Yield chest phantoms."""
    phantoms = PhantomChest(folder, train_cases=PHANTOMS, validation_cases=1, test_cases=PHANTOMS)
    for case in phantoms.cases("train" if part == "chosen" else "test"):
        volume = read(case.volumes[0])
        yield Scan(
            name=case.id,
            patient=str(case.patient),
            array=volume.array.copy(),
            spacing_mm=volume.spacing_mm_zyx,
            is_real=False,
        )


def _whole(array: Array) -> Array:
    return np.asarray(np.clip(np.round(array), -32000, 32000).astype(np.int16))


def _resampled(scan: Scan, spacing_mm: tuple[float, float, float]) -> Scan:
    factors = [own / new for own, new in zip(scan.spacing_mm, spacing_mm, strict=True)]
    array = ndimage.zoom(scan.array.astype(np.float32), factors, order=1)
    mask = None if scan.mask is None else ndimage.zoom(scan.mask.astype(np.uint8), factors, order=0) > 0
    steps = tuple(
        own * count / new
        for own, count, new in zip(scan.spacing_mm, scan.array.shape, array.shape, strict=True)
    )
    return scan.like(_whole(array), spacing_mm=steps, mask=mask, name=f"{scan.name} coarser")


def _cropped(scan: Scan) -> Scan:
    """Cut a tenth off at one side of each axis."""
    cut = tuple(slice(count // 10, None) for count in scan.array.shape)
    return scan.like(
        scan.array[cut].copy(),
        mask=None if scan.mask is None else scan.mask[cut].copy(),
        name=f"{scan.name} cropped",
    )


# --- faults of one volume ------------------------------------------------------------------------

Plant = Callable[[Scan, Rng], Scan]


def _values(change: Callable[[Array], Array]) -> Plant:
    return lambda scan, rng: scan.like(_whole(change(scan.array.astype(np.float32))))


def _some_slices(change: Callable[[Array], Array]) -> Plant:
    """Change a third to a half of the slices, in one run."""

    def plant(scan: Scan, rng: Rng) -> Scan:
        count = len(scan.array)
        length = int(rng.integers(count // 3, count // 2))
        start = int(rng.integers(0, count - length))
        array = scan.array.astype(np.float32)
        array[start : start + length] = change(array[start : start + length])
        return scan.like(_whole(array))

    return plant


def _one_voxel(scan: Scan, rng: Rng) -> Scan:
    array = scan.array.astype(np.float32)
    array[tuple(rng.integers(0, count) for count in array.shape)] = 1e30
    return scan.like(array)


def _many_voxels(scan: Scan, rng: Rng) -> Scan:
    array = scan.array.copy()
    array.reshape(-1)[rng.choice(array.size, 500, replace=False)] = -32768
    return scan.like(array)


def _box(share: float, fill: Callable[[Array, Rng], Array]) -> Plant:
    """Fill a box of a share of the volume; it begins in the body's half of the volume."""

    def plant(scan: Scan, rng: Rng) -> Scan:
        array = scan.array.copy()
        sizes = [max(2, int(count * share ** (1 / 3))) for count in array.shape]
        starts = [(count - size) // 2 for count, size in zip(array.shape, sizes, strict=True)]
        starts = [int(start * rng.uniform(0.5, 1.5)) for start in starts]
        at = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
        array[at] = fill(array[at], rng)
        return scan.like(array)

    return plant


def _band(scan: Scan, rng: Rng) -> Scan:
    """Zero a quarter of the rows, in the middle of three neighbouring slices."""
    array = scan.array.copy()
    z, rows = int(rng.integers(1, len(array) - 4)), array.shape[1]
    array[z : z + 3, rows * 3 // 8 : rows * 5 // 8] = 0
    return scan.like(array)


def _swapped(scan: Scan, rng: Rng) -> Scan:
    array = scan.array.copy()
    item, other = sorted(rng.choice(np.arange(1, len(array) - 1), 2, replace=False))
    if other - item < 3:
        item, other = 1, len(array) // 2
    array[[item, other]] = array[[other, item]]
    return scan.like(array)


def _interleaved(scan: Scan, rng: Rng) -> Scan:
    order = [*range(0, len(scan.array), 2), *range(1, len(scan.array), 2)]
    return scan.like(scan.array[order])


def _phases(moved_mm: float) -> Plant:
    """Put a phase with contrast, and another breath, into every second slice."""

    def planted(scan: Scan, rng: Rng) -> Scan:
        array = scan.array.copy()
        phase = np.where((array > 20) & (array < 200), array + 60, array)
        array[1::2] = np.roll(phase, round(moved_mm / scan.spacing_mm[1]), axis=1)[1::2]
        return scan.like(array)

    return planted


def _shuffled(scan: Scan, rng: Rng) -> Scan:
    return scan.like(scan.array[rng.permutation(len(scan.array))])


def _doubled(scan: Scan, rng: Rng) -> Scan:
    array = scan.array.copy()
    z = int(rng.integers(len(array) // 4, len(array) * 3 // 4))
    array[z] = array[z - 1]
    return scan.like(array)


def _every_second(scan: Scan, rng: Rng) -> Scan:
    return scan.like(scan.array[::2])


def _block_dropped(scan: Scan, rng: Rng) -> Scan:
    count = len(scan.array)
    gone = max(5, count // 4)
    start = int(rng.integers(count // 4, count * 3 // 4 - gone + 1))
    return scan.like(np.delete(scan.array, range(start, start + gone), axis=0))


def _spacing(z: float, y: float, x: float) -> Plant:
    def plant(scan: Scan, rng: Rng) -> Scan:
        steps = tuple(own * by for own, by in zip(scan.spacing_mm, (z, y, x), strict=True))
        return scan.like(scan.array, spacing_mm=steps)

    return plant


def _flipped(axis: int) -> Plant:
    return lambda scan, rng: scan.like(np.ascontiguousarray(np.flip(scan.array, axis)))


VOLUME_FAULTS: dict[str, tuple[str, Plant]] = {  # name -> checks that may name it, how it is planted
    "HU x 2": ("intensity", _values(lambda a: 2 * a)),
    "HU x 1.5": ("intensity", _values(lambda a: 1.5 * a)),
    "HU x 0.5": ("intensity", _values(lambda a: 0.5 * a)),
    "HU negated": ("intensity", _values(lambda a: -a)),
    "HU + 100": ("intensity", _values(lambda a: a + 100)),
    "HU - 1024 in part of the slices": ("slices intensity", _some_slices(lambda a: a - 1024)),
    "HU + 100 in part of the slices": ("slices intensity", _some_slices(lambda a: a + 100)),
    "HU x 2 in part of the slices": ("slices intensity", _some_slices(lambda a: 2 * a)),
    "HU negated in part of the slices": ("slices intensity", _some_slices(lambda a: -a)),
    "one voxel of 1e30": ("intensity", _one_voxel),
    "500 voxels of -32768": ("intensity", _many_voxels),
    "a quarter of the volume zeroed": ("fill", _box(0.25, lambda a, rng: np.zeros_like(a))),
    "a band zeroed in three slices": ("fill slices", _band),
    "a block of noise": (
        "slices fill",
        _box(0.1, lambda a, rng: np.asarray(rng.uniform(-1000, 1000, a.shape), a.dtype)),
    ),
    "two slices swapped": ("slices", _swapped),
    "slices interleaved": ("slices", _interleaved),
    "two phases in turn": ("slices", _phases(0.0)),
    "two phases in turn, of two breaths": ("slices", _phases(4.0)),
    "slices shuffled": ("slices", _shuffled),
    "a slice doubled": ("slices", _doubled),
    "a quarter of the slices dropped in one run": ("slices", _block_dropped),
    "every second slice dropped": ("slices spacing", _every_second),
    "spacing x 0.1": ("spacing", _spacing(0.1, 0.1, 0.1)),
    "spacing x 10 along x": ("spacing", _spacing(1, 1, 10)),
    "spacing x 2 along x": ("spacing", _spacing(1, 1, 2)),
    "spacing x 10 along z": ("spacing", _spacing(10, 1, 1)),
    "spacing x 0.1 along z": ("spacing", _spacing(0.1, 1, 1)),
    "spacing x 2": ("spacing", _spacing(2, 2, 2)),
    "spacing of x and z exchanged": (
        "spacing",
        lambda scan, rng: scan.like(scan.array, spacing_mm=scan.spacing_mm[::-1]),
    ),
    "spacing 1 x 1 x 1 mm": ("spacing", lambda scan, rng: scan.like(scan.array, spacing_mm=(1.0, 1.0, 1.0))),
    "x mirrored": ("orientation", _flipped(2)),
    "y mirrored": ("orientation", _flipped(1)),
    "z mirrored": ("orientation", _flipped(0)),
}
MASK_FAULTS: dict[str, Callable[[Array], Array]] = {
    "mask: x mirrored": lambda mask: mask[:, :, ::-1],
    "mask: y mirrored": lambda mask: mask[:, ::-1],
    "mask: z mirrored": lambda mask: mask[::-1],
    "mask: x and y exchanged": lambda mask: mask.transpose(0, 2, 1),
    "mask: all ones": lambda mask: np.ones_like(mask),
    "mask: 0 and 1 exchanged": lambda mask: ~mask,
    "mask: every second slice empty": lambda mask: mask & (np.arange(len(mask)) % 2 == 0)[:, None, None],
    "mask: two of three slices empty": lambda mask: mask & (np.arange(len(mask)) % 3 == 0)[:, None, None],
    "mask: moved by 60 voxels": lambda mask: np.roll(mask, 60 % mask.shape[2], axis=2),
}


def found_in(scan: Scan, folder: Path) -> list[Fault]:
    """Write a scan, with its mask if it has one, and return what is said about it."""
    path = folder / "scan.nii"
    _save(scan.array, scan.spacing_mm, path)
    masks = {}
    if scan.mask is not None:
        _save(scan.mask.astype(np.int16), scan.spacing_mm, folder / "mask.nii")
        masks = {"object": MaskRef(path=str(folder / "mask.nii"))}
    volumes = (VolumeRef(path=str(path), intensity=scan.intensity),)
    return list(inspect(Case(id=scan.name, patient=None, volumes=volumes, masks=masks)).faults)


def _save(array: Array, spacing_mm: tuple[float, float, float], path: Path) -> None:
    geometry = Geometry(shape_zyx=array.shape, affine=np.diag([*spacing_mm, 1.0]))
    save_volume(Volume(array=np.ascontiguousarray(array), geometry=geometry, intensity="arbitrary"), path)


# --- faults of a set -----------------------------------------------------------------------------


def _turned(axes: tuple[int, int], degrees: float) -> Callable[[Scan], Array]:
    """Turn about the middle; the turn is in mm, not in voxels."""

    def turn(scan: Scan) -> Array:
        angle = np.deg2rad(degrees)
        turning = np.eye(3)
        item, other = axes
        turning[item, item] = turning[other, other] = np.cos(angle)
        turning[item, other], turning[other, item] = -np.sin(angle), np.sin(angle)
        steps = np.diag(scan.spacing_mm)
        matrix = np.linalg.inv(steps) @ turning @ steps
        middle = (np.array(scan.array.shape) - 1) / 2
        return _whole(
            ndimage.affine_transform(
                scan.array.astype(np.float32), matrix, middle - matrix @ middle, order=1, mode="nearest"
            )
        )

    return turn


COPIES: dict[str, Callable[[Scan], Array]] = {
    "copy turned by 4 degrees": _turned((1, 2), 4),
    "copy turned by 8 degrees": _turned((1, 2), 8),
    "copy tilted by 5 degrees": _turned((0, 1), 5),
    "copy mirrored": lambda scan: np.ascontiguousarray(scan.array[:, :, ::-1]),
    "copy upside down": lambda scan: np.ascontiguousarray(scan.array[::-1]),
    "copy moved by 30 voxels": lambda scan: np.roll(scan.array, 30, axis=2),
}


def copies_found(
    scans: Sequence[Scan], change: Callable[[Scan], Array], folder: Path
) -> tuple[list[bool], int]:
    """Put a changed copy of each scan into another split; return which are found, and how many are false.

    Args:
        scans: of a patient each.
        change: makes the copy.
        folder: for the files.
    """
    rows = []
    for number, scan in enumerate(scans):
        _save(scan.array, scan.spacing_mm, folder / f"{number}.nii")
        _save(change(scan), scan.spacing_mm, folder / f"{number}-copy.nii")
        rows.append([f"{number}", f"{number}.nii", f"p{number}", "train"])
        rows.append([f"{number}-copy", f"{number}-copy.nii", f"q{number}", "test"])
    faults = [fault for fault in _checked(folder, rows) if fault.check == "near-duplicate"]
    right = {fault.case for fault in faults if f"case {fault.case.removesuffix('-copy')!r} " in fault.text}
    result = [f"{number}-copy" in right for number in range(len(scans))]
    return result, len(faults) - sum(result)


def _checked(
    folder: Path,
    rows: Sequence[Sequence[str]],
    processes: int = 1,
    name: str = "",
    library: Library | None = None,
) -> list[Fault]:
    with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "volume", "patient", "split"], *rows])
    faults: list[Fault] = []
    check(
        *list_cases(open_folder(folder, "hu"), "made"),
        processes=processes,
        on_fault=faults.append,
        progress=lambda n, total: None,
        name=name,
        library=library,
    )
    return faults


def _saved(scans: Sequence[Scan], folder: Path) -> list[list[str]]:
    """Write scans as they are."""
    rows = []
    for number, scan in enumerate(scans):
        _save(scan.array, scan.spacing_mm, folder / f"{number}.nii")
        rows.append([f"{number}", f"{number}.nii", f"p{scan.patient}", "train"])
    return rows


def _saved_anew(scans: Sequence[Scan], folder: Path) -> list[list[str]]:
    """Write scans as compressed floats of another slope, for other patients of another split."""
    rows = []
    for number, scan in enumerate(scans):
        _save(scan.array, scan.spacing_mm, folder / "plain.nii")
        plain = nibabel.load(folder / "plain.nii")
        image = nibabel.Nifti1Image(plain.get_fdata().astype(np.float32) / 3, plain.affine)
        image.header.set_slope_inter(3, 0)
        nibabel.save(image, folder / f"{number}.nii.gz")
        rows.append([f"{number}", f"{number}.nii.gz", f"q{scan.patient}", "test"])
    return rows


Change = Callable[[Any, int], object]


def _series(scan: Scan, folder: Path, change: Change = lambda image, number: None) -> list[Fault]:
    """Write a scan as a DICOM series, changed image by image, and return what is said about it."""
    shutil.rmtree(folder, ignore_errors=True)

    def told(image: Any, number: int) -> object:
        image.PatientID = "1"
        return change(image, number)

    steps = tuple(round(step, 4) for step in scan.spacing_mm)
    write_series(folder, scan.array, steps, change=told)  # type: ignore[arg-type]
    case = Case(id=scan.name, patient=None, volumes=(VolumeRef(path=str(folder)),))
    return list(inspect(case).faults)


def dicom_faults(scan: Scan, other: Scan) -> dict[str, tuple[str, Change]]:
    """Return how each fault of a series is planted: name -> checks that may name it, change of an image."""
    middle = len(scan.array) // 2
    rows, columns = scan.array.shape[1:]
    plane = np.full((rows, columns), -1000, np.int16)
    theirs = other.array[len(other.array) // 2][:rows, :columns]
    plane[: theirs.shape[0], : theirs.shape[1]] = theirs

    def intercept(image: Any, number: int) -> None:
        image.RescaleIntercept = -1024 if number in (middle, middle + 1) else 0

    def slope(image: Any, number: int) -> None:
        image.RescaleSlope = 1 + number % 2

    def foreign(image: Any, number: int) -> None:
        if number == middle:
            image.PixelData = plane.tobytes()

    def patient(image: Any, number: int) -> None:
        image.PatientID = "2" if number == middle else "1"

    def swapped(image: Any, number: int) -> None:
        place = {middle - 4: middle + 4, middle + 4: middle - 4}.get(number, number)
        image.ImagePositionPatient = [0.0, 0.0, place * round(scan.spacing_mm[0], 4)]

    return {
        "DICOM: intercept wrong in two slices": ("slices intensity", intercept),
        "DICOM: slope doubled in every second slice": ("slices intensity", slope),
        "DICOM: a slice of another patient": ("slices", foreign),
        "DICOM: another PatientID in a slice": ("file", patient),
        "DICOM: positions of two slices exchanged": ("slices", swapped),
    }


IDS: dict[str, Callable[[str], tuple[str, str]]] = {
    "patients that differ in case, in two splits": lambda name: (f"P{name}x", f"p{name}X"),
    "patients that differ in Unicode form, in two splits": lambda name: (
        unicodedata.normalize("NFC", f"Mü{name}"),
        unicodedata.normalize("NFD", f"Mü{name}"),
    ),
    "patients that differ in kinds of space, in two splits": lambda name: (f"P {name}", f"P\xa0{name}"),
    "patients that differ in an invisible letter, in two splits": lambda name: (f"P{name}", f"P{name}\u200b"),
}


def main() -> None:
    """Plant, check and print."""
    options = parser(__doc__)
    options.add_argument("--part", choices=("chosen", "reported"), default="reported")
    options.add_argument("--only", default="", help="faults whose name holds one of these, commas between")
    options.add_argument("--missed", action="store_true", help="name the scans in which a fault is missed")
    given = options.parse_args()
    data = Path(os.environ["EVID_SHARED_DATA"])
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        cts = list(real_cts(data, given.part))
        mrs = list(real_mrs(data, given.part))
        phantoms = list(generated(home / "phantoms", given.part))
        if given.quick:
            cts, mrs, phantoms = cts[:3], mrs[:2], phantoms[:2]
        print("| fault | real scans | generated scans |\n|---|---:|---:|", flush=True)
        for fault, results in _results(given.only, cts, mrs, phantoms, home):
            print(f"| {fault} | {_rate(results, True)} | {_rate(results, False)} |", flush=True)
            if given.missed:
                for scan, is_found in results:
                    if not is_found:
                        print(f"  missed in {scan.name}")


Results = list[tuple[Scan, bool]]  # each scan, and whether the fault was found in it


def _rate(results: Results, is_real: bool) -> str:
    result = [is_found for scan, is_found in results if scan.is_real == is_real]
    return f"{sum(result)} of {len(result)} ({100 * sum(result) / len(result):.0f} %)" if result else ""


def _results(
    only: str, cts: list[Scan], mrs: list[Scan], phantoms: list[Scan], home: Path
) -> Iterator[tuple[str, Results]]:
    """Yield each fault with what became of it."""
    if _is_asked(only, "sound scans that something is said about"):
        told = [(scan, found_in(scan, home)) for scan in (*cts, *mrs, *phantoms)]
        yield "sound scans that something is said about", [(scan, bool(faults)) for scan, faults in told]
    for fault, (checks, plant) in VOLUME_FAULTS.items():
        if _is_asked(only, fault):
            planted = [
                (
                    scan,
                    dataclasses.replace(plant(scan, np.random.default_rng([number, len(fault)])), mask=None),
                )
                for number, scan in enumerate((*cts, *phantoms))
            ]
            yield fault, [(scan, _names(found_in(wrong, home), checks)) for scan, wrong in planted]
    for fault, lowest in (("MR given as HU", 0), ("MR given as HU, from -47 on", -47)):
        if _is_asked(only, fault):
            planted = [(scan, scan.like(scan.array + lowest, intensity="hu", mask=None)) for scan in mrs]
            yield fault, [(scan, _names(found_in(wrong, home), "intensity")) for scan, wrong in planted]
    for what, scans in (("organs of MR", mrs), ("tumours in CT", cts)):
        drawn = [scan for scan in scans if scan.mask is not None]
        for fault, change in MASK_FAULTS.items():
            if _is_asked(only, fault):
                yield (
                    f"{fault} ({what})",
                    [
                        (
                            scan,
                            _names(found_in(dataclasses.replace(scan, mask=change(scan.mask)), home), "mask"),
                        )
                        for scan in drawn
                        if scan.mask is not None
                    ],
                )
    yield from _results_of_series(only, cts, phantoms, home)
    yield from _results_of_sets(only, cts, phantoms, home)
    yield from _results_of_statements(only, cts, phantoms, home)
    yield from _results_of_answers(only, cts, phantoms, home)
    yield from _results_of_maps(only, mrs)
    yield from _results_of_scripts(only, phantoms)


def _results_of_series(
    only: str, cts: list[Scan], phantoms: list[Scan], home: Path
) -> Iterator[tuple[str, Results]]:
    result: dict[str, Results] = collections.defaultdict(list)
    for number, scan in enumerate((*cts, *phantoms)):
        other = cts[(number + 4) % len(cts)]
        for fault, (checks, change) in dicom_faults(scan, other).items():
            if _is_asked(only, fault):
                result[fault].append((scan, _names(_series(scan, home / "series", change), checks)))
        if _is_asked(only, "sound series that something is said about"):
            told = _series(scan, home / "series")
            result["sound series that something is said about"].append((scan, bool(told)))
    yield from result.items()


def _results_of_sets(
    only: str, cts: list[Scan], phantoms: list[Scan], home: Path
) -> Iterator[tuple[str, Results]]:
    folder = home / "set"
    for fault, change in COPIES.items():
        if _is_asked(only, fault):
            results: Results = []
            kinds = [
                [scan for scan in cts if scan.name.endswith(ending)] for ending in (" coarser", " cropped")
            ]
            whole = [scan for scan in cts if " " not in scan.name]
            false = 0
            for scans in (whole, *kinds, phantoms):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                result, wrong = copies_found(scans, change, folder)
                results += zip(scans, result, strict=True)
                false += wrong
            yield f"{fault} ({false} false pairs)", results
    if _is_asked(only, "a scan of one data set saved anew in another"):
        results, false = [], 0
        for number, scans in enumerate((cts, phantoms)):
            library = Library()
            faults = []
            for name, write in (("first", _saved), ("second", _saved_anew)):
                own = home / f"{name}{number}"
                own.mkdir()
                faults += _checked(own, write(scans, own), name=name, library=library)
            # crops and coarser copies of a patient, all in one split, are not counted
            copies = [fault for fault in faults if fault.severity == "error"]
            told = {item.case for item in copies if f"case '{item.case}' of data set 'first'" in item.text}
            false += len(copies) - len(told)
            results += [(scan, f"{place}" in told) for place, scan in enumerate(scans)]
        yield f"a scan of one data set saved anew in another ({false} false)", results
    for fault, named in IDS.items():
        if _is_asked(only, fault):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _save(phantoms[0].array, phantoms[0].spacing_mm, folder / "scan.nii")
            rows = []
            for number in range(20):
                first, second = named(str(number))
                rows += [
                    [f"{number}", "scan.nii", first, "train"],
                    [f"{number}-b", "scan.nii", second, "test"],
                ]
            told = {item.case for item in _checked(folder, rows) if item.check == "split"}
            yield fault, [(phantoms[0], f"{number}-b" in told) for number in range(20)]
    if _is_asked(only, "a scan too large for memory"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        rows = [[f"{number}", f"{number}.nii.gz", f"p{number}", "train"] for number in range(20)]
        for number in range(20):
            _oversized(folder / f"{number}.nii.gz", 1000 + 20 * number)
        before = resource.getrlimit(resource.RLIMIT_AS)
        limit = psutil.Process().memory_info().vms + 4 * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        said = {item.case for item in _checked(folder, rows, processes=2) if "memory" in item.text}
        resource.setrlimit(resource.RLIMIT_AS, before)
        yield "a scan too large for memory", [(phantoms[0], row[0] in said) for row in rows]


def _results_of_statements(
    only: str, cts: list[Scan], phantoms: list[Scan], home: Path
) -> Iterator[tuple[str, Results]]:
    """Yield what is found of statements of which one is wrong; of sound ones, what is said all the same."""
    generated_cases = [*_described("phantom-chest", home), *_described("phantom-abdomen", home)]
    told = [(phantoms[0], case) for case in generated_cases] + [(cts[0], case) for case in _reported()]
    if _is_asked(only, "sound labels"):
        yield "sound labels that something is said about, by report", [
            (scan, any(contradictions(case))) for scan, case in told
        ]  # fmt: skip
    if _is_asked(only, "a label against its report"):
        plain: Results = []
        for scan, case in told:
            for name in claims(case, {item.name for item in case.findings}):
                flipped = [
                    dataclasses.replace(item, state="absent" if item.state == "present" else "present")
                    if item.name == name
                    else item
                    for item in case.findings
                ]
                wrong = dataclasses.replace(case, findings=tuple(flipped))
                plain.append((scan, any(repr(name) in fault.text for fault in contradictions(wrong))))
        yield "a label against its report, where a plain sentence speaks of it", plain
    if _is_asked(only, "a side against its mask"):
        sided: Results = []
        for case in generated_cases:
            for name, (_, side) in mask_sides(case).items():
                sides = {name: ("its label", "left" if side == "right" else "right")}
                faults = inspect(dataclasses.replace(case, notes={"sides": sides})).faults
                sided.append((
                    phantoms[0],
                    any(f"{name!r}: its label says" in fault.text for fault in faults),
                ))
        yield "a side against its mask", sided
    if _is_asked(only, "spacing x 1.5 in a column"):
        spaced: Results = []
        for scan in (*cts, *phantoms):
            _save(scan.array, scan.spacing_mm, home / "scan.nii")
            volume = VolumeRef(path=str(home / "scan.nii"))
            cell = " x ".join(f"{1.5 * step:.3g}" for step in scan.spacing_mm)
            faults = inspect(Case(id="a", patient=None, volumes=(volume,), notes={"spacing": cell})).faults
            spaced.append((scan, _names(faults, "spacing")))
        yield "spacing x 1.5 in a column of the table", spaced
    if _is_asked(only, "labels of other numbers"):
        numbered: Results = []
        for scan in (scan for scan in cts if scan.mask is not None):
            _save(scan.array, scan.spacing_mm, home / "scan.nii")
            _save(np.asarray(scan.mask).astype(np.int16) * 3, scan.spacing_mm, home / "mask.nii")
            ref = MaskRef(path=str(home / "mask.nii"), label=1)
            case = Case(
                id="a", patient=None, volumes=(VolumeRef(path=str(home / "scan.nii")),), masks={"m": ref}
            )
            numbered.append((scan, any(misnumbered([(case, ref.path, inspect(case).labels[ref.path])], []))))
        yield "mask: named by a label that the file does not hold", numbered
    for what in ("folder of another patient", "folder of another split", "sex", "age"):
        if _is_asked(only, what):
            results: Results = []
            for scans in (cts, phantoms):
                for wrong in range(len(scans)):
                    results.append((scans[wrong], _is_named(what, scans, wrong)))
            yield f"{what} that contradicts the row", results


def _results_of_answers(
    only: str, cts: list[Scan], phantoms: list[Scan], home: Path
) -> Iterator[tuple[str, Results]]:
    """Yield what is said of questions with right answers, and of ones of which one answer is wrong."""
    cases = [(phantoms[0], case) for case in _described("phantom-chest", home)]
    cases += [(phantoms[0], case) for case in _described("phantom-abdomen", home)]
    cases += [(cts[0], case) for case in _reported()]
    asked = [(scan, case, _asked(case)) for scan, case in cases if case.present()]
    if _is_asked(only, "sound answers"):
        yield "sound answers that something is said about, by case", [
            (scan, any(contradictions(dataclasses.replace(case, questions=questions))))
            for scan, case, questions in asked
        ]  # fmt: skip
    for fault, is_alone in (("an answer against a label", False), ("an answer against another", True)):
        if _is_asked(only, fault):
            results: Results = []
            for number, (scan, case, questions) in enumerate(asked):
                place = number % len(case.findings)
                wrong = dataclasses.replace(questions[place], id="wrong", answer=1 - questions[place].answer)
                items = (*questions, wrong) if is_alone else (wrong, *questions[len(case.findings) :])
                findings = () if is_alone else case.findings
                told = list(contradictions(dataclasses.replace(case, questions=items, findings=findings)))
                results.append((scan, len(told) == 1 and "'wrong'" in told[0].text))
            yield fault, results


def _asked(case: Case) -> tuple[Question, ...]:
    """Return a question by yes or no for each finding, and some with drawn options; all answers right."""
    questions = [
        Question(
            id=f"q{number}",
            text=f"Is there {item.name}{f' on the {item.side} side' if item.side else ''}?",
            options=("yes", "no"),
            answer=int(item.state != "present"),
        )
        for number, item in enumerate(case.findings)
    ]
    for seed in (1, 2, 3):
        task = Choice(distractors="random", questions_per_case=0)
        for number, prompt in enumerate(task.prompts(case, BlindView(), seed)):
            reference = prompt.reference
            questions.append(
                Question(
                    id=f"drawn-{seed}-{number}",
                    text="Which of these findings is present?",
                    options=tuple(reference["options"]),
                    answer=LETTERS.index(reference["letter"]),
                    true_options=tuple(reference.get("true_options", ())),
                )
            )
    return tuple(questions)


ZOOMS = (0.8, 1.25, (0.9, 0.7, 0.7))


def _results_of_maps(only: str, mrs: list[Scan]) -> Iterator[tuple[str, Results]]:
    """Yield what is said of real label maps: as they are, resampled rightly and as if labels were values."""
    data = Path(os.environ["EVID_SHARED_DATA"])
    files = [file for pattern in LABEL_MAPS for file in sorted(data.glob(pattern))]
    maps = {str(file): _labels(file) for file in files}
    changes = (("as drawn", None), ("resampled by nearest neighbours", 0), ("resampled linearly", 1))
    for fault, order in changes:
        fault = f"label map {fault}"
        if _is_asked(only, fault):
            results: Results = []
            for name, labels in maps.items():
                if order == 1 and len(np.unique(labels)) < 3:
                    continue  # one label alone leaves rims that may be thresholds'
                for zoom in ZOOMS if order is not None else (1,):
                    array = labels.astype(np.float32)
                    array = array if order is None else ndimage.zoom(array, zoom, order=order)
                    told = interpolated(np.rint(array).astype(np.int32)) is not None
                    results.append((dataclasses.replace(mrs[0], name=f"{name} {zoom}"), told))
            yield f"{fault}, of two labels or more" if order == 1 else fault, results


LABEL_MAPS = (
    "ibsi_validation/*/*_mask.nii.gz", "msd_hippocampus/labels/*.nii.gz",
    "totalsegmentator/example_seg*.nii.gz", "chest_imaging_platform/*m-64.nrrd", "pyradiomics/*label.nrrd",
    "dcmqi/*_seg*.nrrd", "dcmqi/partial*.nrrd", "ivadomed_data_testing/*seg*.nii.gz",
)  # fmt: skip


def _labels(file: Path) -> Array:
    whole = VolumeRef(path=str(file), intensity="arbitrary", tilted="resample")
    stored, placement = opened(whole)
    return np.asarray(placement.turn.apply(stored.values(exact=True)))


SCRIPTS = {"Han": (0x4E00, 2000), "kana": (0x3041, 80), "Thai": (0x0E01, 46)}  # first character, how many


def _results_of_scripts(only: str, phantoms: list[Scan]) -> Iterator[tuple[str, Results]]:
    """Yield the copies that are found among reports without spaces; half of each is what all reports say."""
    if not _is_asked(only, "report without spaces copied"):
        return
    exact: Results = []
    near: Results = []
    false = 0
    for number, (first, count) in enumerate(SCRIPTS.values()):
        rng = np.random.default_rng(number)

        def sentence(first: int = first, count: int = count, rng: Rng = rng) -> str:
            return "".join(chr(first + int(letter)) for letter in rng.integers(0, count, 12))

        usual = [sentence() for _ in range(6)]  # normal findings
        reports = ["\u3002".join([*usual, *(sentence() for _ in range(6))]) for _ in range(100)]
        edited = [f"{text[:90]}{sentence()[:3]}{text[92:]}" for text in reports[10:20]]
        texts = [*reports, *reports[:10], *edited]
        cases = [
            Case(id=f"{place}", patient=f"p{place}", volumes=(), report=Report(text=text))
            for place, text in enumerate(texts)
        ]
        found = {
            (fault.other, fault.case)
            for fault in copied_reports([Home("", "train", case) for case in cases])[0]
        }
        pairs = {(f"{place}", f"{place + 100}") for place in range(20)}
        false += len(found - pairs)
        for results, places in ((exact, range(10)), (near, range(10, 20))):
            results += [(phantoms[0], (f"{place}", f"{place + 100}") in found) for place in places]
    yield f"report without spaces copied ({false} false)", exact
    yield "report without spaces copied and edited", near


def _is_named(what: str, scans: Sequence[Scan], wrong: int) -> bool:
    """Tell whether of a set with one wrong row that row is named, and no other."""
    listed: list[tuple[Split, Case]] = []
    for number in range(len(scans)):
        split: Split = "test" if number % 5 == 0 else "train"
        folder = {"test": "train", "train": "test"}[split] if "split" in what and number == wrong else split
        patient = f"P{(number + ('patient' in what and number == wrong)) % len(scans)}"
        volume = VolumeRef(path=f"/data/{folder}/{patient}/scan{number}.nii")
        listed.append((split, Case(id=f"c{number}", patient=f"P{number}", volumes=(volume,))))
    if "folder" in what:
        return [fault.case for fault in unlike_files(listed)] == [f"c{wrong}"]
    pairs = [
        (dataclasses.replace(case, id=f"{case.id}-{scan}"), "table", {"sex": "M", "age": "40"})
        for _, case in listed
        for scan in range(2)
    ]
    pairs[2 * wrong + 1] = (*pairs[2 * wrong + 1][:2], {"sex": "F"} if what == "sex" else {"age": "070Y"})
    return [fault.case for fault in unlike_patients(pairs)] == [f"c{wrong}-1"]


def _described(use: str, home: Path) -> Iterator[Case]:
    """Yield generated cases with their reports, labels and masks."""
    given = {"cache_folder": home / "cache", "recipe_folder": home}
    table = {"use": use, "train_cases": 1, "validation_cases": 1, "test_cases": PHANTOMS}
    yield from factory.build("dataset", table, given=given, where=use).cases("test")


def _reported() -> Iterator[Case]:
    """Yield the real reports with their labels; none of their text is printed."""
    table = Path(os.environ["EVID_SHARED_DATA"]) / "ctrate_reports/train.csv"
    with table.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file)):
            findings = tuple(
                Finding(name=name, state="present" if row[name.capitalize()] == "1" else "absent")
                for name in CT_RATE_FINDINGS
            )
            report = Report(text=row["report_text"])
            yield Case(id=str(number), patient=None, volumes=(), report=report, findings=findings)


def _is_asked(only: str, fault: str) -> bool:
    return any(word in fault for word in only.split(","))


def _names(faults: Sequence[Fault], checks: str) -> bool:
    """Tell whether one of these checks found something."""
    return any(fault.check in checks.split() for fault in faults)


def _oversized(path: Path, side: int) -> None:
    """Write a header that promises more than a limited process holds, before a few packed zeros."""
    header = nibabel.Nifti1Header()
    header.set_data_shape((side, side, 1000))
    header.set_data_dtype(np.int16)
    header.set_zooms((0.7, 0.7, 1.0))
    header.set_sform(np.diag([-0.7, -0.7, 1.0, 1.0]), 1)
    header["magic"] = b"n+1"
    header["vox_offset"] = 352
    path.write_bytes(gzip.compress(header.binaryblock + bytes(10_000)))


if __name__ == "__main__":
    main()
