from __future__ import annotations

from pathlib import Path

import pytest

from evidcore.errors import RunError
from evidcore.recipe import load
from evidcore.runs.controls import change, check_controls, correctness

RECIPE = Path(__file__).parents[2] / "recipes" / "med3d_r1.toml"


def line(number, choice, *, answer="A", patient=None, likely=None):
    return {
        "prompt_id": f"q{number}",
        "case_id": f"c{number}",
        "patient": patient or f"p{number // 2}",
        "answer": answer,
        "choice": choice,
        "log_likelihood_choice": likely,
    }


def test_correctness_is_the_mean_over_repeated_questions():
    lines = [line(0, "A"), line(0, "B"), line(0, "A"), line(1, "C")]
    assert correctness(lines) == {"q0": ("p0", pytest.approx(2 / 3)), "q1": ("p0", 0.0)}


def test_change_is_the_mean_difference_over_the_same_questions_in_any_order():
    before = [line(number, "A" if number < 10 else "B") for number in range(60)]
    after = [line(number, "A" if number < 40 else "B") for number in range(60)]
    interval = change(before, after[::-1])
    assert interval.value == pytest.approx(30 / 60)
    assert (interval.values, interval.patients) == (60, 30)
    assert interval.low < 0.5 < interval.high


def test_what_was_likely_before_can_be_set_against_what_is_said_after():
    before = [line(number, None, likely="A" if number % 4 == 0 else "C") for number in range(60)]
    after = [line(number, "A" if number % 2 == 0 else None) for number in range(60)]
    assert change(before, after, before_reading="log_likelihood_choice").value == pytest.approx(0.25)


def test_other_questions_are_refused():
    with pytest.raises(ValueError, match="1 are only before, 2 only after, 1 by both"):
        change([line(0, "A"), line(1, "A")], [line(1, "A"), line(2, "A"), line(3, "A")])
    with pytest.raises(ValueError, match="prompt 'q0' holds no 'lenient_choice'"):
        correctness([line(0, "A")], "lenient_choice")


def test_an_audit_measures_no_controls(tmp_path):
    head, below, measured = RECIPE.read_text().rpartition('[[stage]]\nkind = "audit"')
    until, _, _ = head.rpartition('[[stage]]\nkind = "evaluate"')
    path = tmp_path / "recipe.toml"
    path.write_text(until + below + measured)
    with pytest.raises(RunError, match="needs an evaluate stage below 07-grpo"):
        check_controls(load(path, ['fitted=""']))
    check_controls(load(RECIPE))
