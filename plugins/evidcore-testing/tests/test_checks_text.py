import itertools
import math
import re

import pytest
from evidcore_testing import check_labeler, check_reweighter, check_scorer

from evidcore.case import Finding, Span
from evidcore.contracts import Labeler, Reweighter, Scorer


class Nodules(Labeler):
    """Nodules, denied where the word 'no' stands within ten characters before."""

    def __call__(self, text):
        found = []
        for match in re.finditer("nodule", text, flags=re.IGNORECASE):
            denied = "no " in text[max(0, match.start() - 10) : match.start()].lower()
            found.append(
                Finding(
                    name="lung nodule",
                    state="absent" if denied else "present",
                    span=Span(start=match.start(), end=match.end(), label=""),
                )
            )
        return tuple(found)


EXPECTED = {"A nodule.": {"lung nodule": "present"}, "There is no nodule.": {"lung nodule": "absent"}}


class Chokes(Nodules):
    def __call__(self, text):
        return (Finding(name=text.split()[0]),)


class NoName(Nodules):
    def __call__(self, text):
        return (Finding(name=""),)


class NoSuchState(Nodules):
    def __call__(self, text):
        return (Finding(name="nodule", state="maybe"),)


class NoSuchSide(Nodules):
    def __call__(self, text):
        return (Finding(name="nodule", side="up"),)


class NoSize(Nodules):
    def __call__(self, text):
        return (Finding(name="nodule", size_mm=0.0),)


class PastTheEnd(Nodules):
    def __call__(self, text):
        return (Finding(name="nodule", span=Span(start=0, end=len(text) + 3, label="")),)


class AlwaysSomething(Nodules):
    def __call__(self, text):
        return super().__call__(text) or (Finding(name="lung nodule", state="absent"),)


class Moody(Nodules):
    moods = itertools.count()

    def __call__(self, text):
        return super().__call__(text)[next(self.moods) % 2 :]


class DeafToNo(Nodules):
    def __call__(self, text):
        return tuple(Finding(name="lung nodule", span=each.span) for each in super().__call__(text))


def test_a_sound_labeler_passes():
    check_labeler(Nodules(), expected=EXPECTED)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Chokes, "any text is read or said to be unread. 9 texts at once raised IndexError: list index"),
        (NoName, "a finding has a name, a known state and side, and a size above 0 mm. got .*name=''"),
        (NoSuchState, "a known state.*state='maybe'"),
        (NoSuchSide, "a known state and side.*side='up'"),
        (NoSize, r"a size above 0 mm.*size_mm=0\.0"),
        (PastTheEnd, r"each span lies inside the text. got 0\.\.157 in a text of 154 characters"),
        (AlwaysSomething, "an empty text has no findings. got .*lung nodule"),
        (Moody, r"equal texts get equal findings. \(.*, then \(.*Finding"),
        (
            DeafToNo,
            "what a text says is found. 'lung nodule' is absent in 'There is no nodule.', got 'present'",
        ),
    ],
)
def test_a_labeler_that_breaks_a_clause_is_caught(mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_labeler(mutant(), expected=EXPECTED)


class Overlap(Scorer):
    """Shared words over all words."""

    def __call__(self, candidates, references, questions=None):
        return [self.score(*pair) for pair in zip(candidates, references, strict=True)]

    def score(self, candidate, reference):
        one, other = set(candidate.split()), set(reference.split())
        return len(one & other) / len(one | other) if one | other else None


class OneScore(Overlap):
    def __call__(self, candidates, references, questions=None):
        return [1.0]


class Percent(Overlap):
    def score(self, candidate, reference):
        return 100 * super().score(candidate, reference)


class NotANumber(Overlap):
    def score(self, candidate, reference):
        return math.nan


class NeverSure(Overlap):
    def score(self, candidate, reference):
        return 0.9 * (super().score(candidate, reference) or 0.0)


class Graded(Overlap):
    """Best of the batch is 1, as a scorer that normalises would."""

    def __call__(self, candidates, references, questions=None):
        scores = super().__call__(candidates, references)
        best = max(score or 0.0 for score in scores) or 1.0
        return [None if score is None else score / best for score in scores]


class Drifting(Overlap):
    def __init__(self):
        self.calls = 0

    def __call__(self, candidates, references, questions=None):
        self.calls += len(candidates) > 1
        return [
            each if each in {1.0, None} else each / self.calls
            for each in super().__call__(candidates, references)
        ]


class NeedsWords(Overlap):
    def score(self, candidate, reference):
        return len(set(candidate.split()) & set(reference.split())) / len(set(candidate.split()))


class WorstOnEmpty(Overlap):
    def score(self, candidate, reference):
        return super().score(candidate, reference) if candidate and reference else -1.0


class Deaf(Overlap):
    def __call__(self, candidates, references):
        return super().__call__(candidates, references)


class FirstQuestion(Overlap):
    """Takes one question for all pairs."""

    def __call__(self, candidates, references, questions=None):
        scores = super().__call__(candidates, references)
        return [each if each in {1.0, None} else each / len(questions[0]) for each in scores]


class Learned(NeverSure):
    is_exact = False


def test_a_sound_scorer_passes():
    check_scorer(Overlap())


def test_a_scorer_that_was_learned_need_not_know_equal_texts():
    check_scorer(Learned())


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Deaf, "questions may be told. 4 pairs with a question each raised TypeError"),
        (FirstQuestion, "a pair is scored alone as among others"),
        (OneScore, "a score or None per pair. got 1 scores for 4 pairs"),
        (Percent, r"each score is in 0\.\.1. got 100\.0 for 'The heart"),
        (NotANumber, r"each score is in 0\.\.1. got nan"),
        (NeverSure, r"equal texts score 1. got 0\.9 for"),
        (Graded, r"a pair is scored alone as among others. 1\.0, then 0\.\d+ for"),
        (Drifting, r"equal calls give equal scores. \[1\.0, 0\.\d+, "),
        (
            NeedsWords,
            "an empty text does not raise. '' against '' raised ZeroDivisionError: division by zero",
        ),
        (WorstOnEmpty, r"each score is in 0\.\.1. got -1\.0 for an empty text"),
    ],
)
def test_a_scorer_that_breaks_a_clause_is_caught(mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_scorer(mutant())


class Abnormal(Reweighter):
    """2 inside sentences labelled abnormal, 1 elsewhere."""

    gain = 2.0

    def __call__(self, text, spans, offsets):
        return [self.weight(token, spans) for token in offsets]

    def weight(self, token, spans):
        loud = any(
            span.label == "abnormal" and span.start <= token[0] and token[1] <= span.end for span in spans
        )
        return self.gain if loud else 1.0


class Short(Abnormal):
    def __call__(self, text, spans, offsets):
        return super().__call__(text, spans, offsets)[:-1]


class Negative(Abnormal):
    gain = -0.5


class Infinite(Abnormal):
    gain = math.inf


class Silent(Abnormal):
    def weight(self, token, spans):
        return 0.0


class NeedsLabels(Abnormal):
    def __call__(self, text, spans, offsets):
        longest = max(span.end - span.start for span in spans)
        return [self.weight(token, spans) / longest for token in offsets]


class DividesByWidth(Abnormal):
    def weight(self, token, spans):
        return 1.0 / (token[1] - token[0])


class Growing(Abnormal):
    def __call__(self, text, spans, offsets):
        self.gain = self.gain + 1.0
        return super().__call__(text, spans, offsets)


def test_a_sound_reweighter_passes():
    check_reweighter(Abnormal())


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Short, "one weight per token. got 29 weights for 30 tokens under 4 spans"),
        (Negative, r"each weight is finite and not below 0. got -0\.5 for token"),
        (Infinite, "each weight is finite and not below 0. got inf for token"),
        (Silent, "some token weighs more than 0. got only zeros for 30 tokens"),
        (NeedsLabels, r"any target can be weighed. 30 tokens under 0 spans raised ValueError: max\(\)"),
        (DividesByWidth, "any target can be weighed. 30 tokens under 4 spans raised ZeroDivisionError"),
        (Growing, r"equal calls give equal weights. \[1\.0.*3\.0.*, then .*4\.0"),
    ],
)
def test_a_reweighter_that_breaks_a_clause_is_caught(mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_reweighter(mutant())
