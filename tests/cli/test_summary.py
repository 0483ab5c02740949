"""What a run prints of its results."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Case, Question
from evidcore.cli.summary import main_rows, number, summary, table
from evidcore.evaluate.reference_lines import reference_lines
from evidcore.page.tables import result_table
from evidcore.run.folder import RunFolder


def test_a_line_that_is_not_known_is_said_to_be_so(tmp_path):
    side = Question(id="q", text="Which side?", options=("left", "right"), answer=1)
    case = Case(id="a", patient="p", volumes=(), questions=(side,))
    prompts = Choice().prompts(case, Volume(), 0)
    lines = reference_lines(prompts, prompts)
    result = {
        "stage": "evaluate",
        "rows": [row.to_json() for row in lines.rows("choice")],
        "reference_lines": {"choice": lines.figures()},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "evaluate.json").write_text(json.dumps(result))
    (said,) = summary(RunFolder(tmp_path))["lines"]
    assert said.endswith(
        "reference lines: uniform chance 50.0 %, best blind rule 100.0 %, perfect perception not known"
    )
    assert "which other options are true is not known" in result_table(result)


def row(name, metric, value, low=None, high=None, note=""):
    return {
        "name": name, "metric": metric, "value": value, "low": low, "high": high, "questions": 40,
        "patients": 30, "note": note,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "value", "written"),
    [
        ("strict_accuracy", 0.4192, "41.9 %"),
        ("grounding_margin", -0.05, "-5.0"),
        ("other_patient_minus_prior_only", 0.012, "+1.2"),
        ("findings_f1_micro", 0.5, "0.500"),
        ("probe_auc_min", 0.97, "0.970"),
        ("strict_accuracy", None, "–"),  # noqa: RUF001
    ],
)
def test_figures_are_written_in_their_unit(metric, value, written):
    assert number(metric, value) == written


def test_a_table_shows_figures_intervals_and_notes():
    rows = [
        row("choice", "strict_accuracy", 0.5, 0.4, 0.6),
        row("choice", "strict_accuracy/emphysema", 0.25),
        row("report", "findings_f1_micro", 0.75, note="too few patients"),
    ]
    console = Console(width=120, file=io.StringIO())
    console.print(table("after grpo", main_rows(rows)))
    text = console.file.getvalue()
    (choice,) = (line for line in text.splitlines() if "strict accuracy" in line)
    (report,) = (line for line in text.splitlines() if "findings f1 micro" in line)
    assert [cell.strip() for cell in choice.strip("│").split("│")] == [
        "choice", "strict accuracy", "50.0 %", "40.0 % … 60.0 %", "40", "30", "",
    ]  # fmt: skip
    assert "0.750" in report
    assert "too few patients" in report
    assert "emphysema" not in text
