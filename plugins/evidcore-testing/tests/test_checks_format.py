import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from evidcore_testing import check_format

from evidcore.case import MaskRef, VolumeRef
from evidcore.errors import DataError
from evidcore.formats import FileGrid, Format, Geometry, Stored, Volume

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
            raise DataError(
                f"{voxels}: holds {len(content)} bytes, expected {VALUES.nbytes}. Write it again."
            )
        return np.frombuffer(content, np.int16).reshape(VALUES.shape)

    def files(self, path):
        return sorted([Path(path), self.voxels(path)])


class OtherGrid(Plain):
    def grid(self):
        return FileGrid(shape=(3, 4, 5), affine=np.diag([*SPACING, 1.0]))


class Upside(Plain):
    def load(self, voxels):
        return super().load(voxels)[::-1]


class Shifted(Plain):
    def grid(self):
        affine = super().grid().affine.copy()
        affine[0, 3] = 5.0
        return dataclasses.replace(super().grid(), affine=affine)


class Restless(Plain):
    turns = itertools.count()

    def load(self, voxels):
        return super().load(voxels) + np.int16(next(self.turns) > 2)


class Wanders(Plain):
    turns = itertools.count()

    def load(self, voxels):
        return super().load(voxels) + np.int16(next(self.turns) > 4)


class OneFile(Plain):
    def files(self, path):
        return [Path(path)]


class GoneFile(Plain):
    def files(self, path):
        return [Path(path).with_name("gone")]


class Unordered(Plain):
    def files(self, path):
        return super().files(path)[::-1]


class KnowsNothing(Plain):
    def recognises(self, path):
        return False


class KnowsAll(Plain):
    def recognises(self, path):
        return True


class OtherError(Plain):
    def load(self, voxels):
        return np.frombuffer(voxels.read_bytes(), np.int16).reshape(VALUES.shape)


class Fills(Plain):
    def load(self, voxels):
        content = voxels.read_bytes()[: VALUES.nbytes]
        return np.frombuffer(content + bytes(VALUES.nbytes - len(content)), np.int16).reshape(VALUES.shape)


class NamesNothing(Plain):
    def load(self, voxels):
        try:
            return super().load(voxels)
        except DataError as cause:
            raise DataError("a file is broken") from cause


class Numbers(Plain):
    def mask(self, ref, like):
        return (like.array == ref.label).astype(np.uint8)


class OtherLabel(Plain):
    def mask(self, ref, like):
        return like.array == 8


class Refuses(Plain):
    def mask(self, ref, like):
        if ref.label not in like.array:
            raise DataError(f"{ref.path}: holds no {ref.label}")
        return like.array == ref.label


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


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (
            OtherGrid,
            r"OtherGrid breaks its contract: `open` gives the grid .* has \(3, 4, 5\), the voxels \(5,",
        ),
        (
            Upside,
            r"the values are right. got int16 \(3, 4, 5\), mean 9\.5; expected int16 \(3, 4, 5\), mean 9",
        ),
        (Shifted, r"the place in the body is right. got 3x4x5 voxels .*\(0\.0, 0\.0, 5\.0\) mm .*, expected"),
        (Restless, "a volume that is opened twice is the same. it is another"),
        (Wanders, "voxels that are loaded twice are the same. they differ"),
        (OneFile, r"hold all that is read. a copy of \['a\.plain'\] raised .*voxels"),
        (GoneFile, r"the files behind a path exist and are in order. missing: \['.*gone'\]"),
        (Unordered, r"the files behind a path exist and are in order. got \['.*voxels', '.*a\.plain'\]"),
        (KnowsNothing, r"recognised by its content where that is promised. .*a\.plain is not"),
        (KnowsAll, "what is of no format is not recognised. empty is"),
        (OtherError, r"raises a DataError that names it. voxels cut off in its header raised ValueError"),
        (Fills, r"raises a DataError that names it. voxels cut off in its header was accepted"),
        (NamesNothing, r"a DataError that names it. voxels cut off in its header raised: a file is broken"),
        (Numbers, r"a mask is boolean, on the volume's grid, .* got uint8 \(3, 4, 5\)"),
        (OtherLabel, r"and right. 2 voxels differ for MaskRef"),
        (Refuses, "a label that does not occur gives an empty mask. label 250 raised DataError"),
    ],
)
def test_a_format_that_breaks_a_clause_is_caught(mutant, message, files):
    with pytest.raises(AssertionError, match=message):
        check(mutant(), files)
