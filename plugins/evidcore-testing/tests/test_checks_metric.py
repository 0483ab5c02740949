"""The check of metrics lets a right one pass and names each clause that a wrong one breaks."""

import dataclasses
import itertools

import pytest
from evidcore_testing import check_metric

from evidcore.api import Metric, Unscored
from evidcore.contracts import Measured, Totals


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


def mutant(**members):
    return type("Mutant", (Shared,), members)


def measuring(value):
    return mutant(one=lambda self, text: Measured(figures={"shared": value(text)}))


def two_kinds(self, texts):
    first, *rest = Shared.__call__(self, texts)
    return [dataclasses.replace(first, figures={"shared": Totals("ratio", (1, 2))}), *rest]


def first_is_best(self, texts):
    return [Measured(figures={"shared": 1.0 / (1 + index)}) for index, _ in enumerate(texts)]


COUNT = itertools.count()
PER_TEXT = "a Measured or an Unscored with a reason per text"
MUTANTS = {
    "in which unit .* got the unit 'per mille'": mutant(unit="per mille"),
    r"what it reads.* got \[\]": mutant(reads=frozenset()),
    f"{PER_TEXT}.* got 1 for 2": mutant(__call__=lambda self, texts: Shared.__call__(self, texts)[1:]),
    f"{PER_TEXT}.* got Unscored": mutant(one=lambda self, text: Unscored(kind="failed", reason="")),
    "some text is measured": mutant(one=lambda self, text: Unscored(kind="failed", reason="always")),
    "every number is finite.* shared = nan": measuring(lambda text: float("nan")),
    "figures of one name pool alike": mutant(__call__=two_kinds, notes=lambda self: {}),
    r"notes and remarks speak of figures that it gives.*\['sharde'\]": mutant(
        notes=lambda self: {"sharde": "words"}
    ),
    "equal calls give equal figures": measuring(lambda text: 1.0 / (1 + next(COUNT))),
    "the order of texts changes nothing": mutant(__call__=first_is_best),
    "any text is measured or said not to be": measuring(lambda text: 1.0 / len(text.reference.text)),
    "the reference earns no less than an empty text.* 1.0 for empty texts": measuring(
        lambda text: 1.0 / (1 + len(text.text))
    ),
}


def test_a_right_metric_passes():
    check_metric(Shared())


@pytest.mark.parametrize("clause", MUTANTS)
def test_a_broken_metric_is_caught_by_its_clause(clause):
    with pytest.raises(AssertionError, match=rf"(?s){clause}"):
        check_metric(MUTANTS[clause]())
