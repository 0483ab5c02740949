import dataclasses
import itertools

import pytest
from evidcore_testing import check_metric
from mutants import altered, caught, changing

from evidcore.api import Metric, Unscored
from evidcore.contracts import Measured, Totals


class Shared(Metric):
    """Words of the reference that the text has."""

    def __call__(self, texts):
        return [self.measure(text) for text in texts]

    def measure(self, text):
        theirs = set(text.reference.text.split()) if text.reference else set()
        if not theirs:
            return Unscored(kind="not-applicable", reason="no reference")
        share = len(theirs & set(text.text.split())) / len(theirs)
        return Measured(figures={"shared": share}, remarks={"shared": "by word"})

    def notes(self):
        return {"shared": "words"}


def figures(value):
    return Measured(figures={"shared": value})


def measuring(value):
    return altered(Shared, measure=lambda self, text: figures(value(text)))


def unmeasured(reason):
    return altered(Shared, measure=lambda self, text: Unscored(kind="failed", reason=reason))


def two_kinds(results):
    return [dataclasses.replace(results[0], figures={"shared": Totals("ratio", (1, 2))}), *results[1:]]


COUNT = itertools.count()
PER_TEXT = "a Measured or an Unscored with a reason per text"
MUTANTS = {
    "in which unit .* got the unit 'per mille'": altered(Shared, unit="per mille"),
    r"what it reads.* got \[\]": altered(Shared, reads=frozenset()),
    f"{PER_TEXT}.* got 1 for 2": changing(Shared, "__call__", lambda results: results[1:]),
    f"{PER_TEXT}.* got Unscored": unmeasured(""),
    "some text is measured.*always": unmeasured("always"),
    "every number is finite.* shared = .nan": measuring(lambda text: float("nan")),
    r"figures of one name pool alike.*\['shared'\]": changing(Shared, "__call__", two_kinds),
    r"notes and remarks speak of figures that it gives.*\['sharde'\]": altered(
        Shared, notes=lambda self: {"sharde": "words"}
    ),
    "equal calls give equal figures.*1.0.*then": measuring(lambda text: 1.0 / (1 + next(COUNT))),
    "the order of texts changes nothing.*1.0.*then": changing(
        Shared, "__call__", lambda results: [figures(1.0 / (1 + index)) for index, _ in enumerate(results)]
    ),
    "any text is measured or said not to be.*ZeroDivision": measuring(
        lambda text: 1.0 / len(text.reference.text)
    ),
    "the reference earns no less than an empty text.* 1.0 for empty texts": measuring(
        lambda text: 1.0 / (1 + len(text.text))
    ),
}


def test_a_sound_metric_passes():
    check_metric(Shared())


@pytest.mark.parametrize("message", MUTANTS)
def test_a_metric_that_breaks_a_clause_is_caught(message):
    with caught(message):
        check_metric(MUTANTS[message]())
