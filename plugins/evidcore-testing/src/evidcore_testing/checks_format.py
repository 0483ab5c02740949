"""The check of file formats."""

import dataclasses
import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evidcore.api import DataError, Format, MaskRef, VolumeRef
from evidcore.data import Geometry, Mask, Volume
from evidcore.data.masks import mask_by
from evidcore.data.reading import placed, volume_of
from evidcore_testing.clauses import Clauses

ABSENT = 250  # a label that no mask of a test has


def check_format(
    format: Format,
    ref: VolumeRef,
    expected: Volume,
    *,
    mask: MaskRef | None = None,
    inside: Mask | None = None,
    by_content: bool = False,
) -> None:
    """Assert the contract of a file format.

    - `open` gives the grid that the voxels have, and the values and the place in the body are right;
    - a volume that is opened or loaded twice is the same;
    - the files behind a path exist, are in order, and hold all that is read;
    - a mask is boolean, on the volume's grid, and right; a label that does not occur gives an empty one;
    - a file is recognised by its content where that is promised, and what is of no format is never;
    - a file that is cut off, or holds anything else, raises a DataError that names it.

    Args:
        format: the component under test.
        ref: a volume in a folder of its own; nothing else is in that folder.
        expected: what `read` must give for it.
        mask: a mask of the volume, in another folder.
        inside: its voxels, shape (z, y, x).
        by_content: whether `recognises` must know the path of `ref`.
    """
    check = Clauses(format)
    volume = _volume(check, format, ref)
    array, given = (f"{one.dtype} {one.shape}, mean {one.mean():g}" for one in (volume.array, expected.array))
    same = np.array_equal(volume.array, expected.array)
    check(same, "the values are right", f"got {array}; expected {given}")
    got = f"got {volume.geometry}, expected {expected.geometry}"
    check(volume.geometry.fits(expected.geometry), "the place in the body is right", got)
    again = _volume(check, format, ref)
    same = np.array_equal(again.array, volume.array) and again.geometry.fits(volume.geometry)
    check(same, "a volume that is opened twice is the same", "it is another")
    stored = format.open(ref)
    same = np.array_equal(stored.values(), stored.values())
    check(same, "voxels that are loaded twice are the same", "they differ")
    with tempfile.TemporaryDirectory() as folder:
        _files(check, format, ref, volume, Path(folder))
        _content(check, format, ref, Path(folder), by_content)
        _faults(check, format, ref, Path(folder))
    if mask is not None and inside is not None:
        clause = "a mask is boolean, on the volume's grid, and right"
        with check.raises_nothing(clause, str(mask)):
            read = mask_by(format, mask, volume)
        sound = read.dtype == np.bool_ and read.shape == volume.shape_zyx
        check(sound, clause, f"got {read.dtype} {read.shape} on {volume.geometry}")
        apart = int((read != inside).sum())
        check(apart == 0, clause, f"{apart} voxels differ for {mask}")
        if mask.label is not None:
            clause = "a label that does not occur gives an empty mask"
            with check.raises_nothing(clause, f"label {ABSENT}"):
                count = int(mask_by(format, dataclasses.replace(mask, label=ABSENT), volume).sum())
            check(count == 0, clause, f"label {ABSENT} gave {count} voxels")


def check_written(
    format: Format,
    ending: str,
    write: Callable[[str, npt.NDArray[np.int16]], VolumeRef],
    folder: Path,
    *,
    slices: int = 6,
    spacing_mm_zyx: tuple[float, float, float] = (3.0, 2.0, 1.0),
) -> None:
    """Assert the contract of a format, as `check_format` does, on what `write` writes.

    Args:
        format: the component under test.
        ending: of its files; jpg and jpeg are lossy, so one value alone is written, and no mask.
        write: writes an array (z, y, x) to a path and returns a reference; it may fill the folder.
        folder: an empty one.
        slices: of the volume.
        spacing_mm_zyx: of the volume that is written.
    """
    is_lossy = ending in {"jpg", "jpeg"}
    array = np.random.default_rng(0).integers(0, 200, (slices, 12, 14)).astype(np.int16)
    array = np.full_like(array, 70) if is_lossy else array
    labels = (array % 5).astype(np.int16)
    scan, mask = (folder / part / f"a.{ending}" for part in ("scan", "labels"))
    for path in (scan, mask):
        path.parent.mkdir(parents=True)
    ref, marked = write(str(scan), array), write(str(mask), labels)
    geometry = Geometry(shape_zyx=(slices, 12, 14), affine=np.diag([*spacing_mm_zyx, 1.0]))
    expected = Volume(array=array, geometry=geometry, intensity=ref.intensity)
    known = None if is_lossy else MaskRef(path=marked.path, label=3)
    is_folder = Path(ref.path).is_dir()
    check_format(format, ref, expected, mask=known, inside=labels == 3, by_content=is_folder)


def _volume(check: Clauses, format: Format, ref: VolumeRef) -> Volume:
    """Read by way of the core, as if the format were installed."""
    with check.raises_nothing("a good file is opened, loaded and placed in the body", ref.path):
        stored = format.open(ref)
        shape = stored.load().shape
        grid = f"the grid has {stored.grid.shape}, the voxels {shape}"
        check(shape == stored.grid.shape, "`open` gives the grid that the voxels have", grid)
        return volume_of(ref, stored, placed(ref, stored))


def _files(check: Clauses, format: Format, ref: VolumeRef, volume: Volume, folder: Path) -> None:
    clause = "the files behind a path exist and are in order"
    with check.raises_nothing(clause, ref.path):
        files = format.files(ref.path)
    missing = [str(file) for file in files if not file.is_file()]
    check(files and not missing, clause, f"missing: {missing or 'all'}")
    check(files == sorted(files), clause, f"got {[str(file) for file in files]}")
    copy = _copied(format, ref, folder / "complete")
    clause = "the files behind a path hold all that is read"
    with check.raises_nothing(clause, f"a copy of {[file.name for file in files]}"):
        other = _volume(check, format, copy)
    check(np.array_equal(other.array, volume.array), clause, "a copy of them is another volume")


def _content(check: Clauses, format: Format, ref: VolumeRef, folder: Path, by_content: bool) -> None:
    (folder / "empty").mkdir()
    (folder / "text").mkdir()
    (folder / "text" / "note").write_text("nothing of the kind, and long enough for a header. " * 9)
    strange = [str(folder / name) for name in ("empty", "text", "text/note")]
    with check.raises_nothing("whether a path is recognised is told", f"one of {[ref.path, *strange]}"):
        known, *others = (format.recognises(path) for path in (ref.path, *strange))
    clause = "a file is recognised by its content where that is promised"
    check(known or not by_content, clause, f"{ref.path} is not")
    for path, is_known in zip(strange, others, strict=True):
        check(not is_known, "what is of no format is not recognised", f"{Path(path).name} is")


def _faults(check: Clauses, format: Format, ref: VolumeRef, folder: Path) -> None:
    """Damage each file behind the path in turn."""
    damages: Mapping[str, Callable[[bytes], bytes]] = {
        "cut off in its header": lambda content: content[: min(20, len(content) // 2)],
        "cut off in its voxels": lambda content: content[: len(content) * 9 // 10],
        "that holds anything else": lambda content: b"nothing of the kind " * 30,
    }
    clause = "a file that cannot be used raises a DataError that names it"
    names = [file.name for file in format.files(ref.path)]
    for (number, name), (kind, damaged) in itertools.product(enumerate(names), damages.items()):
        copy = _copied(format, ref, folder / f"{number}-{kind}")
        file = next(file for file in format.files(copy.path) if file.name == name)
        file.write_bytes(damaged(file.read_bytes()))
        attempt = partial(lambda ref: format.open(ref).values(), copy)
        check.refuses(clause, f"{name} {kind}", attempt, by=DataError, naming=str(file.parent))


def _copied(format: Format, ref: VolumeRef, folder: Path) -> VolumeRef:
    """Copy the files behind a reference, and nothing else, into a new folder."""
    folder.mkdir()
    for file in format.files(ref.path):
        shutil.copy(file, folder)
    path = folder if Path(ref.path).is_dir() else folder / Path(ref.path).name
    return dataclasses.replace(ref, path=str(path))
