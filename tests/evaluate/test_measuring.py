import pytest

from evidcore.api import Case, Metric, Report, Unscored
from evidcore.contracts import Measured, TextSample, Totals
from evidcore.errors import ContractError
from evidcore.evaluate.measuring import NamedMetric, measure
from evidcore.registry.factory import build


class Length(Metric):
    """Share of the reference's length."""

    def __call__(self, texts):
        return [self.measured(item) for item in texts]

    def measured(self, item):
        if not item.text:
            return Unscored(kind="failed", reason="nothing was written")
        share = len(item.text) / len(item.reference.text)
        return Measured(figures={"length": share}, remarks={"length": "counted"})

    def notes(self):
        return {"length": "in characters"}


class Short(Length):
    def __call__(self, texts):
        return super().__call__(texts)[1:]


class Broken(Length):
    def __call__(self, texts):
        return [Measured(figures={"odd": float("nan")}) for _ in texts]


class Silent(Length):
    unit = "rate"

    def __call__(self, texts):
        unknown = Unscored(kind="not-applicable", reason="no reference report")
        return [unknown if item.text else Measured(figures={}) for item in texts]

    def notes(self):
        return {}


class Gap(Length):
    unit = "rate"
    reads = frozenset({"think"})

    def __call__(self, texts):
        return [Measured(figures={"gap": Totals("difference", (1, 2, 0, 2))}) for _ in texts]


@pytest.fixture
def named(offered):
    kinds = {"length": Length, "short": Short, "broken": Broken, "silent": Silent, "gap": Gap}
    lines = "\n".join(f"{name} = evid_lengths:{cls.__name__}" for name, cls in kinds.items())
    offered("evid-lengths", f"[evidcore.metric]\n{lines}\n", **{cls.__name__: cls for cls in kinds.values()})

    def make(use, prefix=""):
        metric = build("metric", {"use": use}, given={}, where="test")
        return NamedMetric(metric=metric, name=prefix.rstrip("_") or use, prefix=prefix)

    return make


def texts(*written):
    cases = [Case(id=f"c{number}", patient=f"p{number}", volumes=()) for number, _ in enumerate(written)]
    return [
        TextSample(case=case, asked="", text=text, reference=Report(text="abcd"))
        for case, text in zip(cases, written, strict=True)
    ]


def test_rows_tell_value_unit_and_what_is_missing_and_why(named):
    result = measure([named("length"), named("silent")], texts("ab", "", "abcd"), "report")
    first, second = result.rows("report", ["p0", "p1", "p2"])
    assert (first.metric, first.value, first.unit) == ("length", 0.75, "score")
    assert (first.questions, first.patients) == (2, 2)
    assert first.note == (
        "in characters; 1 of 3 not measured: nothing was written; too few patients (2 of at least 20)"
    )
    assert (second.metric, second.value, second.questions) == ("silent", None, 0)
    assert second.note == "3 of 3 not measured: 2 times no reference report; 1 times not told"


def test_lines_hold_figures_remarks_and_what_is_missing(named):
    result = measure([named("length")], texts("ab", ""), "report")
    item, other = result.beside([{"prompt_id": "a"}, {"prompt_id": "b"}])
    assert item == {"prompt_id": "a", "figures": {"length": 0.5}, "remarks": {"length": "counted"}}
    assert other == {"prompt_id": "b", "figures": {}, "unscored": {"length": "nothing was written"}}
    assert measure([], texts("ab"), "report").beside([{"prompt_id": "a"}]) == [{"prompt_id": "a"}]


def test_a_metric_measures_the_kind_of_text_that_it_reads(named):
    both = [named("length"), named("gap")]
    assert list(measure(both, texts("ab"), "report").sources) == ["length"]
    thought = measure(both, texts("ab"), "think")
    assert thought.units == {"gap": "points"}
    assert thought.rows("choice", ["p0"])[0].value == 0.5


def test_two_metrics_may_not_give_figures_of_one_name(named):
    other = NamedMetric(metric=named("length").metric, name="other")
    for twin in (named("length"), other):
        with pytest.raises(ContractError, match="gives 'length', which metric 'length' of this stage gives"):
            measure([named("length"), twin], texts("ab"), "report")
    result = measure([named("length"), named("length", prefix="own_")], texts("ab"), "report")
    assert list(result.sources) == ["length", "own_length"]
    assert result.notes["own_length"] == "in characters"


def test_a_metric_that_breaks_its_contract_is_named(named):
    with pytest.raises(
        ContractError, match=r"'short' from evid-lengths 1.0: must measure each text, got 1 for 2"
    ):
        measure([named("short")], texts("ab", "cd"), "report")
    with pytest.raises(ContractError, match=r"'broken' from .*'odd' of case 'c0' must be finite, got nan"):
        measure([named("broken")], texts("ab"), "report")
