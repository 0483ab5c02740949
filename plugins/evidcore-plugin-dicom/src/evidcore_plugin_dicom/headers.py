"""DICOM headers, read without their voxels, and values out of them with names in errors."""

import contextlib
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pydicom
from pydicom import filereader
from pydicom.dataset import Dataset
from pydicom.errors import BytesLengthException, InvalidDicomError
from pydicom.tag import Tag
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from evidcore.api import DataError
from evidcore.data.stored import AGAIN, unreadable

# Values that bend the standard are common and harmless; those that are used are checked here. For the whole
# process, since Python's own way to silence a warning is not safe where threads read at once.
pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE

# Frames of one segment each, and label maps.
SEGMENTATIONS = {"1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7"}
MOST_FILE_BYTES = 1 << 32  # as many as of voxels
MOST_INFLATED_BYTES = 1 << 30  # of a deflated file; as much as 2000 slices of 512 x 512
FIRST, PIXELS = 0x00040000, 0x7FE00008  # tags of a data set rise from the one, the other begins its voxels
STARTS = (b"\x02\x00", b"\x08\x00")  # the first group where the 128-byte preamble is left out
MISTAKES = (
    InvalidDicomError, BytesLengthException, AttributeError, EOFError, KeyError, OSError, OverflowError,
    RuntimeError, TypeError, ValueError, struct.error, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def odd_values_named(path: str) -> Iterator[None]:
    """Stop at a header's value that is missing, or of a type that its field does not have."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as cause:
        why = f"a value of its header is missing or of another type ({type(cause).__name__}: {cause})"
        raise DataError(f"{path}: {why}. {AGAIN}") from cause


def is_dicom(file: Path) -> bool:
    """Tell DICOM by its first bytes, with or without the preamble."""
    try:
        with file.open("rb") as stream:
            start = stream.read(132)
    except OSError as cause:
        raise unreadable(file, cause) from cause
    return start[128:] == b"DICM" or start[:2] in STARTS


def files_in(folder: Path) -> list[Path]:
    """Return the files directly in a folder in order of name, without hidden ones."""
    try:
        return sorted(file for file in folder.iterdir() if file.is_file() and file.name[0] != ".")
    except OSError as cause:
        raise unreadable(folder, cause) from cause


def read_dataset(path: str, *, voxels: bool = False, only: Iterable[str] | None = None) -> Dataset:
    """Return a DICOM file's data set; `only` names what is needed of its header.

    Raises:
        DataError: if the file is no readable DICOM.
    """
    try:
        # a deflated file may fill the memory, for pydicom inflates all of it; a sparse one is endless zeros
        with open(path, "rb") as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MOST_FILE_BYTES:
                raise ValueError(f"it has {size} bytes, at most {MOST_FILE_BYTES} are read")
            filereader.read_preamble(stream, force=True)
            syntax = filereader._read_file_meta_info(stream).get("TransferSyntaxUID")
            inflating, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
            while syntax == DeflatedExplicitVRLittleEndian and (packed := stream.read(1 << 14)):
                size += len(inflating.decompress(packed))
                if size > MOST_INFLATED_BYTES:
                    raise ValueError(f"it inflates to more than {MOST_INFLATED_BYTES} bytes, too many")
            stream.seek(0)
            tags: Any = None if only is None else [Tag(name) for name in only]
            end = 1 << 32 if voxels else PIXELS
            dataset = filereader.read_partial(
                stream, lambda tag, *_: not FIRST <= tag < end, force=True, specific_tags=tags
            )
        if "TransferSyntaxUID" not in dataset.file_meta:  # a file without preamble and meta group
            is_implicit = dataset.original_encoding[0]
            syntax = ImplicitVRLittleEndian if is_implicit else ExplicitVRLittleEndian
            dataset.file_meta.TransferSyntaxUID = syntax
    except MISTAKES as cause:
        raise DataError(f"{path}: is no readable DICOM file ({cause}). {AGAIN}") from cause
    return dataset


def numbers(held: Any, name: str, count: int, path: str) -> tuple[float, ...]:
    """Return the `count` numbers of an attribute."""
    value: Any = None if held is None else held.get(name)
    try:
        listed = [value] if count == 1 else list(value)
        result = tuple(float(number) for number in listed)
    except (TypeError, ValueError):
        result = ()
    if len(result) != count or not all(math.isfinite(number) for number in result):
        why = f"{name} must hold {count} number{'s' if count > 1 else ''}, got {shown(value)}"
        raise DataError(f"{path}: {why}. Without it the image has no place or size; export the series again.")
    return result


def shown(value: Any) -> str:
    """Return an attribute's value for an error."""
    return "nothing" if value is None or value == "" else repr(str(value))
