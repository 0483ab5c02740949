import itertools
from pathlib import Path

import pytest
from evidcore_testing import check_reader, volume_case

from evidcore.case import Crop
from evidcore.contracts import ImageQuestion, Reader
from evidcore.errors import DataError
from evidcore.volume import read


class Density(Reader):
    deterministic = True

    def __call__(self, questions):
        return [self.answer(question) for question in questions]

    def answer(self, question):
        mean = float(read(question.crops[0].volume).array.mean())
        return f"{mean:.1f} HU" if "dense" in question.text else None


class Undeclared(Density):
    deterministic = None


class Silent(Density):
    def answer(self, question):
        return ""


class Moody(Density):
    turns = itertools.count()

    def answer(self, question):
        return f"{next(self.turns)} HU"


class Short(Density):
    def __call__(self, questions):
        return super().__call__(questions)[:1]


class Remembers(Density):
    def __call__(self, questions):
        return [f"question {number}" for number, _ in enumerate(questions)]


class LooksAside(Density):
    def answer(self, question):
        return Path(question.crops[0].volume.path).with_name("report.txt").read_text()


class KnowsTheName(Density):
    def answer(self, question):
        return Path(question.crops[0].volume.path).name


class Unfitted(Density):
    def ready(self):
        raise DataError("Unfitted: was never fitted.")


@pytest.fixture
def crop(tmp_path):
    case = volume_case(tmp_path / "case")
    (tmp_path / "case" / "report.txt").write_text(case.report.text)
    return Crop(volume=case.volumes[0])


def asked(crop, *texts):
    return [ImageQuestion(crops=(crop,), text=text) for text in texts]


def test_a_sound_reader_passes(crop, tmp_path):
    check_reader(Density(), asked(crop, "How dense is it?", "Is it raining?"), tmp_path / "alone")


def test_a_reader_that_says_it_samples_may_change_its_mind(crop, tmp_path):
    class Sampling(Moody):
        deterministic = False

    check_reader(Sampling(), asked(crop, "How dense is it?"), tmp_path / "alone")


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Undeclared, "Undeclared breaks its contract: it declares whether it is deterministic. got None"),
        (Unfitted, "it has what it needs. .* raised DataError: Unfitted: was never fitted."),
        (Short, "an answer per question. got 1 answers to 2 questions"),
        (Silent, "an answer is a text that is not empty, or None. got ''"),
        (Moody, r"a deterministic reader answers twice the same. \['\d HU', '\d HU'\], then \['\d HU'"),
        (Remembers, "a question is answered alone as among others. .* then .'question 0', 'question 0'"),
        (LooksAside, "it goes by pixels, not by what lies beside them. .* raised FileNotFoundError"),
        (
            KnowsTheName,
            r"it goes by pixels.* 'case-0\.nii\.gz'.* became .*'volume\.nii\.gz'.* where the volume lies",
        ),
    ],
)
def test_a_reader_that_breaks_a_clause_is_caught(mutant, message, crop, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check_reader(mutant(), asked(crop, "How dense is it?", "Is it dense?"), tmp_path / "alone")
