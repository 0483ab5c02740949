import dataclasses
import json
import math

import pytest

from evidcore.api import Answers, Case, EvalOptions, Finding, Policy, Question, VolumeRef
from evidcore.builtin.choice import Choice
from evidcore.builtin.scorers import TokenF1
from evidcore.builtin.views import Volume
from evidcore.evaluate.choice import as_if, rescued
from evidcore.registry import factory

NAMES = ("emphysema", "lung nodule", "cardiomegaly", "hiatal hernia")


class Written(Policy):
    """Writes given completions, one per prompt, and likes one letter of each."""

    def __init__(self, completions, liked=()):
        self.completions = dict(completions)
        self.liked = dict(liked)
        self.asked = []

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        assert temperature == 0.0
        self.asked.append((len(prompts), max_new_tokens))
        return [self.completions[prompt.id] for prompt in prompts]

    def log_likelihoods(self, prompts, completions):
        return [
            [math.log(0.7 if f"<answer>{self.liked[prompt.id]}<" in text else 0.1) for text in some]
            for prompt, some in zip(prompts, completions, strict=True)
        ]


def questions(count=24, task=None):
    """Ask count questions, two per patient; the right letters run A, B, C, D, A, ..."""
    result = []
    for number in range(count):
        right = number % 4
        case = Case(
            id=f"c{number}",
            patient=f"p{number // 2}",
            volumes=(VolumeRef(path=f"{number}.nii"),),
            findings=tuple(
                Finding(name=name, state="present" if index == right else "absent")
                for index, name in enumerate(NAMES)
            ),
            questions=(Question(id="q", text="Which?", options=NAMES, answer=right, true_options=(right,)),),
        )
        result += (task or Choice()).prompts(case, Volume(), 0)
    return result


EVALUATION = factory.build("evaluation", {"use": "choice"}, given={}, where="test")


def evaluated(policy, prompts, task=None, *, name="choice", condition="own", **options):
    asking = EvalOptions(max_new_tokens=9, **options)
    answered = EVALUATION.answer(policy, prompts, task or Choice(), asking)
    [result] = EVALUATION.score([Answers(prompts, answered, condition)], task or Choice(), name)
    return result


def figures(result):
    return {row.metric: row.value for row in result.rows()}


def test_three_readings_and_the_format_are_counted_apart():
    prompts = questions(6)
    texts = [
        "<think>x</think><answer>A</answer>",  # right, well-formed
        "<think>x</think><answer>A</answer>",  # wrong, well-formed
        "C",  # right for a tolerant reader
        "<think>x</think> I see the hiatal hernia",  # right by similarity
        "no idea",
        "<think>x</think><answer>B</answer><answer>B</answer>",  # right for a tolerant reader
    ]
    policy = Written(dict(zip([p.id for p in prompts], texts, strict=True)))
    result = evaluated(policy, prompts, headline_only=True, prompts_per_batch=4)
    results = figures(result)
    names = ("strict_accuracy", "lenient_accuracy", "rescue_accuracy", "format_rate")
    assert [results[name] for name in names] == pytest.approx([1 / 6, 3 / 6, 4 / 6, 2 / 6])
    assert results["accuracy_given_valid_format"] == results["strict_accuracy/emphysema"] == 1 / 2
    assert "log_likelihood_accuracy" not in results
    assert policy.asked == [(4, 9), (2, 9)]
    notes = {f"too few patients ({count} of at least 20)" for count in (1, 2, 3)}
    assert {row.note for row in result.rows()} == notes


def test_log_likelihood_ignores_what_was_written():
    prompts = questions(8)
    liked = {prompt.id: "ABCD"[number % 3] for number, prompt in enumerate(prompts)}
    policy = Written({prompt.id: "mumble" for prompt in prompts}, liked)
    result = evaluated(policy, prompts)
    right = sum(liked[prompt.id] == prompt.reference["letter"] for prompt in prompts)
    results = figures(result)
    assert results["log_likelihood_accuracy"] == results["verdict_log_likelihood_accuracy"] == right / 8
    assert results["strict_accuracy"] == 0.0
    assert "accuracy_given_valid_format" not in results


def test_candidates_are_bare_answers_and_whole_completions_of_equal_form():
    heard = []

    class Listening(Written):
        def log_likelihoods(self, prompts, completions):
            heard.append(completions[0])
            return super().log_likelihoods(prompts, completions)

    prompts = questions(1)
    policy = Listening({prompts[0].id: "x"}, {prompts[0].id: "B"})
    evaluated(policy, prompts)
    assert heard[0] == [f"<answer>{letter}</answer>" for letter in "ABCD"]
    verdicts = "A emphysema absent. B lung nodule present. C cardiomegaly absent. D hiatal hernia absent."
    assert heard[1][1] == f"<think>{verdicts}</think><answer>B</answer>"
    assert len({len(text) for text in heard[1]}) == 1
    heard.clear()
    direct = Choice(think=False)
    result = evaluated(policy, questions(1, direct), direct)
    assert len(heard) == 1
    assert result.answers[0].verdict_log_likelihood_choice is None


def test_answers_are_json_with_what_was_shown():
    prompts = questions(2)
    policy = Written({prompts[0].id: "A", prompts[1].id: "<think>x</think><answer>B</answer>"})
    result = evaluated(policy, prompts, condition="blank", headline_only=True)
    line = json.loads(json.dumps(result.answers[1].line()))
    asked = line.pop("prompt")
    assert asked.startswith("<image>Which?\nA) emphysema\nB) lung nodule")
    assert line == {
        "prompt_id": "c1:q", "case_id": "c1", "patient": "p0", "task": "choice", "condition": "blank",
        "text": "<think>x</think><answer>B</answer>", "malformed": None, "choice": "B", "lenient_choice": "B",
        "rescue_choice": "B", "log_likelihood_choice": None, "verdict_log_likelihood_choice": None,
        "answer": "B", "finding": "lung nodule", "images": ["1.nii#intensity=hu"], "correct": True,
    }  # fmt: skip


def test_rows_hold_intervals_and_the_reference_lines():
    prompts = questions(48)
    policy = Written({p.id: f"<think>x</think><answer>{'AB'[n % 2]}</answer>" for n, p in enumerate(prompts)})
    result = evaluated(policy, prompts, headline_only=True, name="after")
    blind = EVALUATION.references(prompts, lambda: prompts, Choice(), "after")
    rows = {row.metric: row for row in [*result.rows(), *blind.rows]}
    strict = rows["strict_accuracy"]
    assert (strict.name, strict.value, strict.questions, strict.patients) == ("after", 0.5, 48, 24)
    assert strict.low < 0.5 < strict.high
    assert rows["uniform_chance"].value == 0.25
    assert rows["perfect_perception"].value == 1.0


def test_rescue_takes_the_likest_option_and_no_tie_and_as_if_changes_only_what_is_true():
    (prompt,) = questions(1)
    assert rescued("<think>emphysema</think> a large hernia", prompt, TokenF1()) == "D"
    assert rescued("nothing of the kind", prompt, TokenF1()) is None
    other = as_if(prompt, 2)
    changed = {"letter": "C", "true_options": [2], "finding": "cardiomegaly"}
    assert other.reference == prompt.reference | changed
    assert other.parts == prompt.parts


def test_no_question_or_no_options_is_refused():
    with pytest.raises(ValueError, match="no question"):
        evaluated(Written({}), [])
    (prompt,) = questions(1)
    bare = prompt.__class__(id="r7", case=prompt.case, task="report", parts=())
    with pytest.raises(ValueError, match="prompt 'r7' has no options"):
        evaluated(Written({}), [bare])


def test_cases_without_a_patient_are_clusters_of_their_own_and_the_rows_say_so():
    prompts = [
        dataclasses.replace(prompt, case=dataclasses.replace(prompt.case, patient=None))
        for prompt in questions(30)
    ]
    policy = Written({prompt.id: "<think>x</think><answer>A</answer>" for prompt in prompts})
    result = evaluated(policy, prompts, headline_only=True)
    strict = next(row for row in result.rows() if row.metric == "strict_accuracy")
    assert strict.patients == 30
    assert strict.note == "30 questions on cases without a known patient, each case taken for one"
    assert result.answers[0].line()["patient"] is None
