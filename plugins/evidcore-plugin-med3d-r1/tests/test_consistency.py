from __future__ import annotations

import math

import pytest
from evidcore_plugin_med3d_r1.consistency import LEVELS, ReportConsistency, level

from evidcore.builtin.scorers import FindingsF1
from evidcore.case import Answer, Case, Prompt, Report, Rollout, Score, Unscored
from evidcore.contracts import Scorer
from evidcore.testing.checks_reward import check_reward

REPORT = "There is no emphysema. There is a lung nodule in the left lung."


class Fixed(Scorer):
    def __init__(self, value):
        self.value = value

    def __call__(self, candidates, references):
        return [self.value] * len(candidates)


def rollout(think, report=REPORT):
    case = Case(id="a", patient="p", volumes=(), report=Report(text=report) if report else None)
    text = f"<think>{think}</think><answer>B</answer>"
    prompt = Prompt(id="q", case=case, task="choice", parts=())
    return Rollout(prompt=prompt, group=0, text=text, answer=Answer(text=text, think=think, choice="B"))


def raw(value):
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize(
    ("score", "reward"),
    [
        *[(-9.0, 0.0), (-0.01, 0.0), (0.01, 0.2), (0.19, 0.2), (0.21, 0.4), (0.49, 0.4)],
        *[(0.51, 0.6), (0.99, 0.6), (1.01, 0.8), (1.59, 0.8), (1.61, 1.0), (9.0, 1.0)],
    ],
)
def test_released_levels_are_the_released_codes_table(score, reward):
    assert level(raw(score), LEVELS["released"]) == reward


@pytest.mark.parametrize(
    ("score", "reward"), [(-0.1, 0.0), (0.1, 0.5), (0.49, 0.5), (0.51, 0.8), (1.01, 1.0)]
)
def test_paper_levels_are_the_papers_four_values(score, reward):
    assert level(raw(score), LEVELS["paper"]) == reward


@pytest.mark.parametrize("table", ["paper", "released"])
def test_no_agreement_earns_nothing_and_full_agreement_everything(table):
    assert level(0.0, LEVELS[table]) == 0.0
    assert level(1.0, LEVELS[table]) == 1.0
    rising = [level(step / 100, LEVELS[table]) for step in range(101)]
    assert rising == sorted(rising)


def test_an_agreement_outside_0_to_1_is_named():
    with pytest.raises(ValueError, match=r"must lie in 0\.\.1, got 1\.5"):
        level(1.5, LEVELS["paper"])


def test_think_text_that_says_what_the_report_says_beats_its_opposite():
    reward = ReportConsistency(scorer=FindingsF1(scope="candidate"))
    right = rollout("A emphysema absent. B lung nodule present.")
    wrong = rollout("A emphysema present. B lung nodule absent.")
    good, bad = reward([right, wrong], {})
    assert (good.value, bad.value) == (1.0, 0.0)
    assert good.parts == {"agreement": 1.0}


def test_agreement_itself_can_be_the_reward():
    (score,) = ReportConsistency(scorer=Fixed(0.37), levels="none")([rollout("words")], {})
    assert score == Score(
        value=0.37, parts={"agreement": 0.37}, reason="the think text agrees with the report to 0.37"
    )


def test_without_think_text_report_or_anything_to_compare_it_is_not_applicable():
    reward = ReportConsistency(scorer=Fixed(None))
    none = reward([rollout(None), rollout("words", report=None), rollout("words")], {})
    assert none == [
        Unscored(kind="not-applicable", reason="the answer has no think text"),
        Unscored(kind="not-applicable", reason="case 'a' has no report"),
        Unscored(kind="not-applicable", reason="the scorer finds nothing to compare"),
    ]


def test_the_report_is_compared_not_the_options_text():
    seen = []

    class Listening(Scorer):
        def __call__(self, candidates, references):
            seen.extend(zip(candidates, references, strict=True))
            return [1.0] * len(candidates)

    ReportConsistency(scorer=Listening())([rollout("B lung nodule present.")], {})
    assert seen == [("B lung nodule present.", REPORT)]


def test_it_keeps_the_contract_of_a_reward():
    good = [rollout("B lung nodule present.")] * 2
    bad = [rollout("B lung nodule absent.")] * 2
    check_reward(ReportConsistency(scorer=FindingsF1(scope="candidate")), good, bad)
