"""Which reader a path asks for, and which files stand behind it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from evidcore.case import VolumeRef
from evidcore.errors import DataError
from evidcore.volume.arrays import stated_affine
from evidcore.volume.stored import AGAIN, Stored, unreadable

Format = Literal["nifti", "nrrd", "array", "picture", "dicom"]
State = tuple[tuple[str, int, int], ...]

ENDINGS: dict[str, Format] = {
    ".nii": "nifti",
    ".nii.gz": "nifti",
    ".nrrd": "nrrd",
    ".nhdr": "nrrd",
    ".npy": "array",
    ".npz": "array",
    ".png": "picture",
    ".jpg": "picture",
    ".jpeg": "picture",
}
DICOM_STARTS = (b"\x02\x00", b"\x08\x00")  # the first group where the 128-byte preamble is left out


def format_of(path: str) -> Format:
    """Tell the format of an existing file or folder by its name, DICOM by its content.

    Raises:
        DataError: if nothing is there, or nothing that is read.
    """
    file = Path(path)
    try:
        facts = file.stat()
    except (FileNotFoundError, NotADirectoryError) as cause:
        raise DataError(
            f"{path}: there is no such file. Check the path in the table or the recipe."
        ) from cause
    except OSError as cause:
        raise unreadable(path, cause) from cause
    if stat.S_ISDIR(facts.st_mode):
        return "dicom"
    if facts.st_size == 0:
        raise DataError(f"{path}: the file is empty, 0 bytes. {AGAIN}")
    name = file.name.lower()
    for ending, kind in ENDINGS.items():
        if name.endswith(ending):
            return kind
    if is_dicom(file):
        return "dicom"
    ending = "".join(file.suffixes[-2:]) or "none"
    raise DataError(
        f"{path}: is no format that is read, its ending is {ending!r} and its content no DICOM. Read are "
        f"{', '.join(ENDINGS)}, a DICOM file, and a folder of DICOM files. Convert it with SimpleITK."
    )


def is_dicom(file: Path) -> bool:
    """Tell DICOM by its first bytes, with or without the preamble."""
    try:
        with file.open("rb") as stream:
            start = stream.read(132)
    except OSError as cause:
        raise unreadable(file, cause) from cause
    return start[128:] == b"DICM" or start[:2] in DICOM_STARTS


def open_volume(ref: VolumeRef) -> Stored:
    """Read the header of the file or files behind a reference.

    Raises:
        DataError: if they cannot be used, or the reference gives what its format has no use for.
    """
    kind = format_of(ref.path)
    if ref.axes is not None and kind not in {"array", "nifti", "nrrd"}:
        raise DataError(
            f"{ref.path}: axes {ref.axes!r} is for bare arrays, NIfTI and NRRD; this file states its own. "
            f"Leave axes out."
        )
    if ref.key is not None and kind not in {"array", "dicom"}:
        raise DataError(
            f"{ref.path}: key {ref.key!r} needs an .npz file or a DICOM folder; this file holds one volume. "
            f"Leave the key out."
        )
    if kind == "nifti":
        from evidcore.volume.nifti import open_nifti

        return open_nifti(ref.path, stated_affine(ref))
    if kind == "nrrd":
        from evidcore.volume.nrrd import open_nrrd

        return open_nrrd(ref.path, stated_affine(ref))
    if kind == "array":
        from evidcore.volume.arrays import open_array

        return open_array(ref)
    if kind == "picture":
        from evidcore.volume.pictures import open_picture

        return open_picture(ref.path, ref.intensity)
    from evidcore.volume.dicom.series import open_series

    return open_series(ref)


def files_of(path: str) -> list[Path]:
    """Return every file whose bytes may matter to the volume or mask at `path`, in order of name.

    That is the file itself, the voxels of a `.nhdr`, or the whole folder of a DICOM series.

    Raises:
        DataError: if nothing readable is there.
    """
    kind, file = format_of(path), Path(path)
    if kind == "nrrd" and not path.lower().endswith(".nrrd"):
        from evidcore.volume.nrrd import data_files

        return [file, *data_files(path)]
    if kind != "dicom":
        return [file]
    if file.is_file():
        from evidcore.volume.dicom.series import stands_alone

        if stands_alone(path):
            return [file]
        file = file.parent
    return files_in(file)


def files_in(folder: Path) -> list[Path]:
    """Return the files directly in a folder in order of name, without hidden ones.

    Raises:
        DataError: if the folder cannot be read.
    """
    try:
        return sorted(
            entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith(".")
        )
    except OSError as cause:
        raise unreadable(folder, cause) from cause


def file_state(path: str) -> State | None:
    """Return name, time and size of every file of `files_of`; None where they cannot be listed.

    What was remembered for a state holds while the state is the same.
    """
    try:
        listed = [(str(file), file.stat()) for file in files_of(path)]
    except (DataError, OSError):
        return None
    return tuple((os.path.realpath(name), facts.st_mtime_ns, facts.st_size) for name, facts in listed)
