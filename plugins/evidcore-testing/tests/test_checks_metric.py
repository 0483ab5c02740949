"""The check of metrics lets a right one pass and names each clause that a wrong one breaks."""

import dataclasses
import itertools

import pytest
from evidcore_testing import check_metric

from evidcore.case import Unscored
from evidcore.contracts import Measured, Metric, Sums


class Shared(Metric):
    """Words of the reference that the text has."""

    def __call__(self, texts):
        return [self.one(text) for text in texts]

    def one(self, text):
        theirs = set(text.reference.text.split()) if text.reference else set()
        if not theirs:
            return Unscored(kind="not-applicable", reason="no reference")
        share = len(theirs & set(text.text.split())) / len(theirs)
        return Measured(figures={"shared": share}, remarks={"shared": "by word"})

    def notes(self):
        return {"shared": "words"}


def test_a_right_metric_passes():
    check_metric(Shared())


class NoSuchUnit(Shared):
    unit = "per mille"


class ReadsNothing(Shared):
    reads = frozenset()


class Drops(Shared):
    def __call__(self, texts):
        return super().__call__(texts)[:-1]


class Gives(Shared):
    def __call__(self, texts):
        return [0.5 for _ in texts]


class NoReason(Shared):
    def __call__(self, texts):
        return [Unscored(kind="failed", reason="") for _ in texts]


class Mute(Shared):
    def one(self, text):
        return Unscored(kind="failed", reason="always")


class NotANumber(Shared):
    def one(self, text):
        return Measured(figures={"shared": float("nan")})


class TwoKinds(Shared):
    def __call__(self, texts):
        first, *rest = super().__call__(texts)
        return [dataclasses.replace(first, figures={"shared": Sums("ratio", (1, 2))}), *rest]

    def notes(self):
        return {}


class OtherNote(Shared):
    def notes(self):
        return {"sharde": "words"}


class Moody(Shared):
    moods = itertools.count()

    def one(self, text):
        return Measured(figures={"shared": 1.0 / (1 + next(self.moods))})


class FirstIsBest(Shared):
    def __call__(self, texts):
        return [Measured(figures={"shared": 1.0 / (1 + index)}) for index, _ in enumerate(texts)]


class NeedsAReference(Shared):
    def one(self, text):
        return Measured(figures={"shared": float(len(text.text)) / len(text.reference.text)})


class LikesSilence(Shared):
    def one(self, text):
        return Measured(figures={"shared": 1.0 / (1 + len(text.text))})


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (NoSuchUnit, r"in which unit .* got the unit 'per mille'"),
        (ReadsNothing, r"what it reads.* got \[\]"),
        (Drops, "a Measured or an Unscored with a reason per text.* got 1 for 2"),
        (Gives, "a Measured or an Unscored with a reason per text.* got 0.5"),
        (NoReason, "a Measured or an Unscored with a reason per text"),
        (Mute, "some text is measured"),
        (NotANumber, "every number is finite.* shared = nan"),
        (TwoKinds, "figures of one name pool alike"),
        (OtherNote, r"notes and remarks speak of figures that it gives.*\['sharde'\]"),
        (Moody, "equal calls give equal figures"),
        (FirstIsBest, "the order of texts changes nothing"),
        (NeedsAReference, "any text is measured or said not to be"),
        (LikesSilence, "the reference earns no less than an empty text.* 1.0 for empty texts"),
    ],
)
def test_a_broken_metric_is_caught_by_its_clause(broken, clause):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_metric(broken())
