"""Short free-text answers: what is asked, read, measured and paid."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_medvr.free_text import FreeText, FreeTextAccuracy, FreeTextEvaluation, Replied, agreement
from evidcore_plugin_medvr.tools import Zoom
from evidcore_plugin_medvr.zoom_first import FirstLook, ZoomFreeText
from evidcore_testing.checks_evaluation import Repeats, check_evaluation
from evidcore_testing.checks_reward import answer_group, check_reward
from evidcore_testing.checks_task import check_task
from evidcore_testing.data import volume_case

from evidcore.api import Answer, Answers, EvalOptions, Prompt, Question, Rollout, Score, TextPart
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Slices, Volume
from evidcore.registry.factory import build

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

OPEN = {"id": "o1", "text": "Where is the nodule?", "answers": ["right lung", "in the lung on the right"]}


@pytest.fixture
def case(tmp_path):
    return dataclasses.replace(volume_case(tmp_path, 0), notes={"open_questions": (OPEN,)})


def prompts(case, **options):
    return FreeText(**options).prompts(case, Volume(), 0)


@pytest.mark.parametrize("options", [{}, {"think": False}, {"rules": True}])
def test_it_keeps_the_contract_of_a_task(case, options):
    garbage = ["right lung", "<think>a</think><answer> </answer>", "<think>a</think><answer>b</answer> c"]
    check_task(FreeText(**options), Volume(), [case], garbage=garbage)


def test_questions_are_asked_without_their_options_and_open_ones_behind_them(case):
    closed, opened = prompts(case, think=False)
    words = [part.text for item in (closed, opened) for part in item.parts if isinstance(part, TextPart)]
    assert words == [
        "Which finding is present?\nAnswer in a few words.", "Where is the nodule?\nAnswer in a few words.",
    ]  # fmt: skip
    assert closed.reference == {"question": "Which finding is present?", "answers": ["lung nodule"]}
    assert (opened.id, opened.task) == ("case-0:o1", "free-text")
    assert opened.reference["answers"] == OPEN["answers"]
    assert prompts(dataclasses.replace(case, questions=(), notes={})) == []


def test_every_option_that_holds_is_a_right_answer_the_key_first_and_its_finding_is_named_for_twins(case):
    asked = Question(
        id="q", text="?", options=tuple("abc"), answer=2, true_options=(0, 2), kind="lung nodule"
    )
    closed, opened = prompts(dataclasses.replace(case, questions=(asked,)))
    assert closed.reference["answers"] == ["c", "a"]
    assert closed.reference["finding"] == "lung nodule"
    assert "finding" not in opened.reference


def test_of_a_question_that_someone_put_no_answer_is_known(case):
    question = Question(id="q", text="Why?", options=(), answer=0)
    [prompt] = FreeText().ask(dataclasses.replace(case, questions=(question,), notes={}), Volume())
    assert prompt.reference == {"question": "Why?", "answers": []}
    [rollout] = answer_group(FreeText(think=False), prompt, ["<answer>so</answer>"])
    assert FreeTextAccuracy()([rollout], {}) == [None]


def test_what_stands_between_the_tags_is_read_as_written(case):
    _, prompt = prompts(case)
    answer = FreeText().parse(prompt, "<think>hm</think>\n<answer> The Right lung. </answer>")
    assert (answer.malformed, answer.value, answer.think) == (None, "The Right lung.", "hm")
    empty = FreeText().parse(prompt, "<think>hm</think><answer></answer>")
    assert (empty.malformed, empty.value) == ("the answer is '', expected a few words", None)
    loose = FreeText().parse(prompt, "<answer>right lung</answer>")
    assert (loose.malformed, loose.value) == ("no <think>", None)


@pytest.mark.parametrize(("said", "right", "exact", "f1"), TABLE["agreement"])
def test_agreement_by_hand(said, right, exact, f1):
    assert agreement(said, right) == pytest.approx({"exact_match": exact, "token_f1": f1})


@pytest.mark.parametrize(("match", "paid"), [("exact", [1.0, 0.0, 0.0]), ("token-f1", [1.0, 0.5, 0.0])])
def test_an_answer_is_paid_by_what_it_shares_and_a_malformed_one_nothing(case, match, paid):
    task, (_, prompt) = FreeText(think=False), prompts(case, think=False)
    texts = ["<answer>right lung</answer>", "<answer>left lung</answer>", "right lung"]
    scores = FreeTextAccuracy(match=match)(answer_group(task, prompt, texts), {})
    assert [item.value for item in scores] == paid
    assert scores[1].parts == {"exact_match": 0.0, "token_f1": 0.5}
    assert scores[1].reason == "answered 'left lung', right is 'right lung'"
    assert scores[2].reason == "no tags, expected <answer></answer>"


def test_a_task_of_ones_own_is_paid_by_answers_and_value(case):
    prompt = Prompt(id="p", case=case, task="mine", parts=(), reference={"answers": ["two"]})

    def paid(value, malformed=None):
        answer = Answer(text="", value=value, malformed=malformed)
        [score] = FreeTextAccuracy()([Rollout(prompt=prompt, group=0, text="", answer=answer)], {})
        return score

    assert paid("two").value == 1.0
    assert paid("two", malformed="too loud") == Score(value=0.0, reason="too loud")
    assert paid(2) == Score(value=0.0, reason="no answer was read")
    choice = Choice()  # is not applicable
    (prompt,) = choice.prompts(case, Volume(), 0)
    assert FreeTextAccuracy()(answer_group(choice, prompt, [choice.gold(prompt)[0]]), {}) == [None]


@pytest.mark.parametrize("match", ["exact", "token-f1"])
def test_it_keeps_the_contract_of_a_reward(case, match):
    task, (_, prompt) = FreeText(), prompts(case)
    gold, _ = task.gold(prompt)
    good = answer_group(task, prompt, [gold] * 2)
    bad = answer_group(task, prompt, ["<think>a</think><answer>no</answer>", "right lung"])
    check_reward(FreeTextAccuracy(match=match), good, bad)


def test_it_keeps_the_contract_of_an_evaluation(tmp_path):
    task = FreeText()
    cases = [volume_case(tmp_path, seed) for seed in range(4)]
    asked = [item for each in cases for item in task.prompts(each, Volume(), 0)]
    check_evaluation(FreeTextEvaluation(), task, asked)


def test_exact_match_and_f1_are_means_over_questions_and_malformed_counts_0(case):
    texts = ["<answer>lung nodule</answer>", "<answer>nodule</answer>", "lung nodule"]
    task, (closed, _) = FreeText(think=False), prompts(case, think=False)
    given = Answers([closed] * 3, [Replied(answer=task.parse(closed, text)) for text in texts])
    [scored] = FreeTextEvaluation().score([given], task, "free-text")
    rows = {row.metric: row.value for row in scored.rows()}
    assert rows == pytest.approx({"exact_match": 1 / 3, "token_f1": (1 + 2 / 3 + 0) / 3})


def test_beside_stands_the_answer_that_is_most_frequent_in_training(tmp_path):
    task = FreeText()
    cases = [volume_case(tmp_path, seed) for seed in (0, 1, 2, 4)]  # a nodule in three of four
    asked = [item for case in cases for item in task.prompts(case, Volume(), 0)]
    blind = FreeTextEvaluation().references(asked, lambda: asked, task, "free-text")
    assert blind.values == (1.0, 0.0, 1.0, 1.0)
    assert blind.rows[0].note == "says 'lung nodule' each time"
    assert blind.figures == {"training_mode": 0.75}
    assert FreeTextEvaluation().references(asked, list, task, "free-text") is None


def test_metrics_of_turns_measure_where_a_short_answer_looked(cases, tmp_path):
    view, look = Slices(slices=1), FirstLook(boxes="findings", smallest_side=0.125)
    task = ZoomFreeText(view, tmp_path, tool=Zoom(view), look=look)
    prompts = [prompt for case in cases[:2] for prompt in task.prompts(case, view, 0)]

    class Looking(Repeats):
        """Looks at the lesion of the first slice, and nowhere on the second."""

        def complete(self, prompts, *, max_new_tokens, temperature=0.0):
            first, second = super().complete(prompts, max_new_tokens=max_new_tokens)
            return [dataclasses.replace(first, turns=tuple(task.gold_turns(prompts[0]))), second]

    table = {"use": "free-text", "metric": [{"use": "looks"}]}
    evaluation = build("evaluation", table, given={"cache_folder": tmp_path}, where="test")
    said = evaluation.answer(Looking(task), prompts, task, EvalOptions(max_new_tokens=8))
    [scored] = evaluation.score([Answers(prompts, said)], task, "zoom")
    rows = {row.metric: row.value for row in scored.rows()}
    assert rows == {
        "exact_match": 1.0, "token_f1": 1.0, "valid_calls": 0.5, "zoom_cover": 0.5, "zoom_iou": 0.5,
    }  # fmt: skip
    first, second = scored.lines()
    assert first["turns"][0]["actions"][0]["tool"] == "zoom"
    assert "turns" not in second
