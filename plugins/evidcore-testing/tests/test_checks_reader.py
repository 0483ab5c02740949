import itertools
from pathlib import Path

import pytest
from evidcore_testing import check_reader, volume_case

from evidcore.api import Crop, DataError, Reader, read
from evidcore.contracts import ImageQuestion


class Density(Reader):
    deterministic = True

    def __call__(self, questions):
        return [self.answer(question) for question in questions]

    def answer(self, question):
        mean = float(read(question.crops[0].volume).array.mean())
        return f"{mean:.1f} HU" if "dense" in question.text else None


def mutant(**members):
    return type("Mutant", (Density,), members)


def path(question):
    return Path(question.crops[0].volume.path)


def never_fitted(self):
    raise DataError("Unfitted: was never fitted.")


COUNT = itertools.count()
MOODY = {"answer": lambda self, question: f"{next(COUNT)} HU"}
MUTANTS = {
    "Mutant breaks its contract: it declares whether it is deterministic. got None": mutant(
        deterministic=None
    ),
    "it has what it needs. .* raised DataError: Unfitted: was never fitted.": mutant(ready=never_fitted),
    "an answer per question. got 1 answers to 2 questions": mutant(
        __call__=lambda self, questions: ["dense"]
    ),
    "an answer is a text that is not empty, or None. got ''": mutant(answer=lambda self, question: ""),
    r"a deterministic reader answers twice the same. \['\d+ HU', '\d+ HU'\], then ": mutant(**MOODY),
    "a question is answered alone as among others. .* then .'question 0', 'question 0'": mutant(
        __call__=lambda self, questions: [f"question {number}" for number, _ in enumerate(questions)]
    ),
    r"it goes by pixels.* 'case-0\.nii\.gz'.* became .*'volume\.nii\.gz'.* where the volume lies": mutant(
        answer=lambda self, question: path(question).name
    ),
}


@pytest.fixture
def asked(tmp_path):
    case = volume_case(tmp_path / "case")
    (tmp_path / "case" / "report.txt").write_text(case.report.text)
    crops = (Crop(volume=case.volumes[0]),)
    return [ImageQuestion(crops=crops, text=text) for text in ("How dense is it?", "Is it raining?")]


@pytest.mark.parametrize("sound", [Density, mutant(deterministic=False, **MOODY)])
def test_a_sound_reader_passes_and_one_that_samples_may_change_its_mind(sound, asked, tmp_path):
    check_reader(sound(), asked, tmp_path / "alone")


@pytest.mark.parametrize("message", MUTANTS)
def test_a_reader_that_breaks_a_clause_is_caught(message, asked, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check_reader(MUTANTS[message](), asked, tmp_path / "alone")
