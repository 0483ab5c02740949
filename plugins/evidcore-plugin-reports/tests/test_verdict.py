import pytest
from evidcore_plugin_reports.emphasis import Emphasis
from evidcore_plugin_reports.verdict import Letter, Statement, Verdict
from evidcore_testing import check_reweighter
from evidcore_testing.checks_task import check_task
from evidcore_testing.data import volume_case

from evidcore.api import Case, Finding, Span, VisualPart
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.errors import RecipeError

STATES = {
    "lung nodule": "present",
    "emphysema": "absent",
    "cyst": "absent",
    "mass": "absent",
    "goitre": "unknown",
}


def case(folder, **states):
    findings = tuple(Finding(name=name, state=state) for name, state in (states or STATES).items())
    return Case(id="c1", patient="p1", volumes=volume_case(folder).volumes, findings=findings)


def test_the_tasks_keep_their_contract(tmp_path):
    garbage = ["perhaps", "<answer>present</answer>"]
    for answer in ("{state}", "{finding} {state}"):
        check_task(Verdict(answer=answer), Volume(), [case(tmp_path)], garbage=garbage)
    check_task(Statement(), Volume(), [case(tmp_path)], garbage=garbage)
    check_task(Letter(), Volume(), [case(tmp_path)], garbage=garbage, has_volumes=False)
    check_task(Letter(think=False), Volume(), [case(tmp_path)], garbage=garbage, has_volumes=False)


def test_each_known_finding_is_asked_of_once_and_answered_in_words(tmp_path):
    prompts = Verdict(question="Is there a {finding}?").prompts(case(tmp_path), Volume(), 1)
    said = {prompt.parts[-1].text: Verdict().gold(prompt)[0].split()[-1] for prompt in prompts}
    assert {Verdict().gold(prompt)[0].rsplit(" ", 1)[0] for prompt in prompts} == set(STATES) - {"goitre"}
    assert said == {
        "Is there a lung nodule?": "present", "Is there a emphysema?": "absent",
        "Is there a cyst?": "absent", "Is there a mass?": "absent",
    }  # fmt: skip
    orders = {
        tuple(item.id for item in Verdict().prompts(case(tmp_path), Volume(), seed)) for seed in range(5)
    }
    assert len(orders) > 1
    assert list(Verdict().prompts(case(tmp_path, goitre="unknown"), Volume(), 1)) == []
    with pytest.raises(ValueError, match=r"question must have \{finding\} in it, got 'What\?'"):
        Verdict(question="What?")
    with pytest.raises(ValueError, match=r"answer must have \{finding\} in it, got '\{state\}'"):
        Statement(question="Is there a {finding}?", answer="{state}")
    with pytest.raises(ValueError, match=r"answer must end in \{state\}, got '\{state\}!'"):
        Verdict(answer="{state}!")


def test_a_statement_names_the_finding_that_nobody_asked_for_without_weight(tmp_path):
    task = Statement()
    prompts = task.prompts(case(tmp_path), Volume(), 1)
    assert {prompt.parts[-1].text for prompt in prompts} == {"State a finding."}
    said = {task.gold(prompt)[0] for prompt in prompts}
    assert said == {" lung nodule present", " emphysema absent", " cyst absent", " mass absent"}
    (prompt,) = [item for item in prompts if item.reference["finding"] == "lung nodule"]
    text, spans = task.gold(prompt)
    weigh = Emphasis(words={"(present|absent)$": 1}, other=0.1)
    assert weigh(text, spans, [(0, 5), (5, 12), (12, 20), (20, 20)]) == [
        0,
        0,
        1,
        0.1,
    ]  # " present" is a token
    assert task.evaluation == ""
    assert Verdict.evaluation == "choice"


@pytest.mark.parametrize(
    ("completion", "choice"), [("present", "A"), (" Absent.\n", "B"), ("not present", None), ("", None)]
)
def test_an_answer_is_one_of_two_words(tmp_path, completion, choice):
    task = Verdict(answer="{state}")
    answer = task.parse(task.prompts(case(tmp_path), Volume(), 1)[0], completion)
    assert (answer.choice, answer.malformed is None) == (choice, choice is not None)


def test_a_letter_is_asked_for_without_a_volume_and_its_verdicts_weigh_nothing(tmp_path):
    (prompt,) = Letter().prompts(case(tmp_path), Volume(), 1)
    (shown,) = Choice().prompts(case(tmp_path), Volume(), 1)
    assert prompt.reference == shown.reference
    assert prompt.parts == tuple(part for part in shown.parts if not isinstance(part, VisualPart))
    text, spans = Letter().gold(prompt)
    assert text == Choice().gold(shown)[0]
    offsets = [(place, place + 1) for place in range(len(text))]
    weights = Emphasis(words={"present": 3, "(?<=<answer>)[A-H]": 4}, other=0.5)(text, spans, offsets)
    end = text.index("</think>")
    assert set(weights[:end]) == {0.0}
    assert weights[text.index("<answer>") + len("<answer>")] == 4
    assert set(weights[end : text.index("<answer>")]) == {0.5}


def test_the_last_pattern_that_matches_weighs_a_token():
    check_reweighter(Emphasis(words={"a": 2}))
    weigh = Emphasis(words={"lung nodule": 2, "nodule present": 5})
    assert weigh("lung nodule present", (), [(0, 4), (4, 11), (11, 19), (19, 19)]) == [2, 5, 5, 1]
    assert weigh("lung", (Span(start=0, end=2, label="given"),), [(0, 4)]) == [0]


def test_words_that_take_too_long_to_find_are_refused():
    with pytest.raises(RecipeError, match=r"emphasis: finding words takes over 1 s on one answer\. Write no"):
        Emphasis(words={"((([a-z ]+)+)+)+[0-9]{7}$": 1})("lung nodule present " * 20, (), [(0, 4)])
