import itertools
import re
from pathlib import Path

import pytest
from evidcore_testing import check_labeler, check_reader, check_reweighter, check_scorer
from mutants import altered, caught, changing

from evidcore.api import Crop, Finding, Labeler, Reader, Reweighter, Span, read
from evidcore.builtin.scorers import TokenF1
from evidcore.contracts import ImageQuestion

COUNT = itertools.count()


class Nodules(Labeler):
    """Nodules, denied where the word 'no' stands within ten characters before."""

    def __call__(self, text):
        result = []
        for match in re.finditer("nodule", text, flags=re.IGNORECASE):
            denied = "no " in text[max(0, match.start() - 10) : match.start()].lower()
            span = Span(start=match.start(), end=match.end(), label="")
            result.append(Finding(name="lung nodule", state="absent" if denied else "present", span=span))
        return tuple(result)


EXPECTED = {"A nodule.": {"lung nodule": "present"}, "There is no nodule.": {"lung nodule": "absent"}}


def labelling(change):
    """Return the sound labeler with its findings changed."""
    return changing(Nodules, "__call__", change)


def finding(**fields):
    return labelling(lambda _: (Finding(**{"name": "nodule", **fields}),))


LABELERS = {
    "any text is read or said to be unread. 9 texts at once raised IndexError: tuple": labelling(
        lambda findings: (findings[0],)
    ),
    "a known state.*state='maybe'": finding(state="maybe"),
    r"a size above 0 mm.*size_mm=0\.0": finding(size_mm=0.0),
    r"each span lies inside the text. got 0\.\.157 in a text of 154 characters": finding(
        span=Span(start=0, end=157, label="")
    ),
    "an empty text has no findings. got .*lung nodule": labelling(
        lambda findings: findings or (Finding(name="lung nodule", state="absent"),)
    ),
    r"equal texts get equal findings. \(.*, then \(.*Finding": labelling(
        lambda findings: findings[next(COUNT) % 2 :]
    ),
    "what a text says is found. 'lung nodule' is absent in 'There is no nodule.', got 'present'": labelling(
        lambda findings: tuple(Finding(name="lung nodule", span=each.span) for each in findings)
    ),
}


def test_a_sound_labeler_passes():
    check_labeler(Nodules(), expected=EXPECTED)


@pytest.mark.parametrize("message", LABELERS)
def test_a_labeler_that_breaks_a_clause_is_caught(message):
    with caught(message):
        check_labeler(LABELERS[message](), expected=EXPECTED)


def scoring(score, **members):
    """Return the sound scorer with another score of a pair."""
    return altered(TokenF1, _score=staticmethod(score), **members)


def unsure(candidate, reference):
    return 0.9 * TokenF1._score(candidate, reference)


def graded(scores):
    """Normalise by the best of the batch."""
    return [score / (max(scores) or 1.0) for score in scores]


def drifts(self, candidates, references, questions):
    self.calls = getattr(self, "calls", 0) + (len(candidates) > 1)
    scores = TokenF1.__call__(self, candidates, references)
    return [score if score == 1.0 else score / self.calls for score in scores]


def loud_where_empty(candidate, reference):
    return TokenF1._score(candidate, reference) if candidate and reference else -1.0


SCORERS = {
    "questions may be told. 4 pairs with a question each raised TypeError":
        altered(TokenF1, __call__=lambda self, candidates, references: []),
    "a score or None per pair. got 1 scores for 4 pairs": changing(TokenF1, "__call__", lambda scores: [1.0]),
    r"each score is in 0\.\.1. got 100\.0 for 'The heart": scoring(lambda *pair: 100.0),
    r"equal texts score 1. got 0\.9 for": scoring(unsure),
    r"a pair is scored alone as among others. 1\.0, then 0\.\d+ for":
        changing(altered(TokenF1, is_exact=False), "__call__", graded),
    r"equal calls give equal scores. \[1\.0, 0\.\d+, ": altered(TokenF1, __call__=drifts),
    "an empty text does not raise. '' against '' raised ZeroDivisionError":
        scoring(lambda candidate, reference: TokenF1._score(candidate, reference) + 0 // len(candidate)),
    r"each score is in 0\.\.1. got -1\.0 for an empty text": scoring(loud_where_empty),
}  # fmt: skip


@pytest.mark.parametrize("sound", [TokenF1, scoring(unsure, is_exact=False)], ids=["exact", "learned"])
def test_a_sound_scorer_passes(sound):
    check_scorer(sound())


@pytest.mark.parametrize("message", SCORERS)
def test_a_scorer_that_breaks_a_clause_is_caught(message):
    with caught(message):
        check_scorer(SCORERS[message]())


class Abnormal(Reweighter):
    """2 inside sentences labelled abnormal, 1 elsewhere."""

    gain = 2.0

    def __call__(self, text, spans, offsets):
        return [self.weight(token, [span for span in spans if span.label == "abnormal"]) for token in offsets]

    def weight(self, token, spans):
        return self.gain if any(span.start <= token[0] and token[1] <= span.end for span in spans) else 1.0


def weighing(weight):
    return altered(Abnormal, weight=lambda self, token, spans: weight(token, spans))


def growing(self, *given):
    self.gain += 1.0
    return Abnormal.__call__(self, *given)


REWEIGHTERS = {
    "one weight per token. got 29 weights for 30 tokens under 4 spans":
        changing(Abnormal, "__call__", lambda weights: weights[:-1]),
    r"each weight is finite and not below 0. got -0\.5 for token": altered(Abnormal, gain=-0.5),
    "some token weighs more than 0. got only zeros for 30 tokens": weighing(lambda token, spans: 0.0),
    r"any target can be weighed. 30 tokens under 0 spans raised ValueError: max\(\)":
        weighing(lambda token, spans: float(max(span.end for span in spans))),
    "any target can be weighed. 30 tokens under 4 spans raised ZeroDivisionError":
        weighing(lambda token, spans: 1.0 / (token[1] - token[0])),
    r"equal calls give equal weights. \[1\.0.*3\.0.*, then .*4\.0": altered(Abnormal, __call__=growing),
}  # fmt: skip


def test_a_sound_reweighter_passes():
    check_reweighter(Abnormal())


@pytest.mark.parametrize("message", REWEIGHTERS)
def test_a_reweighter_that_breaks_a_clause_is_caught(message):
    with caught(message):
        check_reweighter(REWEIGHTERS[message]())


class Density(Reader):
    deterministic = True

    def __call__(self, questions):
        return [self.answer(question) for question in questions]

    def answer(self, question):
        mean = float(read(question.crops[0].volume).array.mean())
        return f"{mean:.1f} HU" if "dense" in question.text else None


def answering(answer, **members):
    return altered(Density, answer=lambda self, question: answer(question), **members)


def moody(**members):
    return answering(lambda question: f"{next(COUNT)} HU", **members)


READERS = {
    "it declares whether it is deterministic. got None": altered(Density, deterministic=None),
    "it has what it needs. .* raised ZeroDivisionError": altered(Density, ready=lambda self: 1 / 0),
    "an answer per question. got 1 answers to 2 questions": changing(
        Density, "__call__", lambda answers: answers[1:]
    ),
    "an answer is a text that is not empty, or None. got ''": answering(lambda question: ""),
    r"a deterministic reader answers twice the same. \['\d+ HU', '\d+ HU'\], then ": moody(),
    "a question is answered alone as among others. .* then .'question 0', 'question 0'": changing(
        Density, "__call__", lambda answers: [f"question {number}" for number, _ in enumerate(answers)]
    ),
    r"it goes by pixels.* 'case-0\.nii\.gz'.* became .*'volume\.nii\.gz'.* where the volume lies": answering(
        lambda question: Path(question.crops[0].volume.path).name
    ),
}


@pytest.fixture
def questions(cases):
    Path(cases[0].volumes[0].path).with_name("report.txt").write_text(cases[0].report.text)
    crops = (Crop(volume=cases[0].volumes[0]),)
    return [ImageQuestion(crops=crops, text=text) for text in ("How dense is it?", "Is it raining?")]


@pytest.mark.parametrize("sound", [Density, moody(deterministic=False)])
def test_a_sound_reader_passes_and_one_that_samples_may_change_its_mind(sound, questions, tmp_path):
    check_reader(sound(), questions, tmp_path)


@pytest.mark.parametrize("message", READERS)
def test_a_reader_that_breaks_a_clause_is_caught(message, questions, tmp_path):
    with caught(message):
        check_reader(READERS[message](), questions, tmp_path)
