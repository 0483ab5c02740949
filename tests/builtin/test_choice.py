import collections
import dataclasses
import tomllib
from pathlib import Path

import pytest
from evidcore_testing.checks_task import check_task

from evidcore.api import Case, Finding, Question, TextPart, VolumeRef
from evidcore.builtin.choice import Choice, lenient_letter, strict_fault
from evidcore.builtin.views import Volume
from evidcore.text.tags import inside, tag_fault

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

NAMES = ("emphysema", "lung nodule", "cardiomegaly", "consolidation", "atelectasis", "hiatal hernia")
QUESTION = Question(id="q7", text="What is seen?", options=NAMES[:3], answer=1, true_options=(1,))
LEFT_RIGHT = {"text": "On which side is it?", "options": ("left", "right"), "kind": "side"}
SIDE = dataclasses.replace(QUESTION, id="q8", **LEFT_RIGHT)


def case(present=("lung nodule",), uncertain=(), questions=(), name="a", notes=None):
    states = {item: "present" if item in present else "absent" for item in NAMES}
    states |= dict.fromkeys(uncertain, "uncertain")
    facts = {"volumes": (VolumeRef(path="a.nii"),), "questions": questions, "notes": notes or {}}
    findings = tuple(Finding(name=item, state=state) for item, state in states.items())
    return Case(id=name, patient=name, findings=findings, **facts)


def asked(task, seed=1, **facts):
    return task.prompts(case(**facts), Volume(), seed)


def test_it_keeps_the_contract_of_a_task():
    cases = [case(name="a"), case(name="b", questions=(QUESTION,)), case(name="c", present=NAMES[:2])]
    for task in (Choice(), Choice(think=False), Choice(distractors="random", permute=True, rules=True)):
        check_task(task, Volume(), cases, garbage=["A", "no idea", "<answer>Z</answer>"])


def test_evaluation_asks_the_questions_that_came_with_the_case():
    (prompt,) = asked(Choice(), seed=0, questions=(QUESTION,))
    assert prompt.id == "a:q7"
    assert prompt.parts[-1] == TextPart(
        text="What is seen?\nA) emphysema\nB) lung nodule\nC) cardiomegaly\nThink, then answer."
    )
    assert prompt.reference == {
        "letter": "B", "options": ["emphysema", "lung nodule", "cardiomegaly"], "true_options": [1],
        "truth_known": True, "finding": "lung nodule", "question": "What is seen?",
        "verdicts": ["present", "absent"],
    }  # fmt: skip


def test_gold_goes_through_the_options_and_ends_with_the_letter():
    (prompt,) = asked(Choice(), seed=0, questions=(QUESTION,))
    assert Choice().gold(prompt) == (
        "<think>A emphysema absent. B lung nodule present. C cardiomegaly absent.</think><answer>B</answer>",
        (),
    )
    assert Choice(think=False).gold(prompt) == ("<answer>B</answer>", ())
    several = Choice(distractors="random", options_per_question=6)  # tells every true option
    (prompt,) = asked(several, present=("lung nodule", "emphysema"))
    assert several.gold(prompt)[0].count(" present.") == 2
    options, true = prompt.reference["options"], prompt.reference["true_options"]
    assert sorted(options[place] for place in true) == ["emphysema", "lung nodule"]


def test_drawn_questions_have_one_present_finding_among_absent_ones():
    rights, letters = collections.Counter(), collections.Counter()
    for seed in range(1, 401):
        (prompt,) = asked(
            Choice(), seed=seed, present=("lung nodule", "emphysema"), uncertain=("atelectasis",)
        )
        reference = prompt.reference
        assert len(set(reference["options"])) == 4
        assert "atelectasis" not in reference["options"]
        assert reference["true_options"] == ["ABCD".index(reference["letter"])]
        rights[reference["finding"]] += 1
        letters[reference["letter"]] += 1
    assert set(rights) == {"lung nodule", "emphysema"}
    assert min(rights.values()) > 160  # 200 expected, 4 standard deviations
    assert min(letters.values()) > 65  # 100 expected, 4 standard deviations


def test_training_draws_anew_with_every_seed_and_alike_with_the_same():
    first, second, again = (asked(Choice(), seed=seed, questions=(QUESTION,)) for seed in (1, 2, 1))
    given = asked(Choice(training_questions="given"), seed=5, questions=(SIDE, QUESTION))
    assert [prompt.id for prompt in given] == ["a:q8", "a:q7"]
    (told,) = asked(Choice(), notes={"indication": "smoker"})
    assert told.parts[-1].text.startswith("Indication: smoker. Which finding is present?\nA) ")
    assert first == again
    assert first[0].reference != second[0].reference
    assert first[0].parts[-1].text.startswith("What is seen?\n")


def test_questions_per_case_zero_asks_about_every_present_finding():
    present = NAMES[:3]
    assert len(asked(Choice(questions_per_case=2), present=present)) == 2
    prompts = asked(Choice(questions_per_case=0), present=present)
    assert sorted(prompt.reference["finding"] for prompt in prompts) == sorted(present)


@pytest.mark.parametrize("present", [(), NAMES[:4]])
def test_a_case_without_a_present_finding_or_enough_others_asks_nothing(present):
    assert list(asked(Choice(), present=present)) == []


def test_permute_shuffles_options_and_keeps_the_right_one():
    seen = set()
    for number in range(20):
        (prompt,) = asked(Choice(permute=True), seed=0, questions=(QUESTION,), name=f"case {number}")
        reference = prompt.reference
        assert reference["options"]["ABC".index(reference["letter"])] == "lung nodule"
        assert reference["true_options"] == ["ABC".index(reference["letter"])]
        seen.add(tuple(reference["options"]))
    assert len(seen) > 3


@pytest.mark.parametrize(("option", "is_free"), TABLE["order"])
def test_permute_leaves_options_that_name_others_by_letter_or_place_in_their_order(option, is_free):
    question = dataclasses.replace(QUESTION, options=(*QUESTION.options, option))
    names = [f"case {number}" for number in range(20)]
    prompts = [asked(Choice(permute=True), 0, questions=(question,), name=name)[0] for name in names]
    assert ({tuple(prompt.reference["options"]) for prompt in prompts} != {question.options}) == is_free


@pytest.mark.parametrize(("completion", "reason"), TABLE["thinking"])
def test_strict_format_with_thinking(completion, reason):
    fault = strict_fault(completion, "ABCD", think=True)
    assert reason in fault if reason else fault is None


def test_strict_format_without_thinking():
    assert strict_fault("<answer>B</answer>", "ABCD", think=False) is None
    fault = strict_fault("<think>so</think><answer>B</answer>", "ABCD", think=False)
    assert fault == "unexpected tag <think>"
    assert tag_fault(f"<{'a' * 5000}>", think=False) == f"unexpected tag <{'a' * 39}…"


@pytest.mark.parametrize(("completion", "letter"), TABLE["lenient"])
def test_a_tolerant_reader_finds_the_letter_and_never_guesses(completion, letter):
    options = ["emphysema", "lung nodule", "cardiomegaly", "consolidation"]
    assert lenient_letter(completion, "ABCD", options) == (letter or None)


@pytest.mark.parametrize("letter", "ABCD")
@pytest.mark.parametrize(
    "form", ["**{}**", "$\\boxed{{{}}}$", "Answer: **{}**", '"{}"', "{}\n\nThe scan shows it.", "I choose {}"]
)
def test_a_letter_is_found_in_its_wrapping_whichever_it_is(form, letter):
    assert lenient_letter(form.format(letter), "ABCD", ["emphysema", "nodule", "effusion", "mass"]) == letter


def test_a_malformed_answer_keeps_its_lenient_letter_and_its_thoughts():
    (prompt,) = asked(Choice(), seed=0, questions=(QUESTION,))
    answer = Choice().parse(prompt, "<think>hm</think> B")
    assert answer.malformed == "no <answer>"
    assert (answer.choice, answer.lenient_choice, answer.think) == (None, "B", "hm")


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        (f"answer{' ' * 100_000}z", None), (f"The answer is{' ' * 100_000}B", "B"),
        (f"The answer is{' ' * 100_000}lung nodule", "B"), ("The answer is\n lung nodule", "B"),
        (f"option{' ' * 100_000}:{' ' * 100_000}(B)", "B"),
    ],
)  # fmt: skip
def test_a_long_run_of_spaces_is_read_in_linear_time(completion, letter):
    # where a pattern can share the run out between two parts, this takes minutes
    assert lenient_letter(completion, "ABC", ("emphysema", "lung nodule", "cardiomegaly")) == letter


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<answer> A </answer><answer>B</answer>", "A"),
        ("<answer>A<answer>B</answer>", "A<answer>B"),
        ("</answer><answer>A", None),
        ("A</answer>", None),
        ("<answer></answer>", ""),
        ("<answer>" * 100_000, None),  # searched for its end from each of them, this takes minutes
    ],
)
def test_inside_is_the_first_pair_that_is_closed(text, found):
    assert inside(text, "answer") == found


def test_drawn_questions_take_no_words_from_questions_about_something_else():
    for seed in range(1, 30):
        (prompt,) = asked(Choice(), seed=seed, questions=(SIDE,))
        assert prompt.reference["question"] == "Which finding is present?"
        (prompt,) = asked(Choice(), seed=seed, questions=(SIDE, QUESTION))
        assert prompt.reference["question"] == "What is seen?"


def test_a_question_about_something_else_is_judged_true_or_false_and_told_by_its_kind():
    (prompt,) = asked(Choice(permute=True), seed=0, questions=(SIDE,))
    assert prompt.reference["finding"] == "side"
    gold, _ = Choice().gold(prompt)
    right = prompt.reference["letter"]
    wrong = {"A": "B", "B": "A"}[right]
    assert f"{right} right true." in gold
    assert f"{wrong} left false." in gold


@pytest.mark.parametrize(
    ("options", "told", "known", "true"),
    [
        (("left", "right"), (), False, [1]),
        (("left", "right"), (1,), True, [1]),
        (QUESTION.options, (), True, [1, 2]),  # the findings say which hold
    ],
)
def test_the_truth_of_every_option_is_known_from_the_question_or_the_findings(options, told, known, true):
    question = dataclasses.replace(QUESTION, options=options, answer=1, true_options=told)
    (prompt,) = asked(Choice(), seed=0, questions=(question,), present=("lung nodule", "cardiomegaly"))
    assert (prompt.reference["truth_known"], prompt.reference["true_options"]) == (known, true)
