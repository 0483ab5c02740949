"""What a run prints of its results."""

import json

import pytest
from evidcore_plugin_pages.tables import result_table

from evidcore.api import Case, Question
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.cli.summary import ending, number, summary
from evidcore.evaluate.reference_lines import reference_lines
from evidcore.runs.folder import RunFolder


def test_a_line_that_is_not_known_is_said_to_be_so(tmp_path):
    side = Question(id="q", text="Which side?", options=("left", "right"), answer=1)
    case = Case(id="a", patient="p", volumes=(), questions=(side,))
    prompts = Choice().prompts(case, Volume(), 0)
    lines = reference_lines(prompts, prompts)
    result = {
        "stage": "evaluate",
        "kind": "evaluate",
        "rows": [row.to_json() for row in lines.blind("choice").rows],
        "reference_lines": {"choice": lines.blind("choice").figures},
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
        ("grounding_margin", -0.05, "-5.0"),
        ("other_patient_minus_prior_only", 0.012, "+1.2"),
        ("probe_auc_min", 0.97, "0.970"),
        ("strict_accuracy", None, "–"),  # noqa: RUF001
    ],
)
def test_figures_are_written_in_their_unit(metric, value, written):
    assert number(metric, value) == written


AUDITED = [
    {"stage": "04-evaluate", "kind": "evaluate", "rows": [row("choice", "prior_only", 0.2)]},
    {
        "stage": "07-audit", "kind": "audit", "verdict": {"choice": "What is asked is seen: +46.0."},
        "rows": [
            row("own volumes", "strict_accuracy", 0.71, 0.69, 0.74) | {"task": "choice", "headline": True},
            row("choice", "own_minus_blind", 0.46, 0.43, 0.49) | {"summary": "own minus the best"},
            row("choice", "own_minus_sham", 0.01, 0.0, 0.02), row("choice", "own_minus_twin/emphysema", 0.3),
            row("choice", "prior_only", 0.25, 0.22, 0.28) | {"summary": "the best blind rule"},
        ],
    },
    {
        "stage": "changes", "kind": "changes",
        "rows": [row("choice", "strict_accuracy_change", 0.1, 0.07, 0.13, "06-evaluate minus 04-evaluate")],
    },
]  # fmt: skip


def test_a_run_ends_with_own_blind_margins_verdict_and_what_training_changed():
    assert ending(AUDITED) == [
        "choice, strict accuracy: 71.0 % (69.0 to 74.0), 40 questions, 30 patients",
        "  the best blind rule: 25.0 % (22.0 to 28.0), 40 questions, 30 patients",
        "  own minus the best: +46.0 points (+43.0 to +49.0), 40 questions, 30 patients",
        "  What is asked is seen: +46.0.",
        "choice, 06-evaluate minus 04-evaluate: +10.0 points (+7.0 to +13.0), 40 questions, 30 patients",
    ]


def test_a_run_without_an_audit_ends_with_its_last_stage_at_a_glance():
    told = row("choice", "strict_accuracy", 0.5) | {"headline": True}
    results = [
        {"stage": "03-evaluate", "kind": "evaluate", "rows": [told, row("choice", "format_rate", 1.0)]}
    ]
    assert ending(results) == ["choice, strict accuracy: 50.0 %, 40 questions, 30 patients"]


def test_a_long_ending_is_cut_to_twelve_lines_and_says_so():
    changes = [{**AUDITED[2], "rows": AUDITED[2]["rows"] * 20}]
    lines = ending([*AUDITED[:2], *changes])
    assert len(lines) == 12
    assert lines[-1] == "and 13 more lines: see the page"
