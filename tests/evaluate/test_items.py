import json

import pytest

from evidcore.evaluate.items import Item, row_items
from evidcore.evaluate.report import ReportAnswer
from evidcore.run.record import read_lines


def choice(number, said, *, answer="A", condition="own", malformed=None, patient="p"):
    return {
        "prompt_id": f"q{number}", "case_id": f"c{number}", "patient": patient, "task": "choice",
        "condition": condition, "malformed": malformed, "choice": said, "lenient_choice": said,
        "answer": answer, "finding": "Nodule" if number % 2 else "Effusion",
    }  # fmt: skip


def row(metric, name="choice", **more):
    return {"name": name, "metric": metric, **more}


def test_an_accuracy_is_right_or_wrong_question_by_question():
    lines = [choice(0, "A"), choice(1, "B"), {**choice(2, "A"), "task": "other"}]
    assert row_items(lines, row("strict_accuracy")) == {"q0": Item("p", 1.0, 1.0), "q1": Item("p", 0.0, 1.0)}
    assert row_items(lines, row("strict_accuracy/Nodule")) == {"q1": Item("p", 0.0, 1.0)}


def test_a_case_without_a_patient_stands_for_one():
    items = row_items([choice(7, "A", patient=None)], row("strict_accuracy"))
    assert items["q7"].patient == "case c7"


def test_accuracy_given_a_valid_format_divides_by_the_well_formed_alone():
    lines = [choice(0, "A"), choice(1, None, malformed="no tag"), choice(2, "B")]
    items = row_items(lines, row("accuracy_given_valid_format"))
    assert [items[f"q{place}"][1:] for place in range(3)] == [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0)]
    assert [item.above for item in row_items(lines, row("format_rate")).values()] == [1.0, 0.0, 1.0]


def test_an_exchange_of_volumes_that_came_twice_counts_as_one_item():
    lines = [
        choice(0, "A"), choice(0, "A", condition="other-patient"), choice(0, "B", condition="other-patient"),
        choice(0, "B", condition="blank"),
    ]  # fmt: skip
    other = row("strict_accuracy", "another patient's volumes", task="choice", condition="other-patient")
    assert row_items(lines, other) == {"q0": Item("p", 0.5, 1.0)}
    assert row_items(lines, row("grounding_margin")) == {"q0": Item("p", 0.5, 1.0)}


def test_a_report_adds_its_counts_to_f1():
    line = {
        "prompt_id": "r", "case_id": "c", "patient": "p", "task": "report", "condition": "own",
        "malformed": None, "affirmed": ["a", "b", "x"], "present": ["a", "c"], "absent": ["b"],
    }  # fmt: skip
    items = row_items([line], row("findings_f1_micro", "report"))
    assert items == {"r": Item("p", 2.0, 4.0)}  # TP a, FP b, FN c; x is not known of
    assert row_items([line], row("findings_f1/c", "report")) == {"r": Item("p", 0.0, 1.0)}
    answer = ReportAnswer(
        prompt_id="r", case_id="c", patient="p", task="report", condition="own", prompt="", text="",
        malformed=None, affirmed=("a", "b", "x"), present=("a", "c"), absent=("b",), images=(),
    )  # fmt: skip
    true, false, missed = answer.counts()
    assert (2 * true, 2 * true + false + missed) == items["r"][1:]


def test_what_is_no_sum_over_answers_has_no_items():
    for metric in ("findings_f1_macro", "uniform_chance", "probe_auc_mean"):
        assert row_items([choice(0, "A")], row(metric)) == {}
    assert row_items([choice(0, "A")], row("log_likelihood_accuracy")) == {}  # was not asked for


@pytest.mark.slow
def test_the_items_of_a_run_add_up_to_its_results(small_run):
    seen = set()
    for file in sorted((small_run / "results").glob("*-evaluate.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        lines = read_lines(small_run / "answers" / f"{result['stage']}.jsonl")
        for one in result["rows"]:
            items = row_items(lines, one).values()
            if items:
                value = sum(item.above for item in items) / sum(item.below for item in items)
                assert value == pytest.approx(one["value"]), one
                seen.add(one["metric"].partition("/")[0])
    assert {"strict_accuracy", "lenient_accuracy", "rescue_accuracy", "format_rate"} <= seen
