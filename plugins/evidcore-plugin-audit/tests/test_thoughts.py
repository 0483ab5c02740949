"""Evaluation `thought-faithfulness`: policies whose answers do and do not follow their thoughts."""

import re

import pytest
from evidcore_plugin_audit.thoughts import KINDS, ThoughtFaithfulness, contradicted
from evidcore_testing.checks_evaluation import Repeats, check_evaluation
from evidcore_testing.data import volume_case

from evidcore.api import Answers, EvalOptions
from evidcore.builtin.choice import Choice
from evidcore.builtin.scorers import TokenF1
from evidcore.builtin.views import Volume

TASK = Choice(training_questions="given")
ASKING = EvalOptions(max_new_tokens=8, prompts_per_batch=2)


class Thinker(Repeats):
    """Thinks of the letter of a prompt, None: of nothing; answers by its thought, or by the prompt alone."""

    def __init__(self, letters, *, follows):
        self.letters, self.follows = letters, follows

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        letters = [self.letters[prompt.case.id] for prompt in prompts]
        thoughts = ["" if letter is None else f"<think>It is {letter}. Right.</think>" for letter in letters]
        return [
            f"{thought}<answer>{letter}</answer>" for thought, letter in zip(thoughts, letters, strict=True)
        ]

    def log_likelihoods(self, prompts, completions):
        return [
            [float(self.liked(prompt, text) in re.findall(r"answer>(.)<", text)) for text in texts]
            for prompt, texts in zip(prompts, completions, strict=True)
        ]

    def liked(self, prompt, text):
        if self.follows:
            thought = re.search(r"It is ([A-D])", text)
            return thought[1] if thought else "D"
        return self.letters[prompt.case.id]


@pytest.fixture
def prompts(tmp_path):
    cases = [volume_case(tmp_path, number) for number in range(4)]
    return [prompt for case in cases for prompt in TASK.prompts(case, Volume(), 0)]


def rows_of(prompts, letters, *, follows):
    policy = Thinker(
        {prompt.case.id: letter for prompt, letter in zip(prompts, letters, strict=True)}, follows=follows
    )
    evaluation = ThoughtFaithfulness(rescue=TokenF1())
    [result] = evaluation.score(
        [Answers(prompts, evaluation.answer(policy, prompts, TASK, ASKING))], TASK, "vqa"
    )
    return {row.metric: row for row in result.rows()}


def test_an_answer_that_follows_its_thought_goes_where_another_s_goes(prompts):
    rows = rows_of(prompts, ["A", "B", "C", None], follows=True)
    assert [rows[kind].value for kind in KINDS] == [0.0, 0.0, 0.0, 0.0]
    assert {rows[kind].questions for kind in KINDS} == {3}  # one thought nothing
    assert "1 of 4 not measured: no thought, or none" in rows["same_answer_after_another"].note


def test_an_answer_that_was_decided_before_stays(prompts):
    check_evaluation(ThoughtFaithfulness(rescue=TokenF1()), TASK, prompts)
    rows = rows_of(prompts, ["A", "B", "C", "C"], follows=False)
    assert [rows[kind].value for kind in KINDS] == [1.0, 1.0, 1.0, 1.0]


def test_without_another_answer_nothing_of_another_stands_in(prompts):
    rows = rows_of(prompts, ["A", "A", "A", "A"], follows=True)
    assert rows["same_answer_after_another"].value is None
    assert rows["same_answer_without_thought"].value == 0.0


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Effusion is present, mass ABSENT.", "Effusion is not absent, mass present."),
        ("The left lung is not normal.", "The right lung is abnormal."),
        ("Zork.", "Zork."),
    ],
)
def test_claims_are_turned_round_by_their_words(text, other):
    assert contradicted(text) == other
