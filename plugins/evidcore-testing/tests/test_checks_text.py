import itertools
import re

import pytest
from evidcore_testing import check_labeler, check_reweighter, check_scorer

from evidcore.api import Finding, Labeler, Reweighter, Scorer, Span

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


class Overlap(Scorer):
    """Shared words over all words."""

    def __call__(self, candidates, references, questions=None):
        return [self.score(*pair) for pair in zip(candidates, references, strict=True)]

    def score(self, candidate, reference):
        item, other = set(candidate.split()), set(reference.split())
        return len(item & other) / len(item | other) if item | other else None


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


EXPECTED = {"A nodule.": {"lung nodule": "present"}, "There is no nodule.": {"lung nodule": "absent"}}


def labeler(read):
    return type("Mutant", (Nodules,), {"__call__": lambda self, text: read(text)})


def finding(**fields):
    return labeler(lambda text: (Finding(**{"name": "nodule", **fields}),))


def past_the_end(text):
    return (Finding(name="nodule", span=Span(start=0, end=len(text) + 3, label="")),)


LABELERS = {
    "any text is read or said to be unread. 9 texts at once raised IndexError: list index": labeler(
        lambda text: (Finding(name=text.split()[0]),)
    ),
    "a known state.*state='maybe'": finding(state="maybe"),
    r"a size above 0 mm.*size_mm=0\.0": finding(size_mm=0.0),
    r"each span lies inside the text. got 0\.\.157 in a text of 154 characters": labeler(past_the_end),
    "an empty text has no findings. got .*lung nodule": labeler(
        lambda text: Nodules()(text) or (Finding(name="lung nodule", state="absent"),)
    ),
    r"equal texts get equal findings. \(.*, then \(.*Finding": labeler(
        lambda text: Nodules()(text)[next(COUNT) % 2 :]
    ),
    "what a text says is found. 'lung nodule' is absent in 'There is no nodule.', got 'present'": labeler(
        lambda text: tuple(Finding(name="lung nodule", span=one.span) for one in Nodules()(text))
    ),
}


def test_a_sound_labeler_passes():
    check_labeler(Nodules(), expected=EXPECTED)


@pytest.mark.parametrize("message", LABELERS)
def test_a_labeler_that_breaks_a_clause_is_caught(message):
    with pytest.raises(AssertionError, match=message):
        check_labeler(LABELERS[message](), expected=EXPECTED)


def scorer(change=None, **members):
    """Return the sound scorer with its score of a pair changed, or with these members."""
    if change is not None:
        members["score"] = lambda self, *pair: change(Overlap.score(self, *pair), *pair)
    return type("Mutant", (Overlap,), members)


def batch(change):
    """Return the sound scorer with all scores but 1 and None divided by `change`."""

    def call(self, candidates, references, questions=None):
        scores = Overlap.__call__(self, candidates, references)
        by = change(scores, questions)
        return [item if item in {1.0, None} and by >= 1 else item and item / by for item in scores]

    return scorer(__call__=call)


def graded(scores, questions):
    """Normalise by the best of the batch."""
    return max(score or 0.0 for score in scores) or 1.0


def drifts(self, candidates, references, questions=None):
    self.calls = getattr(self, "calls", 0) + (len(candidates) > 1)
    scores = Overlap.__call__(self, candidates, references)
    return [item if item in {1.0, None} else item / self.calls for item in scores]


def unsure(score, *pair):
    return 0.9 * (score or 0.0)


SCORERS = {
    "questions may be told. 4 pairs with a question each raised TypeError": scorer(
        __call__=lambda self, candidates, references: Overlap.__call__(self, candidates, references)
    ),
    "a score or None per pair. got 1 scores for 4 pairs": scorer(__call__=lambda self, *texts: [1.0]),
    r"each score is in 0\.\.1. got 100\.0 for 'The heart": scorer(lambda score, *pair: score and 100 * score),
    r"equal texts score 1. got 0\.9 for": scorer(unsure),
    r"a pair is scored alone as among others. 1\.0, then 0\.\d+ for": batch(graded),
    r"equal calls give equal scores. \[1\.0, 0\.\d+, ": scorer(__call__=drifts),
    "an empty text does not raise. '' against '' raised ZeroDivisionError": scorer(
        lambda score, candidate, reference: score or 0 // len(candidate)
    ),
    r"each score is in 0\.\.1. got -1\.0 for an empty text": scorer(
        lambda score, candidate, reference: score if candidate and reference else -1.0
    ),
}


@pytest.mark.parametrize("sound", [Overlap, scorer(unsure, is_exact=False)], ids=["exact", "learned"])
def test_a_sound_scorer_passes(sound):
    check_scorer(sound())


@pytest.mark.parametrize("message", SCORERS)
def test_a_scorer_that_breaks_a_clause_is_caught(message):
    with pytest.raises(AssertionError, match=message):
        check_scorer(SCORERS[message]())


def reweighter(weight=None, **members):
    if weight is not None:
        members["weight"] = lambda self, token, spans: weight(token, spans)
    return type("Mutant", (Abnormal,), members)


def growing(self, *given):
    self.gain += 1.0
    return Abnormal.__call__(self, *given)


REWEIGHTERS = {
    "one weight per token. got 29 weights for 30 tokens under 4 spans": reweighter(
        __call__=lambda self, *given: Abnormal.__call__(self, *given)[:-1]
    ),
    r"each weight is finite and not below 0. got -0\.5 for token": reweighter(gain=-0.5),
    "some token weighs more than 0. got only zeros for 30 tokens": reweighter(lambda token, spans: 0.0),
    r"any target can be weighed. 30 tokens under 0 spans raised ValueError: max\(\)": reweighter(
        lambda token, spans: float(max(span.end for span in spans))
    ),
    "any target can be weighed. 30 tokens under 4 spans raised ZeroDivisionError": reweighter(
        lambda token, spans: 1.0 / (token[1] - token[0])
    ),
    r"equal calls give equal weights. \[1\.0.*3\.0.*, then .*4\.0": reweighter(__call__=growing),
}


def test_a_sound_reweighter_passes():
    check_reweighter(Abnormal())


@pytest.mark.parametrize("message", REWEIGHTERS)
def test_a_reweighter_that_breaks_a_clause_is_caught(message):
    with pytest.raises(AssertionError, match=message):
        check_reweighter(REWEIGHTERS[message]())
