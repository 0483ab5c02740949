import dataclasses

import pytest
from evidcore_plugin_med3d_r1.consistency import LEVELS, ReportConsistency, level
from evidcore_plugin_reports.agreement import as_agreement
from evidcore_plugin_reports.reward_model import RewardModel
from evidcore_plugin_reports.scorers import FindingsF1
from evidcore_plugin_reports.text_models import Pretrained
from evidcore_testing.checks_reward import check_reward

from evidcore.api import (
    Answer,
    Case,
    Crop,
    DataError,
    Prompt,
    Report,
    Rollout,
    Score,
    Scorer,
    TextPart,
    Unscored,
    VisualPart,
    VolumeRef,
)

QUESTION = "Which finding is present?\nA) emphysema\nB) lung nodule"
REPORT = "There is no emphysema. There is a lung nodule in the left lung."


class Fixed(Scorer):
    def __init__(self, value):
        self.value = value

    def __call__(self, candidates, references, questions=None):
        return [self.value] * len(candidates)


def rollout(think, report=REPORT):
    case = Case(id="a", patient="p", volumes=(), report=Report(text=report) if report else None)
    text = f"<think>{think}</think><answer>B</answer>"
    parts = (VisualPart(crop=Crop(volume=VolumeRef(path="a.nii"))), TextPart(text=QUESTION))
    reference = {"letter": "B", "options": ["emphysema", "lung nodule"]}
    prompt = Prompt(id="q", case=case, task="choice", parts=parts, reference=reference)
    return Rollout(prompt=prompt, group=0, text=text, answer=Answer(text=text, think=think, choice="B"))


def by_released_code(score):
    """`_discretize_rm_score` of stage2_rl/src/open_r1/grpo_3d.py, branch by branch."""
    for edge, reward in ((0.0, 0.0), (0.2, 0.2), (0.5, 0.4), (1.0, 0.6), (1.6, 0.8)):
        if score < edge:
            return reward
    return 1.0


def test_released_levels_are_the_released_codes_table():
    for edge in (-9.0, 0.0, 0.2, 0.5, 1.0, 1.6, 9.0):
        near = [edge - 0.01, edge - 1e-9, edge, edge + 1e-9, edge + 0.01]
        expected = [by_released_code(score) for score in near]
        assert [level(as_agreement(score), LEVELS["released"]) for score in near] == expected


def test_it_is_ready_when_its_scorer_is(tmp_path):
    with pytest.raises(DataError, match=r"scorer 'reward-model' \(none\): '.*none' holds no config.json"):
        ReportConsistency(scorer=RewardModel(tmp_path, model=Pretrained(folder="none"))).ready()
    ReportConsistency(scorer=FindingsF1()).ready()


@pytest.mark.parametrize(
    ("score", "reward"),
    [(-0.1, 0.0), (0.0, 0.5), (0.1, 0.5), (0.49, 0.5), (0.5, 0.8), (0.51, 0.8), (1.0, 1.0), (1.01, 1.0)],
)
def test_paper_levels_are_the_papers_four_values(score, reward):
    assert level(as_agreement(score), LEVELS["paper"]) == reward


def test_an_agreement_outside_0_to_1_is_named():
    with pytest.raises(ValueError, match=r"must lie in 0\.\.1, got 1\.5"):
        level(1.5, LEVELS["paper"])


def test_agreement_itself_can_be_the_reward():
    (score,) = ReportConsistency(scorer=Fixed(0.37), levels="none")([rollout("words")], {})
    assert score == Score(value=0.37, parts={"agreement": 0.37}, reason="the texts agree to 0.37")


def test_the_released_levels_are_paid_unless_others_are_asked_for():
    scorer = Fixed(as_agreement(0.3))
    paid = [
        ReportConsistency(scorer=scorer, **table)([rollout("words")], {})
        for table in ({}, {"levels": "paper"})
    ]
    assert [(score.value, score.parts) for (score,) in paid] == [
        (0.4, {"agreement": scorer.value}), (0.5, {"agreement": scorer.value}),
    ]  # fmt: skip


def test_without_think_text_report_or_anything_to_compare_it_is_not_applicable():
    reward = ReportConsistency(scorer=Fixed(None))
    none = reward([rollout(None), rollout("words", report=None), rollout("words")], {})
    assert none == [
        Unscored(kind="not-applicable", reason="the answer has no think text"),
        Unscored(kind="not-applicable", reason="case 'a' has no report"),
        Unscored(kind="not-applicable", reason="the scorer finds nothing to compare"),
    ]


class Listening(Scorer):
    def __init__(self):
        self.heard = []

    def __call__(self, candidates, references, questions=None):
        self.heard += zip(candidates, references, questions, strict=True)
        return [1.0] * len(candidates)


def test_as_in_the_paper_the_think_text_is_compared_with_the_report():
    scorer = Listening()
    ReportConsistency(scorer=scorer)([rollout("B lung nodule present.")], {})
    assert scorer.heard == [("B lung nodule present.", REPORT, QUESTION)]


def test_as_released_the_whole_completion_is_compared_with_the_options_words():
    scorer = Listening()
    shown = rollout("B lung nodule present.", report=None)
    (score,) = ReportConsistency(scorer=scorer, texts="released")([shown], {})
    assert scorer.heard == [(shown.text, "lung nodule", QUESTION)]
    assert score.value == 1.0


def test_as_released_a_prompt_without_options_is_not_applicable():
    bare = dataclasses.replace(
        rollout("words"), prompt=Prompt(id="r7", case=rollout("").prompt.case, task="report", parts=())
    )
    assert ReportConsistency(scorer=Listening(), texts="released")([bare], {}) == [
        Unscored(kind="not-applicable", reason="prompt 'r7' has no right option")
    ]


def test_it_keeps_the_contract_of_a_reward():
    good = [rollout("B lung nodule present.")] * 2
    bad = [rollout("B lung nodule absent.")] * 2
    check_reward(ReportConsistency(scorer=FindingsF1(scope="candidate")), good, bad)


def test_it_tells_a_denial_where_its_scorer_does():
    class Deaf(Fixed):
        detects_negation = False

    assert ReportConsistency(scorer=Fixed(0.5)).detects_negation
    assert not ReportConsistency(scorer=Deaf(0.5)).detects_negation
