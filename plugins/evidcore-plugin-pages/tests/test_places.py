"""Figures by place, and figures in the unit that their row names."""

import re

import pytest
from evidcore_plugin_pages.outcome import by_place
from evidcore_plugin_pages.tables import result_table, unit_of_row

from evidcore.cli.summary import number


def row(metric, value, low=None, high=None, unit="rate", name="report"):
    return {
        "name": name, "metric": metric, "value": value, "low": low, "high": high, "unit": unit,
        "questions": 40, "patients": 30, "note": "",
    }  # fmt: skip


ROWS = [
    row("abnormal_recall", 0.4, 0.3, 0.5),
    row("abnormal_recall_late_minus_early", -0.25, -0.4, -0.1, unit="points"),
    *(row(f"abnormal_recall/decile {place:02d}", place / 10, 0.0, 1.0) for place in (1, 7, 10)),
]


def test_a_figure_is_drawn_for_each_place_that_was_measured():
    page = by_place([*ROWS, row("abnormal_recall/decile 02", 0.5, name="impression")])
    assert page.count("<figure") == 2  # a task each
    first = page[: page.index("</figure>")]
    assert re.findall(r"(\d+ to \d+) % of the report", first) == ["0 to 10", "60 to 70", "90 to 100"]
    assert "70.0 %" in first
    assert "Abnormal recall of report" in first
    assert by_place([row("rouge_l", 0.4)]) is None


@pytest.mark.parametrize(
    ("metric", "unit", "value", "page", "terminal"),
    [
        ("judge_clarity", "plain", 3.5, "plain", "3.500"),
        ("bleu_4_corpus", "score", 0.2155, "score", "0.215"),
        ("abnormal_recall", "rate", 0.4, "rate", "40.0 %"),
        ("abnormal_recall_late_minus_early", "points", -0.25, "points", "-25.0"),
        ("strict_accuracy", None, 0.4, "rate", "40.0 %"),
        ("findings_f1_micro", None, 0.4, "score", "0.400"),
    ],
)
def test_a_figure_is_written_in_the_unit_that_its_row_names(metric, unit, value, page, terminal):
    assert unit_of_row(row(metric, value, unit=unit)) == page
    assert number(metric, value, unit) == terminal


def test_details_are_folded_under_the_table():
    table = result_table({"kind": "evaluate", "rows": ROWS})
    assert "In detail (3 rows)" in table
    head, folded = table.split("<details")
    assert "abnormal recall late minus early" in head
    assert "decile 07" in folded
