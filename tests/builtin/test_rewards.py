import math

from evidcore_plugin_reports.task import ReportTask
from evidcore_testing.checks_reward import answer_group, check_reward

from evidcore.api import Case, Finding, Report, Score, VolumeRef
from evidcore.builtin.choice import Choice
from evidcore.builtin.rewards import ChoiceAccuracy, Format, Random
from evidcore.builtin.views import Volume

CASE = Case(
    id="a", patient="p", volumes=(VolumeRef(path="a.nii"),), report=Report(text="There is emphysema."),
    findings=(Finding(name="emphysema"), Finding(name="cardiomegaly", state="absent")),
)  # fmt: skip


def rollouts(task, *texts):
    return answer_group(task, *task.prompts(CASE, Volume(), 1), texts)


CHOICE = Choice(think=False, options_per_question=2)


def test_format_pays_the_strict_format_and_says_what_broke_it():
    good, bad = Format()(rollouts(CHOICE, "<answer>A</answer>", "A"), {})
    assert good == Score(value=1.0)
    assert bad == Score(value=0.0, reason="no tags, expected <answer></answer>")


def test_choice_accuracy_compares_letter_with_letter():
    shown = rollouts(CHOICE, "<answer>A</answer>", "<answer>B</answer>")
    right = shown[0].prompt.reference["letter"]
    first, second = ChoiceAccuracy()(shown, {})
    assert (first.value, second.value) == ((1.0, 0.0) if right == "A" else (0.0, 1.0))
    assert first.reason == f"answered A, right is {right}"
    named = rollouts(CHOICE, f"<answer>{shown[0].prompt.reference['finding']}</answer>")
    assert ChoiceAccuracy()(named, {})[0].value == 0.0


def test_choice_accuracy_reads_strictly_unless_told_and_no_reports():
    (letter,) = {item.prompt.reference["letter"] for item in rollouts(CHOICE, "")}
    loose = rollouts(CHOICE, f"answer: {letter}")
    assert ChoiceAccuracy()(loose, {})[0] == Score(value=0.0, reason="no tags, expected <answer></answer>")
    assert ChoiceAccuracy(reading="lenient")(loose, {})[0].value == 1.0
    assert ChoiceAccuracy()(rollouts(ReportTask(), "Clear."), {}) == [None]


def test_random_is_one_coin_for_all_and_knows_only_prompt_text_and_seed():
    shown = rollouts(CHOICE, *(f"text {number}" for number in range(2000)))
    tosses = [score.value for score in Random(probability=0.3)(shown, {})]
    assert set(tosses) == {0.0, 1.0}
    assert abs(sum(tosses) - 600) < 5 * math.sqrt(2000 * 0.3 * 0.7)
    assert [score.value for score in Random(probability=0.3)(shown[::-1], {})] == tosses[::-1]
    assert [score.value for score in Random(probability=0.3, seed=1)(shown, {})] != tosses
    for certain in (0.0, 1.0):
        assert {score.value for score in Random(probability=certain)(shown[:50], {})} == {certain}


def test_they_keep_the_contract_of_a_reward():
    (prompt,) = CHOICE.prompts(CASE, Volume(), 1)
    right = prompt.reference["letter"]
    wrong = "B" if right == "A" else "A"
    good = rollouts(CHOICE, f"<answer>{right}</answer>", f" <answer>{right}</answer>")
    check_reward(Format(), good, rollouts(CHOICE, "A", "B"))
    check_reward(ChoiceAccuracy(), good, rollouts(CHOICE, f"<answer>{wrong}</answer>", "none"))
    check_reward(Random(), good, None)
