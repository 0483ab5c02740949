import json

import pytest
from evidcore_plugin_lab.ablation.contrasts import Item
from evidcore_plugin_lab.ablation.items import row_items

from evidcore.contracts import Totals
from evidcore.evaluate.pooling import pooled
from evidcore.runs.folder import read_lines


def choice(number, said, *, answer="A", condition="own", malformed=None, patient="p"):
    return {
        "prompt_id": f"q{number}", "case_id": f"c{number}", "patient": patient, "task": "choice",
        "condition": condition, "malformed": malformed, "choice": said, "lenient_choice": said,
        "answer": answer, "finding": "Nodule" if number % 2 else "Effusion",
    }  # fmt: skip


def row(metric, name="choice", **more):
    return {"name": name, "metric": metric, **more}


def share(above, below=1.0):
    return Totals("ratio", (above, below))


def test_an_accuracy_is_right_or_wrong_question_by_question():
    lines = [choice(0, "A"), choice(1, "B"), {**choice(2, "A"), "task": "other"}]
    right = {"q0": Item("p", share(1.0)), "q1": Item("p", share(0.0))}
    assert row_items(lines, row("strict_accuracy")) == right
    assert row_items(lines, row("strict_accuracy/Nodule")) == {"q1": Item("p", share(0.0))}


def test_a_case_without_a_patient_stands_for_one():
    items = row_items([choice(7, "A", patient=None)], row("strict_accuracy"))
    assert items["q7"].patient == "case c7"


def test_accuracy_given_a_valid_format_divides_by_the_well_formed_alone():
    lines = [choice(0, "A"), choice(1, None, malformed="no tag"), choice(2, "B")]
    items = row_items(lines, row("accuracy_given_valid_format"))
    assert [items[f"q{index}"].sums for index in range(3)] == [share(1.0), share(0.0, 0.0), share(0.0)]
    formed = row_items(lines, row("format_rate"))
    assert [item.sums.numbers[0] for item in formed.values()] == [1.0, 0.0, 1.0]


def test_an_exchange_of_volumes_that_came_twice_counts_as_one_item():
    lines = [
        choice(0, "A"), choice(0, "A", condition="other-patient"), choice(0, "B", condition="other-patient"),
        choice(0, "B", condition="blank"),
    ]  # fmt: skip
    other = row("strict_accuracy", "another patient's volumes", task="choice", condition="other-patient")
    assert row_items(lines, other) == {"q0": Item("p", share(0.5))}
    assert row_items(lines, row("grounding_margin")) == {"q0": Item("p", share(0.5))}


def test_a_figure_of_reports_is_what_their_lines_hold():
    def line(number, **figures):
        return {
            "prompt_id": f"r{number}", "case_id": "c", "patient": "p", "task": "report", "condition": "own",
            "malformed": None, "figures": figures,
        }  # fmt: skip

    lines = [line(0, f1={"ratio": [2.0, 4.0]}, rouge=0.25), line(1, f1={"ratio": [0.0, 1.0]})]
    f1 = row_items(lines, row("f1", "report"))
    assert [item.sums for item in f1.values()] == [share(2.0, 4.0), share(0.0, 1.0)]
    rouge = row_items(lines, row("rouge", "report"))
    assert rouge == {"r0": Item("p", share(0.25)), "r1": Item("p", None)}


def test_a_figure_of_one_condition_is_read_from_its_answers_alone():
    other = "other-patient"
    said = [("own", {"dsc": 0.8}), (other, {"dsc": 0.2}), (other, {}), ("blank", {"dsc": 0.1})]
    lines = [choice(0, None, condition=condition) | {"figures": figures} for condition, figures in said]
    for condition, dsc in (("own", 0.8), (other, 0.2), ("blank", 0.1)):
        named = row("dsc", "a condition", task="choice", condition=condition)
        assert row_items(lines, named) == {"q0": Item("p", share(dsc))}


def test_what_is_no_sum_over_answers_has_no_items():
    for metric in ("uniform_chance", "probe_auc_mean"):
        assert row_items([choice(0, "A")], row(metric)) == {}
    assert row_items([choice(0, "A")], row("log_likelihood_accuracy")) == {}  # was not asked for


@pytest.mark.slow
def test_the_items_of_a_run_add_up_to_its_results(small_run):
    seen = set()
    for file in sorted((small_run / "results").glob("*-evaluate.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        lines = read_lines(small_run / "answers" / f"{result['stage']}.jsonl")
        for entry in result["rows"]:
            sums = [item.sums for item in row_items(lines, entry).values() if item.sums is not None]
            if sums:
                assert pooled(sums) == pytest.approx(entry["value"]), entry
                seen.add(entry["metric"].partition("/")[0])
    assert {"strict_accuracy", "lenient_accuracy", "rescue_accuracy", "format_rate"} <= seen
