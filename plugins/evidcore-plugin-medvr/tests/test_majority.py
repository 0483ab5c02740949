"""Evaluation `majority-choice` and the data set that goes by its votes."""

import dataclasses
import json

import pytest
from evidcore_plugin_medvr.majority import MajorityChoice
from evidcore_plugin_medvr.sometimes_right import SometimesRight
from evidcore_testing.checks_dataset import check_dataset
from evidcore_testing.checks_evaluation import Repeats, check_evaluation
from evidcore_testing.data import TinyDataset, volume_case

from evidcore.api import Answers, DataError, EvalOptions
from evidcore.builtin.choice import Choice
from evidcore.builtin.scorers import TokenF1
from evidcore.builtin.views import Volume
from evidcore.contracts import Completion

TASK = Choice(think=False, training_questions="given", permute=False)  # right: A of even cases, B of odd ones
ASKING = EvalOptions(max_new_tokens=8, prompts_per_batch=1)


class Drawn(Repeats):
    """Says the next of a prompt's letters at each sample; `None` is out of its format."""

    def __init__(self, letters):
        self.letters, self.asked = letters, []

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        return [one.text for one in self.complete(prompts, max_new_tokens=0, temperature=temperature)]

    def complete(self, prompts, *, max_new_tokens, temperature=0.0):
        self.asked += [(prompt.id, temperature) for prompt in prompts]
        letters = [self.letters[prompt.case.id][int(prompt.id.rpartition("-")[2])] for prompt in prompts]
        return [Completion(text=f"<answer>{letter}</answer>" if letter else "well") for letter in letters]


@pytest.fixture
def prompts(tmp_path):
    cases = [volume_case(tmp_path, number) for number in range(3)]
    return [prompt for case in cases for prompt in TASK.prompts(case, Volume(), 0)]


def voted(prompts, *letters, samples=5):
    policy = Drawn({prompt.case.id: said for prompt, said in zip(prompts, letters, strict=True)})
    evaluation = MajorityChoice(samples=samples, temperature=0.7, rescue=TokenF1())
    answers = Answers(prompts, evaluation.answer(policy, prompts, TASK, ASKING))
    [scored] = evaluation.score([answers], TASK, "vqa")
    return policy, scored


def test_the_letter_of_most_samples_counts_and_of_equals_the_first_drawn(prompts):
    policy, scored = voted(prompts, "BAACA", "CBDBC", [None, None, "D", None, None])
    assert [one.choice for one in scored.answers] == ["A", "C", "D"]
    assert scored.values("strict_accuracy") == (1.0, 0.0, 0.0)
    rows = {row.metric: row.value for row in scored.rows()}
    assert rows["sample_accuracy"] == pytest.approx((3 / 5 + 2 / 5 + 0) / 3)
    assert rows["agreement"] == pytest.approx((3 / 5 + 2 / 5 + 1 / 5) / 3)
    assert scored.lines()[2]["votes"] == (None, None, "D", None, None)
    assert len(policy.asked) == len(set(policy.asked)) == 15  # an id of its own: else all samples were alike
    assert {temperature for _, temperature in policy.asked} == {0.7}


def test_without_any_vote_the_first_sample_stands_and_agrees_with_nothing(prompts):
    check_evaluation(MajorityChoice(samples=2, rescue=TokenF1()), TASK, prompts)
    _, scored = voted(prompts, "AA", "BB", [None, None], samples=2)
    assert (scored.answers[2].text, scored.answers[2].choice) == ("well", None)
    assert scored.lines()[2]["figures"] == {"sample_accuracy": 0.0, "agreement": 0.0}


@pytest.fixture
def source(tmp_path):
    return TinyDataset(tmp_path, train=4)


@pytest.fixture
def answers(tmp_path, prompts):
    """Write the votes on three of four training cases: always, sometimes and never right."""
    _, scored = voted(prompts, "AAAAA", "BCBBB", "CCCBB")
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scored.lines()))
    return "answers.jsonl"


def test_questions_answered_always_never_or_not_asked_are_dropped_from_training_alone(
    source, tmp_path, answers
):
    kept = SometimesRight(tmp_path, source=source, answers=answers)
    assert [case.id for case in kept.cases("train")] == ["case-1"]
    assert len(list(kept.cases("test"))) == 4
    check_dataset(kept, other=SometimesRight(tmp_path, source=source, answers=answers, most=0.8))


def test_of_a_case_with_several_questions_those_stay_that_are_between(tmp_path, answers):
    class Twice(TinyDataset):
        def cases(self, split):
            for case in super().cases(split):
                second = dataclasses.replace(case.questions[0], id="2")
                yield dataclasses.replace(case, questions=(*case.questions, second))

    kept = list(SometimesRight(tmp_path, source=Twice(tmp_path, train=4), answers=answers).cases("train"))
    assert [[one.id for one in case.questions] for case in kept] == [["case-1-question-0"]]


def test_answers_that_leave_nothing_have_no_votes_or_are_none_are_named(source, tmp_path, answers):
    def cases(**options):
        return list(SometimesRight(tmp_path, source=source, **options).cases("train"))

    with pytest.raises(DataError, match=r"leaves none of the 4 training questions: .*more than 0.9"):
        cases(answers=answers, least=0.9)
    (tmp_path / "greedy.jsonl").write_text('{"case_id": "case-0", "prompt_id": "case-0:q", "answer": "A"}\n')
    with pytest.raises(DataError, match=r"line 1 of .*greedy.jsonl has no votes"):
        cases(answers="greedy.jsonl")
    with pytest.raises(DataError, match=r"nowhere.jsonl cannot be read as answers"):
        cases(answers="nowhere.jsonl")
