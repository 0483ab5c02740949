import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from evidcore_testing import check_format
from mutants import altered, caught, changing

from evidcore.api import DataError, Format, MaskRef, VolumeRef
from evidcore.data import FileGrid, Geometry, Stored, Volume

VALUES = np.arange(-20, 40, dtype=np.int16).reshape(3, 4, 5)
SPACING = (3.0, 2.0, 1.0)


class Plain(Format):
    """A line `plain`, a line with the name of the file of its voxels, which are int16 (z, y, x)."""

    def voxels(self, path):
        lines = Path(path).read_bytes().split(b"\n")
        if lines[0] != b"plain" or len(lines) != 3 or lines[2] != b"end":
            raise DataError(f"{path}: is no plain file. Write it again.")
        return Path(path).with_name(lines[1].decode())

    def recognises(self, path):
        return Path(path).is_file() and Path(path).read_bytes().startswith(b"plain\n")

    def open(self, ref):
        voxels = self.voxels(ref.path)
        return Stored(grid=self.grid(), load=lambda: self.load(voxels).T)

    def grid(self):
        return FileGrid(shape=(5, 4, 3), affine=np.diag([*SPACING[::-1], 1.0]))

    def load(self, voxels):
        content = voxels.read_bytes()
        if len(content) != VALUES.nbytes:
            raise DataError(f"{voxels}: holds {len(content)} bytes, expected {VALUES.nbytes}.")
        return np.frombuffer(content, np.int16).reshape(VALUES.shape)

    def files(self, path):
        return sorted([Path(path), self.voxels(path)])


def marking(mask):
    return altered(Plain, mask=lambda self, ref, like: mask(ref, like.array))


def restless(calls):
    """Return a format whose voxels change after some calls."""
    turns = itertools.count()
    return changing(Plain, "load", lambda array: array + np.int16(next(turns) > calls))


def refuses(ref, array):
    if ref.label not in array:
        raise DataError(f"{ref.path}: holds no {ref.label}")
    return array == ref.label


def names_nothing(self, voxels):
    try:
        return Plain.load(self, voxels)
    except DataError as cause:
        raise DataError("a file is broken") from cause


def shifted(grid):
    affine = grid.affine.copy()
    affine[0, 3] = 5.0
    return dataclasses.replace(grid, affine=affine)


def turned(grid):
    return dataclasses.replace(grid, shape=(3, 4, 5))


ERROR = "a DataError that names it. voxels cut off in its header"
MUTANTS = {
    r"`open` gives the grid .* has \(3, 4, 5\), the voxels \(5,": changing(Plain, "grid", turned),
    r"the values are right. got int16 \(3, 4, 5\), mean 9\.5; expected int16 \(3, 4, 5\), mean 9":
        changing(Plain, "load", lambda array: array[::-1]),
    r"place in the body is right. got 3x4x5 .*\(0\.0, 0\.0, 5\.0\) mm .*, expected":
        changing(Plain, "grid", shifted),
    "a volume that is opened twice is the same. it is another": restless(2),
    "voxels that are loaded twice are the same. they differ": restless(4),
    r"hold all that is read. a copy of \['a\.plain'\] raised .*voxels":
        changing(Plain, "files", lambda files: files[:1]),
    r"exist and are in order. missing: \['.*gone'\]": changing(Plain, "files", lambda files: [Path("gone")]),
    r"by its content where that is promised. .*a\.plain is not":
        changing(Plain, "recognises", lambda _: False),
    "what is of no format is not recognised. empty is": changing(Plain, "recognises", lambda _: True),
    f"{ERROR} was accepted": altered(Plain, load=lambda self, voxels: VALUES),
    f"{ERROR} raised DataError: a file is broken": altered(Plain, load=names_nothing),
    r"and right. 2 voxels differ for MaskRef": marking(lambda ref, array: array == 8),
    "a label that does not occur gives an empty mask. label 250 raised DataError": marking(refuses),
}  # fmt: skip


def check(format, folder):
    for name in ("scan", "labels"):
        (folder / name).mkdir()
        (folder / name / "a.plain").write_text("plain\nvoxels\nend")
        (folder / name / "voxels").write_bytes(VALUES.tobytes())
    scan, labels = (str(folder / name / "a.plain") for name in ("scan", "labels"))
    geometry = Geometry(shape_zyx=VALUES.shape, affine=np.diag([*SPACING, 1.0]))
    expected = Volume(array=VALUES, geometry=geometry, intensity="hu")
    mask = MaskRef(path=labels, label=7)
    check_format(format, VolumeRef(path=scan), expected, mask=mask, inside=VALUES == 7, by_content=True)


def test_a_sound_format_passes(tmp_path):
    check(Plain(), tmp_path)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_format_that_breaks_a_clause_is_caught(message, tmp_path):
    with caught(message):
        check(MUTANTS[message](), tmp_path)
