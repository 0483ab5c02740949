"""The check of file formats."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evidcore.api import DataError, Format, MaskRef, VolumeRef
from evidcore.data import Geometry, Mask, Volume
from evidcore.data.masks import mask_by
from evidcore.data.reading import placed, volume_of
from evidcore_testing.clauses import broken, fell, raises_nothing, require

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
    volume = _volume(format, ref)
    clause = "the values are right"
    same = volume.array.shape == expected.array.shape and np.array_equal(volume.array, expected.array)
    found = f"got {volume.array.dtype} {volume.array.shape}, mean {float(np.mean(volume.array)):g}; expected "
    found += f"{expected.array.dtype} {expected.array.shape}, mean {float(np.mean(expected.array)):g}"
    require(same, format, clause, found)
    fits = volume.geometry.fits(expected.geometry)
    found = f"got {volume.geometry}, expected {expected.geometry}"
    require(fits, format, "the place in the body is right", found)
    again = _volume(format, ref)
    same = np.array_equal(again.array, volume.array) and again.geometry.fits(volume.geometry)
    require(same, format, "a volume that is opened twice is the same", "it is another")
    stored = format.open(ref)
    same = np.array_equal(stored.values(), stored.values())
    require(same, format, "voxels that are loaded twice are the same", "they differ")
    with tempfile.TemporaryDirectory() as folder:
        _files(format, ref, volume, Path(folder))
        _content(format, ref, Path(folder), by_content)
        _faults(format, ref, Path(folder))
    if mask is not None and inside is not None:
        _masks(format, mask, inside, volume)


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


def _volume(format: Format, ref: VolumeRef) -> Volume:
    """Read by way of the core, as if the format were installed."""
    with raises_nothing(format, "a good file is opened", ref.path):
        stored = format.open(ref)
    with raises_nothing(format, "a good file is loaded", ref.path):
        shape = stored.load().shape
    clause = "`open` gives the grid that the voxels have"
    told = f"the grid has {stored.grid.shape}, the voxels {shape}"
    require(shape == stored.grid.shape, format, clause, told)
    with raises_nothing(format, "a good file is placed in the body", ref.path):
        return volume_of(ref, stored, placed(ref, stored))


def _files(format: Format, ref: VolumeRef, volume: Volume, folder: Path) -> None:
    clause = "the files behind a path exist and are in order"
    with raises_nothing(format, clause, ref.path):
        files = format.files(ref.path)
    missing = [str(file) for file in files if not file.is_file()]
    require(bool(files) and not missing, format, clause, f"missing: {missing or 'all'}")
    require(files == sorted(files), format, clause, f"got {[str(file) for file in files]}")
    copy = _copied(format, ref, folder / "complete")
    clause = "the files behind a path hold all that is read"
    with raises_nothing(format, clause, f"a copy of {[file.name for file in files]}"):
        other = _volume(format, copy)
    require(np.array_equal(other.array, volume.array), format, clause, "a copy of them is another volume")


def _content(format: Format, ref: VolumeRef, folder: Path, by_content: bool) -> None:
    clause = "a file is recognised by its content where that is promised"
    with raises_nothing(format, clause, ref.path):
        known = format.recognises(ref.path)
    require(known or not by_content, format, clause, f"{ref.path} is not")
    clause = "what is of no format is not recognised"
    (folder / "empty").mkdir()
    (folder / "text").mkdir()
    (folder / "text" / "note").write_text("nothing of the kind, and long enough for a header. " * 9)
    for path in (folder / "empty", folder / "text", folder / "text" / "note"):
        with raises_nothing(format, clause, str(path)):
            known = format.recognises(str(path))
        require(not known, format, clause, f"{path.name} is")


def _faults(format: Format, ref: VolumeRef, folder: Path) -> None:
    """Damage each file behind the path in turn."""
    clause = "a file that cannot be used raises a DataError that names it"
    for number, name in enumerate(file.name for file in format.files(ref.path)):
        for kind, damaged in (
            ("cut off in its header", lambda content: content[: min(20, len(content) // 2)]),
            ("cut off in its voxels", lambda content: content[: len(content) * 9 // 10]),
            ("that holds anything else", lambda content: b"nothing of the kind " * 30),
        ):
            copy = _copied(format, ref, folder / f"{number}-{kind}")
            file = next(file for file in format.files(copy.path) if file.name == name)
            file.write_bytes(damaged(file.read_bytes()))
            given = f"{name} {kind}"
            try:
                format.open(copy).values()
            except DataError as error:
                require(str(file.parent) in str(error), format, clause, f"{given} raised: {error}")
            except Exception as error:
                fell(format, clause, given, error)
            else:
                broken(format, clause, f"{given} was accepted")


def _copied(format: Format, ref: VolumeRef, folder: Path) -> VolumeRef:
    """Copy the files behind a reference, and nothing else, into a new folder."""
    folder.mkdir()
    for file in format.files(ref.path):
        shutil.copy(file, folder)
    path = folder if Path(ref.path).is_dir() else folder / Path(ref.path).name
    return dataclasses.replace(ref, path=str(path))


def _masks(format: Format, ref: MaskRef, inside: Mask, volume: Volume) -> None:
    clause = "a mask is boolean, on the volume's grid, and right"
    with raises_nothing(format, clause, str(ref)):
        found = mask_by(format, ref, volume)
    sound = found.dtype == np.bool_ and found.shape == volume.shape_zyx
    require(sound, format, clause, f"got {found.dtype} {found.shape} on {volume.geometry}")
    apart = int((found != inside).sum())
    require(apart == 0, format, clause, f"{apart} voxels differ for {ref}")
    if ref.label is None:
        return
    clause = "a label that does not occur gives an empty mask"
    with raises_nothing(format, clause, f"label {ABSENT}"):
        count = int(mask_by(format, dataclasses.replace(ref, label=ABSENT), volume).sum())
    require(count == 0, format, clause, f"label {ABSENT} gave {count} voxels")
