import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from evidcore_testing import check_format

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

    def grid(self, offset_mm=0.0):
        affine = np.diag([*SPACING[::-1], 1.0])
        affine[0, 3] = offset_mm
        return FileGrid(shape=(5, 4, 3), affine=affine)

    def load(self, voxels):
        content = voxels.read_bytes()
        if len(content) != VALUES.nbytes:
            raise DataError(
                f"{voxels}: holds {len(content)} bytes, expected {VALUES.nbytes}. Write it again."
            )
        return values(content)

    def files(self, path):
        return sorted([Path(path), self.voxels(path)])


def values(content):
    return np.frombuffer(content, np.int16).reshape(VALUES.shape)


def mutant(**members):
    return type("Mutant", (Plain,), members)


def loading(change):
    return mutant(load=lambda self, voxels: change(Plain.load(self, voxels)))


def marking(mask):
    return mutant(mask=lambda self, ref, like: mask(ref, like.array))


def restless(calls):
    """Return a format whose voxels change after some calls."""
    turns = itertools.count()
    return loading(lambda array: array + np.int16(next(turns) > calls))


def refuses(ref, array):
    if ref.label not in array:
        raise DataError(f"{ref.path}: holds no {ref.label}")
    return array == ref.label


def names_nothing(self, voxels):
    try:
        return Plain.load(self, voxels)
    except DataError as cause:
        raise DataError("a file is broken") from cause


def fills(self, voxels):
    content = voxels.read_bytes()[: VALUES.nbytes]
    return values(content + bytes(VALUES.nbytes - len(content)))


IN_ORDER, ERROR = (
    "the files behind a path exist and are in order.",
    "a DataError that names it. voxels cut off",
)
MUTANTS = {
    r"Mutant breaks its contract: `open` gives the grid .* has \(3, 4, 5\), the voxels \(5,": mutant(
        grid=lambda self: dataclasses.replace(Plain.grid(self), shape=(3, 4, 5))
    ),
    r"the values are right. got int16 \(3, 4, 5\), mean 9\.5; expected int16 \(3, 4, 5\), mean 9": loading(
        lambda array: array[::-1]
    ),
    r"the place in the body is right. got 3x4x5 voxels .*\(0\.0, 0\.0, 5\.0\) mm .*, expected": mutant(
        grid=lambda self: Plain.grid(self, 5.0)
    ),
    "a volume that is opened twice is the same. it is another": restless(2),
    "voxels that are loaded twice are the same. they differ": restless(4),
    r"hold all that is read. a copy of \['a\.plain'\] raised .*voxels": mutant(
        files=lambda self, path: [Path(path)]
    ),
    rf"{IN_ORDER} missing: \['.*gone'\]": mutant(files=lambda self, path: [Path(path).with_name("gone")]),
    r"recognised by its content where that is promised. .*a\.plain is not": mutant(
        recognises=lambda self, path: False
    ),
    "what is of no format is not recognised. empty is": mutant(recognises=lambda self, path: True),
    f"{ERROR} in its header was accepted": mutant(load=fills),
    f"{ERROR} in its header raised: a file is broken": mutant(load=names_nothing),
    r"and right. 2 voxels differ for MaskRef": marking(lambda ref, array: array == 8),
    "a label that does not occur gives an empty mask. label 250 raised DataError": marking(refuses),
}


@pytest.fixture
def files(tmp_path):
    """A volume and a mask of it, each in a folder of its own."""
    for name in ("scan", "labels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.plain").write_text("plain\nvoxels\nend")
        (tmp_path / name / "voxels").write_bytes(VALUES.tobytes())
    geometry = Geometry(shape_zyx=VALUES.shape, affine=np.diag([*SPACING, 1.0]))
    return (
        VolumeRef(path=str(tmp_path / "scan" / "a.plain")),
        Volume(array=VALUES, geometry=geometry, intensity="hu"),
        MaskRef(path=str(tmp_path / "labels" / "a.plain"), label=7),
    )


def check(format, files):
    ref, expected, mask = files
    check_format(format, ref, expected, mask=mask, inside=expected.array == 7, by_content=True)


def test_a_sound_format_passes(files):
    check(Plain(), files)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_format_that_breaks_a_clause_is_caught(message, files):
    with pytest.raises(AssertionError, match=message):
        check(MUTANTS[message](), files)
