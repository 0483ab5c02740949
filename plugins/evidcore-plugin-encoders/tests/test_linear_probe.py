"""Findings read from features by straight lines, and the features of a frozen encoder."""

import dataclasses

import numpy as np
import pytest
import torch
from evidcore_plugin_encoders.linear_probe import encoder_features, linear_probe
from evidcore_testing import TinyEncoder
from evidcore_testing.data import volume_case

from evidcore.api import Case, Finding, Question, VisualPart, prepare
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices, Volume
from evidcore.evaluate.reference_lines import reference_lines

NAMES = ("emphysema", "lung nodule", "cardiomegaly", "hiatal hernia")


def cases(count, first=0, *, seed=0, share=0.4):
    rng = np.random.default_rng([seed, first])
    result = []
    for number in range(first, first + count):
        shown = [name for name in NAMES[:3] if rng.random() < share] or [NAMES[0]]
        options = (shown[0], *[name for name in NAMES if name not in shown][:2])
        question = Question(id="q", text="Which?", options=options, answer=0)
        findings = tuple(Finding(name=n, state="present" if n in shown else "absent") for n in NAMES)
        known = {"findings": findings, "questions": (question,)}
        result.append(Case(id=f"c{number}", patient=f"p{number}", volumes=(), **known))
    return result


def seeing(noise):
    """Give features that show the first three findings, under noise."""

    def pooled(some):
        rows = []
        for case in some:
            rng = np.random.default_rng(int(case.id[1:]))
            clean = [float(case.state_of(name) == "present") for name in NAMES[:3]]
            rows.append(np.array(clean) + rng.normal(0, noise, 3))
        return np.array(rows)

    return pooled


def test_features_that_show_a_finding_give_it_away():
    test = cases(60, 200)
    prompts = [prompt for case in test for prompt in Choice().prompts(case, Volume(), 0)]
    probe = linear_probe(seeing(0.05), cases(120), test, prompts)
    assert min(probe.auc.values()) == 1.0
    assert probe.accuracy.value == 1.0
    assert probe.left_out == {"hiatal hernia": "0 training cases of the rarer kind, fewer than 5"}


def test_features_of_noise_give_no_more_than_the_priors():
    test = cases(200, 200)
    prompts = [prompt for case in test for prompt in Choice().prompts(case, Volume(), 0)]
    training = [prompt for case in cases(300) for prompt in Choice().prompts(case, Volume(), 0)]
    noise = lambda some: np.random.default_rng(len(some)).normal(size=(len(some), 3))  # noqa: E731
    probe = linear_probe(noise, cases(300), test, prompts)
    assert all(0.35 < value < 0.65 for value in probe.auc.values())
    assert (
        probe.accuracy.value < reference_lines(prompts, training).blind("choice").figures["prior_only"] + 0.05
    )


def test_what_is_doubted_is_neither_learnt_nor_tested():
    def doubted(case):
        doubt = Finding(name=NAMES[1], state="uncertain")
        findings = tuple(doubt if item.name == NAMES[1] else item for item in case.findings)
        return dataclasses.replace(case, findings=findings)

    training, test = cases(120), cases(60, 200)
    half = [doubted(case) if number % 2 else case for number, case in enumerate(test)]
    shown = seeing(0.6)(test)  # the doubt is in the labels alone
    features = lambda given: seeing(0.6)(training) if given is training else shown  # noqa: E731
    whole, some = (linear_probe(features, training, tested).auc for tested in (test, half))
    assert some[NAMES[0]] == whole[NAMES[0]]
    assert some[NAMES[1]] != whole[NAMES[1]]


def test_rows_name_the_worst_finding():
    rows = {row.metric: row for row in linear_probe(seeing(0.5), cases(120), cases(60, 200)).rows()}
    worst = min(NAMES[:3], key=lambda name: rows[f"probe_auc/{name}"].value)
    assert rows["probe_auc_min"].note == worst
    assert "probe_accuracy" not in rows
    assert rows["probe_auc_mean"].note.startswith("left out: hiatal hernia (0 training cases")


def test_findings_of_one_kind_in_the_test_have_no_auc():
    test = [case for case in cases(80, 200) if case.state_of(NAMES[0]) == "present"]
    left_out = linear_probe(seeing(0.5), cases(120), test).left_out
    assert left_out[NAMES[0]] == "no AUC: all test cases are of one kind"


def test_questions_must_be_about_test_cases():
    (prompt,) = Choice().prompts(cases(1)[0], Volume(), 0)
    with pytest.raises(ValueError, match=r"prompt 'c0:q' asks about case 'c0', which is not a test case"):
        linear_probe(seeing(0.1), cases(50), cases(20, 100), [prompt])
    with pytest.raises(ValueError, match="got 0 for training and 1 for testing"):
        linear_probe(seeing(0.1), [], cases(1))


def test_encoder_features_pool_over_all_parts_of_a_case(tmp_path):
    class AnyDepth(TinyEncoder):
        def __init__(self):
            super().__init__(seed=1)
            self.input = dataclasses.replace(self.input, any_depth=True)
            self.position = torch.nn.Parameter(torch.zeros(1))

        def forward(self, volumes):
            return super().forward(volumes.repeat_interleave(4, dim=2))

    case = volume_case(tmp_path, 0)
    encoder = AnyDepth().eval()
    (result,) = encoder_features(encoder, Slices(slices=3))([case])
    single = [part for part in Slices(slices=3).render(case) if isinstance(part, VisualPart)]
    with torch.no_grad():
        patches = [encoder(prepare(p.crop, encoder.input, (1, 16, 16))[None]).features[0] for p in single]
    np.testing.assert_allclose(result[:32], torch.stack(patches).mean((0, 1)).numpy(), atol=1e-5)
    np.testing.assert_allclose(result[32:], torch.stack(patches).amax((0, 1)).numpy(), atol=1e-5)
