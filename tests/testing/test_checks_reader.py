import itertools
from pathlib import Path

import pytest

from evidcore.case import Crop
from evidcore.contracts import Reader
from evidcore.testing import check_reader, volume_case
from evidcore.volume import read


class Density(Reader):
    deterministic = True

    def __call__(self, crops, question):
        mean = float(read(crops[0].volume).array.mean())
        return f"{mean:.1f} HU" if "dense" in question else None


class Undeclared(Density):
    deterministic = None


class Silent(Density):
    def __call__(self, crops, question):
        return ""


class Moody(Density):
    turns = itertools.count()

    def __call__(self, crops, question):
        return f"{next(self.turns)} HU"


class LooksAside(Density):
    def __call__(self, crops, question):
        return Path(crops[0].volume.path).with_name("report.txt").read_text()


class KnowsTheName(Density):
    def __call__(self, crops, question):
        return Path(crops[0].volume.path).name


@pytest.fixture
def crops(tmp_path):
    case = volume_case(tmp_path / "case")
    (tmp_path / "case" / "report.txt").write_text(case.report.text)
    return [Crop(volume=case.volumes[0])]


@pytest.mark.parametrize("question", ["How dense is it?", "Is it raining?"])
def test_a_sound_reader_passes(question, crops, tmp_path):
    check_reader(Density(), crops, question, tmp_path / "alone")


def test_a_reader_that_says_it_samples_may_change_its_mind(crops, tmp_path):
    class Sampling(Moody):
        deterministic = False

    check_reader(Sampling(), crops, "How dense is it?", tmp_path / "alone")


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Undeclared, "Undeclared breaks its contract: it declares whether it is deterministic. got None"),
        (Silent, "an answer is a text that is not empty, or None. got ''"),
        (Moody, r"a deterministic reader answers twice the same. '\d HU', then '\d HU'"),
        (LooksAside, "it goes by pixels, not by what lies beside them. .* raised FileNotFoundError"),
        (
            KnowsTheName,
            r"it goes by pixels.* 'case-0\.nii\.gz' became 'volume\.nii\.gz' where the volume lies",
        ),
    ],
)
def test_a_reader_that_breaks_a_clause_is_caught(mutant, message, crops, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check_reader(mutant(), crops, "How dense is it?", tmp_path / "alone")
