"""Reports, priors and questions of the phantoms."""

import collections
from types import SimpleNamespace

import numpy as np
import pytest
from evidcore_plugin_phantoms.abdomen.dataset import INDICATIONS as ABDOMINAL
from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS as ABDOMINAL_FINDINGS
from evidcore_plugin_phantoms.chest import INDICATIONS, balanced_items, draw_patient, impression, sentences
from evidcore_plugin_phantoms.phantoms import chances
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

from evidcore.api import Finding


def patients(count, *, prior_strength, prevalence=0.2):
    rng = np.random.default_rng(0)
    return [draw_patient(rng, prevalence=prevalence, prior_strength=prior_strength) for _ in range(count)]


def flags_of(patient):
    return [name in patient[0] for name in CT_RATE_FINDINGS]


def probabilities(prevalence, prior_strength):
    return chances(CT_RATE_FINDINGS, INDICATIONS, prevalence=prevalence, prior_strength=prior_strength)


@pytest.fixture(scope="module")
def present():
    return [names for names, _, _ in patients(600, prior_strength=0.0)]


@pytest.fixture(scope="module")
def items(present):
    return items_of(present, 72, 1)


def items_of(present, per_finding, seed):
    result = balanced_items(present, CT_RATE_FINDINGS, per_finding, np.random.default_rng(seed))
    return [SimpleNamespace(case=case, options=options, answer=answer) for case, options, answer in result]


@pytest.mark.parametrize(
    ("indications", "findings"), [(INDICATIONS, CT_RATE_FINDINGS), (ABDOMINAL, ABDOMINAL_FINDINGS)]
)
def test_every_finding_belongs_to_one_indication(indications, findings):
    belonging = [name for names in indications.values() for name in names]
    assert sorted(belonging) == sorted(findings)


@pytest.mark.parametrize("prevalence", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_the_prevalence_does_not_depend_on_the_prior_strength(prevalence, strength):
    table = probabilities(prevalence, strength)
    assert table.mean(0) == pytest.approx(np.full(18, prevalence))
    assert (table >= 0).all()
    assert (table <= 1).all()


def test_at_strength_one_a_finding_is_five_times_as_likely_under_its_indication():
    table = probabilities(0.15, 1.0)
    row = list(INDICATIONS).index("smoker")
    assert table[row, CT_RATE_FINDINGS.index("emphysema")] == pytest.approx(0.75)
    assert table[row, CT_RATE_FINDINGS.index("cardiomegaly")] == pytest.approx(0.03)


def gain_from_text(group):
    """Return by how much the best guess from the indication beats the best guess without it, per finding."""
    by_kind = collections.defaultdict(list)
    for patient in group:
        by_kind[patient[2]].append(flags_of(patient))
    rates = [np.mean(rows, axis=0) for rows in by_kind.values()]
    return float(np.ptp(rates, axis=0).mean())


def test_text_predicts_findings_only_as_far_as_the_prior_strength_says():
    gains = [gain_from_text(patients(3000, prior_strength=strength)) for strength in (0.0, 0.5, 1.0)]
    assert gains[0] < 0.08  # the spread of six samples of 500
    assert gains[1] == pytest.approx(0.42, abs=0.06)
    assert gains[2] == pytest.approx(0.84, abs=0.04)


def test_without_a_prior_findings_are_independent_of_each_other():
    flags = np.array([flags_of(each) for each in patients(4000, prior_strength=0.0)], dtype=float)
    assert np.abs(np.corrcoef(flags.T) - np.eye(18)).max() < 0.07
    tied = np.array([flags_of(each) for each in patients(4000, prior_strength=1.0)], dtype=float)
    assert np.abs(np.corrcoef(tied.T) - np.eye(18)).max() > 0.5


def test_what_is_normal_is_told_first_and_every_finding_once():
    shown = [Finding(name="lung nodule", side="left", size_mm=27.4), Finding(name="cardiomegaly")]
    absent = [name for name in CT_RATE_FINDINGS if name not in {"lung nodule", "cardiomegaly"}]
    texts = set()
    for seed in range(30):
        lines = sentences(np.random.default_rng(seed), shown)
        labels = [line.label for line in lines]
        assert labels == sorted(labels, reverse=True)  # "normal" before "abnormal"
        told = [line for line in lines if line.finding]
        assert [line.finding for line in told] == [*absent, "lung nodule", "cardiomegaly"]
        for line in told:
            assert line.text[line.offset :].lower().startswith(line.finding)
            assert ("left" in line.text.lower()) == (line.finding == "lung nodule")
        texts.update(line.text for line in lines if line.finding == "lung nodule")
        assert not any("normal size" in line.text for line in lines)
    assert impression(shown) == "Lung nodule on the left. Cardiomegaly."
    assert impression([]) == "No abnormality."
    assert texts == {
        "There is a lung nodule of 27 mm on the left.",
        "Lung nodule is seen on the left.",
        "Lung nodule on the left.",
    }


def test_each_finding_is_right_equally_often_under_each_letter_and_offered_as_often(items):
    right = collections.Counter(item.options[item.answer] for item in items)
    offered = collections.Counter(option for item in items for option in item.options)
    assert len(items) == 18 * 72
    assert set(right.values()) == {72}
    assert set(right) == set(CT_RATE_FINDINGS)
    assert all(abs(count - 4 * 72) <= 4 for count in offered.values())
    pairs = collections.Counter((item.options[item.answer], item.answer) for item in items)
    assert set(pairs.values()) == {18}


def test_one_option_is_true_and_three_are_absent_and_questions_are_spread_over_patients(items, present):
    for item in items:
        states = [option in present[item.case] for option in item.options]
        assert states == [index == item.answer for index in range(4)]
        assert len(set(item.options)) == 4
    assert len({item.case for item in items}) > 450
    assert max(collections.Counter(item.case for item in items).values()) <= 12
    pairs = collections.Counter((item.case, item.options[item.answer]) for item in items)
    assert max(pairs.values()) == 1


def share_right(items, rule):
    return np.mean([rule(item) == item.options[item.answer] for item in items])


def test_no_rule_that_sees_only_text_gets_far(items):
    """Fitted on the very questions that they are scored on, image-blind rules stay at or below 30 %."""
    right = collections.Counter(item.options[item.answer] for item in items)
    offered = collections.Counter(option for item in items for option in item.options)
    letters = collections.Counter(item.answer for item in items)
    placed = collections.Counter((item.answer, item.options[item.answer]) for item in items)
    offered_at = collections.Counter(pair for item in items for pair in enumerate(item.options))

    rules = (
        lambda item: max(item.options, key=lambda option: right[option] / offered[option]),
        lambda item: item.options[letters.most_common(1)[0][0]],
        lambda item: max(enumerate(item.options), key=lambda pair: placed[pair] / offered_at[pair])[1],
    )
    assert max(share_right(items, rule) for rule in rules) <= 0.30


def test_which_options_stand_together_tells_nothing(items):
    """A rule with 306 free numbers overfits, so it is fitted on one half and scored on the other."""
    met = collections.Counter()
    for item in items[::2]:
        winner = item.options[item.answer]
        met.update((winner, other) for other in item.options if other != winner)

    def by_company(item):
        return max(
            item.options, key=lambda entry: sum(met[entry, other] for other in item.options if other != entry)
        )

    assert share_right(items[1::2], by_company) <= 0.30


def test_a_finding_that_nobody_has_is_neither_asked_about_nor_offered():
    names = ["emphysema", "atelectasis", "lung nodule", "consolidation"]
    items = items_of([[name] for name in names] * 3, 4, 0)
    assert {option for item in items for option in item.options} == set(names)
    assert len(items) == 16
    # with fewer than four findings there is nothing to choose from
    assert items_of([["emphysema"], ["atelectasis"]], 4, 0) == []
