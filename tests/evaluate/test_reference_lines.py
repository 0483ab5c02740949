from __future__ import annotations

import dataclasses

import pytest

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Case, Finding, Prompt, Question
from evidcore.evaluate.reference_lines import cluster_of, reference_lines, training_prompts


def prompt(options, letter, *, true=None, name="a", patient="p", states=None):
    findings = tuple(Finding(name=item, state=state) for item, state in (states or {}).items())
    place = "ABCD".index(letter)
    return Prompt(
        id=f"{name}:{options}:{letter}",
        case=Case(id=name, patient=patient, volumes=(), findings=findings),
        task="choice",
        parts=(),
        reference={
            "options": list(options),
            "letter": letter,
            "true_options": list(true if true is not None else [place]),
            "finding": options[place],
        },
    )


# e is right 3 times of 3 offered, n 2 of 5, c 1 of 4, h 0 of 6; the letter A is right most often
TRAINING = [
    prompt(["e", "n", "c"], "A"),
    prompt(["e", "n", "h"], "A"),
    prompt(["e", "c", "h"], "A"),
    prompt(["n", "c", "h"], "A"),
    prompt(["h", "n", "h"], "B"),
    prompt(["h", "n", "c"], "C"),
]


def test_uniform_chance_is_one_over_the_options():
    questions = [prompt(["e", "n"], "A"), prompt(["e", "n", "c", "h"], "B")]
    lines = reference_lines(questions, TRAINING)
    assert lines.uniform_chance == (0.5, 0.25)
    assert lines.figures()["uniform_chance"] == 0.375


def test_perfect_perception_cannot_tell_true_options_apart():
    questions = [prompt(["e", "n", "c"], "A"), prompt(["e", "n", "c"], "A", true=[0, 2])]
    questions.append(prompt(["e", "n", "c"], "B", true=[0, 1, 2]))
    lines = reference_lines(questions, TRAINING)
    assert lines.perfect_perception == (1.0, 0.5, pytest.approx(1 / 3))


def test_prior_only_picks_what_was_right_in_training():
    questions = [prompt(["h", "e"], "B"), prompt(["c", "n"], "B"), prompt(["n", "e"], "A")]
    lines = reference_lines(questions, TRAINING)
    assert lines.rules["most often right in training"] == pytest.approx(2 / 3)
    assert lines.rules["most often right when offered"] == pytest.approx(2 / 3)
    assert lines.rules["letter most often right"] == pytest.approx(1 / 3)
    assert lines.prior_only == (1.0, 1.0, 0.0)


def test_a_rule_that_cannot_decide_tosses_a_coin():
    lines = reference_lines(
        [prompt(["x", "y", "h"], "A")], [prompt(["e", "n"], "A"), prompt(["e", "n"], "B")]
    )
    assert lines.rules["most often right in training"] == pytest.approx(1 / 3)


def test_right_when_offered_differs_from_right_most_often():
    training = [prompt(["a", "b"], "A")] * 3 + [prompt(["a", "c"], "B")] * 5 + [prompt(["b", "d"], "B")] * 2
    # a: right 3 of 8 offered; d: right 2 of 2
    lines = reference_lines([prompt(["a", "d"], "B")], training)
    assert lines.rules["most often right in training"] == 0.0
    assert lines.rules["most often right when offered"] == 1.0
    assert lines.prior_rule == "most often right when offered"


def test_prevalence_counts_each_training_case_once():
    common = prompt(["x", "y"], "A", name="a", states={"x": "present", "y": "present"})
    training = [common, common, prompt(["x", "y"], "B", name="b", states={"x": "absent", "y": "present"})]
    lines = reference_lines([prompt(["x", "y"], "B")], training)
    assert lines.rules["most prevalent in training"] == 1.0
    assert lines.rules["most often right in training"] == 0.0


def test_the_best_rule_is_the_ceiling():
    questions = [prompt(["h", "e"], "A"), prompt(["h", "n"], "A")]
    lines = reference_lines(questions, TRAINING)
    assert lines.prior_rule == "letter most often right"
    assert lines.figures()["prior_only"] == max(lines.rules.values()) == 1.0


def test_balanced_questions_leave_the_blind_rules_at_chance():
    options = ["e", "n", "c", "h"]
    questions = [prompt(options[i:] + options[:i], "ABCD"[j]) for i in range(4) for j in range(4)]
    lines = reference_lines(questions, TRAINING)
    assert lines.figures()["prior_only"] == 0.25


def test_rows_tell_the_rule_and_the_patients():
    questions = [prompt(["e", "n"], "A", patient=f"p{number}") for number in range(25)]
    rows = {row.metric: row for row in reference_lines(questions, TRAINING).rows("choice")}
    assert rows["prior_only"].note == (
        "best blind rule: most often right in training; "
        "all values are equal: exact binomial bound over patients"
    )
    assert (rows["uniform_chance"].value, rows["uniform_chance"].patients) == (0.5, 25)
    assert {row.name for row in rows.values()} == {"choice"}


def test_a_case_without_a_patient_is_its_own_cluster():
    assert cluster_of(prompt(["e", "n"], "A", patient=None, name="c3")) == "case c3"


def test_without_questions_or_options_there_are_no_lines():
    with pytest.raises(ValueError, match="got 0 and 6 for training"):
        reference_lines([], TRAINING)
    bare = Prompt(id="r1", case=Case(id="a", patient="p", volumes=()), task="report", parts=())
    with pytest.raises(ValueError, match="prompt 'r1' has no options"):
        reference_lines([bare], TRAINING)


def test_the_words_of_a_question_may_give_its_answer_away():
    def side(organ, answer):
        asked = prompt(["left", "right"], answer, name=organ)
        return dataclasses.replace(asked, reference={**asked.reference, "question": f"Where is the {organ}?"})

    training = (
        [side("liver", "B")] * 3 + [side("spleen", "A")] * 3 + [side("tumour", "A"), side("tumour", "B")]
    )
    questions = [side("liver", "B"), side("spleen", "A"), side("tumour", "A"), side("kidney", "B")]
    lines = reference_lines(questions, training)
    # the tumour was on either side once, no kidney was asked about: a coin each
    assert lines.rules["most often right to the same words"] == pytest.approx((1 + 1 + 0.5 + 0.5) / 4)
    assert lines.rules["most often right when offered"] == pytest.approx(0.5)
    assert lines.prior_only == (1.0, 1.0, 0.5, 0.5)


def test_perfect_perception_is_not_known_where_the_true_options_are_not():
    unknown = prompt(["e", "n"], "A", name="b")
    unknown = dataclasses.replace(unknown, reference={**unknown.reference, "truth_known": False})
    lines = reference_lines([prompt(["e", "n"], "A"), unknown], TRAINING)
    assert lines.perfect_perception is None
    assert lines.figures()["perfect_perception"] is None
    assert lines.figures()["uniform_chance"] == 0.5
    row = next(row for row in lines.rows("choice") if row.metric == "perfect_perception")
    assert (row.value, row.low, row.high) == (None, None, None)
    assert (row.questions, row.note) == (2, "which other options are true is not known")


def test_rules_learn_from_given_questions_and_from_drawn_ones():
    names = ("nodule", "effusion", "cyst", "scar")
    side = Question(id="q", text="On which side is the liver?", options=("left", "right"), answer=1)
    cases = [
        Case(
            id=f"c{number}", patient=f"p{number}", volumes=(), questions=(side,),
            findings=tuple(
                Finding(name=name, state="present" if name == "nodule" else "absent") for name in names
            ),
        )
        for number in range(8)
    ]  # fmt: skip

    def ask(task, some):
        return lambda seed: [item for case in some for item in task.prompts(case, Volume(), seed)]

    drawing, giving = Choice(), Choice(training_questions="given")
    training = training_prompts(ask(drawing, cases[:4]))
    assert {item.reference["question"] for item in training} == {side.text, "Which finding is present?"}
    # who knows the training questions answers every one of these without looking
    assert reference_lines(ask(drawing, cases[4:])(0), training).figures()["prior_only"] == 1.0
    assert len(training_prompts(ask(giving, cases[:4]))) == 4  # the same in both, each once
