"""NRRD files: `.nrrd`, or `.nhdr` with its voxels in other files."""

import bz2
import dataclasses
import io
import math
import os
import re
import zlib
from pathlib import Path
from typing import IO, Any

import nrrd
import numpy as np

from evidcore.api import DataError, Format, MaskRef, VolumeRef
from evidcore.data import Array, FileGrid, Mask, Stored, Volume, refuse_shape
from evidcore.data.arrays import stated_affine
from evidcore.data.masks import label_mask
from evidcore.data.stored import AGAIN, refuse_substitute, refuse_type, unreadable
from evidcore.errors import did_you_mean
from evidcore_plugin_dicom.dicom import pick_one
from evidcore_plugin_dicom.headers import odd_values_named

# NRRD's names of the space that directions are given in, and what turns x and y into LPS.
SPACES = {
    "left-posterior-superior": (1.0, 1.0),
    "right-anterior-superior": (-1.0, -1.0),
    "left-anterior-superior": (1.0, -1.0),
}
SHORT = {"lps": "left-posterior-superior", "ras": "right-anterior-superior", "las": "left-anterior-superior"}
UNPACKERS: dict[str, Any] = {"bz": bz2.BZ2Decompressor, "gz": lambda: zlib.decompressobj(31)}  # 31: gzip
MOST_BEFORE_BYTES = 1 << 20  # before the voxels
TEXT_BYTES = 32  # of a voxel as text, with its blanks
RAW = {"encoding": "raw", "lineskip": 0}
MISTAKES = (nrrd.NRRDError, ValueError, KeyError, OSError, EOFError, zlib.error, AssertionError)


class Nrrd(Format):
    """NRRD of any encoding: `.nrrd`, or `.nhdr` with its voxels in another file.

    Axes and spacing of the reference take the place of the header's space, directions and origin. A mask in a
    `.seg.nrrd` is picked by its segment's name as `key`, or by its value as `label`.
    """

    takes = frozenset({"axes"})

    def open(self, ref: VolumeRef) -> Stored:
        with odd_values_named(ref.path):
            path, given = ref.path, stated_affine(ref)
            header = read_header(path)
            shape = tuple(int(count) for count in header["sizes"])
            bytes_each = nrrd.reader._determine_datatype(header).itemsize
            refuse_shape(tuple(sorted(shape, key=lambda count: count == 1)), path, bytes_each)
            if given is None:
                space, (directions, spatial) = _space(header, path), _directions(header, path)
                affine = np.eye(4)
                affine[:3, :3] = directions.T
                affine[:3, 3] = np.asarray(header.get("space origin", np.zeros(3)), dtype=np.float64)
                affine[:2] *= np.array(SPACES[space])[:, None]
                x, y, z = (shape[axis] for axis in spatial)
                grid = FileGrid(shape=(x, y, z), affine=affine)
            else:
                sides = tuple(count for count in shape if len(shape) == 3 or count != 1)
                refuse_shape(sides, path)
                grid = FileGrid(shape=(sides[0], sides[1], sides[2]), affine=given)
            return Stored(grid=grid, load=lambda: _voxels(path).reshape(grid.shape, order="F"))

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return a label, or the segment that `ref.key` names."""
        stored = self.open(VolumeRef(path=ref.path, intensity="arbitrary"))
        if ref.key is not None and ref.path.lower().endswith(".seg.nrrd"):
            with odd_values_named(ref.path):
                number = pick_one(segments_of(ref.path), ref, "segment")
            ref = dataclasses.replace(ref, key=None, label=number)
        return label_mask(stored, ref, like)

    def files(self, path: str) -> list[Path]:
        """Return the file, and that of its voxels where they are not in it."""
        return [Path(path), *data_files(path)]


def read_header(path: str) -> dict[str, Any]:
    """Return what the header says, by NRRD's names of its fields."""
    try:
        with open(path, "rb") as file:
            header: dict[str, Any] = nrrd.read_header(io.BytesIO(file.read(MOST_BEFORE_BYTES)))
        header["sizes"], header["encoding"], header["type"]
    except MISTAKES as cause:
        raise DataError(f"{path}: has no usable NRRD header ({_reason(cause)}). {AGAIN}") from cause
    return header


def data_files(path: str) -> list[Path]:
    """Return the other files that hold a header's voxels; none where they are behind it.

    A stranger's header may name none elsewhere. Links are followed: DataLad and the Hub's cache keep such.
    """
    header = read_header(path)
    named = header.get("datafile", header.get("data file"))
    if named is None:
        return []
    folder, text = Path(path).parent, str(named)
    if not Path(os.path.abspath(folder / text)).is_relative_to(os.path.abspath(folder)):
        why = f"its header names {text!r}, outside its own folder"
        raise DataError(f"{path}: {why}. Put the voxels beside the header, and name them by their file name.")
    if re.match(r"LIST\b|.*%\d*d", text):
        why = f"its voxels lie in several files, data file {text.splitlines()[0]!r}; one is read"
        raise DataError(f"{path}: {why}. Save it as one .nrrd, for instance with 3D Slicer.")
    return [folder / text]


def segments_of(path: str) -> dict[int, str]:
    """Return the names of the segments in a `.seg.nrrd` as 3D Slicer writes it, by value."""
    header = read_header(path)
    values = {field: f"{field.removesuffix('_Name')}_LabelValue" for field in header}
    return {
        int(header[value]): str(header[field])
        for field, value in values.items()
        if re.fullmatch(r"Segment\d+_Name", field) and value in header
    }


def _space(header: dict[str, Any], path: str) -> str:
    """Return the full name of the space, one of those that say where left is."""
    space = str(header.get("space", "")).lower()
    space = SHORT.get(space, space)
    if space not in SPACES or "space directions" not in header:
        stated = f"space {header['space']!r}" if "space" in header else "no space"
        if space in SPACES:
            stated = "no space directions"
        why = f"states no orientation ({stated}), so left and right are unknown.{did_you_mean(space, SPACES)}"
        expected = f"Expected space {', '.join(SPACES)} and space directions"
        raise DataError(f"{path}: {why} {expected}. Write both into the header.")
    units = [str(unit) for unit in header.get("space units", [])]
    if any(unit not in {"mm", ""} for unit in units):
        raise DataError(f"{path}: its space units are {units}, expected mm. Write the file again in mm.")
    return space


def _directions(header: dict[str, Any], path: str) -> tuple[Array, tuple[int, ...]]:
    """Return a row (x, y, z) in mm for each of the 3 spatial axes, and which axes these are."""
    rows = np.atleast_2d(np.asarray(header["space directions"], dtype=np.float64))
    spatial = tuple(int(axis) for axis in np.flatnonzero(np.isfinite(rows).all(axis=1)))
    sizes = [int(count) for count in header["sizes"]]
    others = [sizes[axis] for axis in range(len(sizes)) if axis not in spatial]
    if len(spatial) != 3 or rows.shape[1] != 3 or any(count != 1 for count in others):
        why = f"has {len(spatial)} axes with a direction in space, sizes {sizes}"
        remedy = "Split a series, colours or layers into one file each."
        raise DataError(f"{path}: {why}; expected 3, any other of size 1. {remedy}")
    return rows[list(spatial)], spatial


def _voxels(path: str) -> Array:
    """Return the voxels, axes in the file's order, the first running fastest."""
    header, others = read_header(path) | {"datafile": None}, data_files(path)  # it goes before "data file"
    file, unpacker = next(iter(others), Path(path)), UNPACKERS.get(header["encoding"][:2])
    if not file.is_file():
        raise DataError(f"{path}: its voxels should lie in {unreadable(file, remedy=AGAIN)}")
    refuse_substitute(file)
    count, size = math.prod(map(int, header["sizes"])), file.stat().st_size
    needed = count * nrrd.reader._determine_datatype(header).itemsize
    is_text = unpacker is None and header["encoding"] != "raw"
    most = count * TEXT_BYTES if is_text else needed + needed // 64  # packing adds a hundredth to noise
    if size > most + MOST_BEFORE_BYTES:  # a sparse file takes no disk, and would fill the memory
        why = f"its header states {needed} bytes of voxels, their file has {size} bytes"
        raise DataError(f"{path}: {why}. {AGAIN}")
    for name in ("lineskip", "line skip", "byteskip", "byte skip"):
        # the file is read line by line, behind its end too; bytes are those that a packed file unpacks to
        if header.get(name, 0) > max(size, MOST_BEFORE_BYTES):
            why = f"its {name} is {header[name]}, its voxels' file has {size} bytes"
            raise DataError(f"{path}: {why}. {AGAIN}")
    try:
        with file.open("rb") as stream:
            if not others:
                nrrd.read_header(stream)  # the voxels begin behind it
            if unpacker is None:
                array: Array = nrrd.read_data(header, stream)
            else:
                array = nrrd.read_data(header | RAW, _unpacked(path, header, stream, unpacker(), needed))
    except MISTAKES as cause:
        raise DataError(f"{path}: its voxels cannot be read ({_reason(cause)}). {AGAIN}") from cause
    refuse_type(array.dtype, path)
    return array


def _unpacked(path: str, header: dict[str, Any], stream: IO[bytes], unpacker: Any, needed: int) -> io.BytesIO:
    """Unpack what lies before the voxels and these, at most as many bytes as the header states."""
    for _ in range(header.get("lineskip", header.get("line skip", 0))):
        stream.readline()
    before = header.get("byteskip", header.get("byte skip", 0))  # -1: the voxels are the last
    most = needed + (before if 0 <= before < MOST_BEFORE_BYTES else MOST_BEFORE_BYTES)
    payload = unpacker.decompress(stream.read(), most + 1)
    if len(payload) > most:
        raise DataError(f"{path}: unpacks to more than the {most} bytes that its header states. {AGAIN}")
    return io.BytesIO(payload)


def _reason(cause: BaseException) -> str:
    return " ".join(str(cause).split()) or type(cause).__name__
