from __future__ import annotations

import pytest

from evidcore.evaluate.compare import (
    change,
    change_over_seeds,
    correctness,
    figure_change,
    figure_change_over_seeds,
    figure_names,
)


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


@pytest.mark.parametrize("patients_shared", [True, False])
def test_change_over_seeds_is_the_mean_over_seeds(patients_shared):
    pairs = []
    for gain in (10, 20, 30):
        before = [line(number, "B") for number in range(60)]
        pairs.append((before, [line(number, "A" if number < gain else "B") for number in range(60)]))
    interval = change_over_seeds(pairs, patients_shared=patients_shared)
    assert interval.value == pytest.approx((10 + 20 + 30) / 180)
    assert interval.patients == (30 if patients_shared else 90)
    assert interval.low < interval.value < interval.high


def report(number, rouge=None, hits=0, **figures):
    held = {"rouge_l": rouge, "findings_f1_micro": {"ratio": [2 * hits, 2]}, **figures}
    return {
        "prompt_id": f"r{number}",
        "case_id": f"c{number}",
        "patient": f"p{number // 2}",
        "figures": {name: value for name, value in held.items() if value is not None},
    }


def test_reports_are_paired_by_any_figure_that_both_sides_hold():
    before = [report(number, 0.2, hits=number % 2, old=1.0) for number in range(60)]
    after = [report(number, 0.2 + number / 100, hits=1, new=1.0) for number in range(60)]
    assert figure_names(before, after) == ["rouge_l", "findings_f1_micro"]
    assert figure_change(before, after[::-1], "rouge_l").value == pytest.approx(sum(range(60)) / 6000)
    pooled = figure_change(before, after, "findings_f1_micro")
    assert pooled.value == pytest.approx(1 - 1 / 2)
    assert (pooled.values, pooled.patients) == (60, 30)


def test_reports_without_the_figure_on_a_side_are_left_out_and_counted():
    before = [report(number, 0.2 if number % 3 else None) for number in range(60)]
    after = [report(number, 0.2 + number / 1000 if number else None) for number in range(60)]
    found = figure_change(before, after, "rouge_l")
    assert (found.values, found.note) == (40, "20 of 60 reports lack it on a side")
    with pytest.raises(ValueError, match="none of 60 reports holds the figure 'cider' on both sides"):
        figure_change(before, after, "cider")
    with pytest.raises(ValueError, match="59 are only before, 0 only after, 1 by both"):
        figure_change(before, after[:1], "rouge_l")
    with pytest.raises(ValueError, match="prompt 'r0' is answered twice"):
        figure_change(before[:1] * 2, after[:1], "rouge_l")


@pytest.mark.parametrize("patients_shared", [True, False])
def test_figures_change_over_seeds_by_the_mean_over_seeds(patients_shared):
    pairs = []
    for gain in (0.1, 0.2, 0.3):
        before = [report(number, 0.2, hits=number % 2) for number in range(60)]
        pairs.append((before, [report(n, 0.2 + gain * (n % 3), hits=n % 5 < 4) for n in range(60)]))
    mean = figure_change_over_seeds(pairs, "rouge_l", patients_shared=patients_shared)
    assert mean.value == pytest.approx(0.2)
    pooled = figure_change_over_seeds(pairs, "findings_f1_micro", patients_shared=patients_shared)
    assert pooled.value == pytest.approx(4 / 5 - 1 / 2)
    for found in (mean, pooled):
        assert found.patients == (30 if patients_shared else 90)
        assert found.low < found.value < found.high
        assert found.note == "3 seeds"
