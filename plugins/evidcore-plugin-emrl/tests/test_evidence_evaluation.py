"""Evaluation `report-evidence`: each figure against hand arithmetic, and what has no denominator."""

import dataclasses
import json

import pytest
from disc_cases import CYST, Unreading, disc_case
from evidcore_plugin_emrl.blind_reports import best_answers, usual_slices
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_testing import check_evaluation
from evidcore_testing.checks_evaluation import Says

from evidcore.api import Answers, EvalOptions, Finding, Report
from evidcore.builtin.views import Slices
from evidcore.registry import factory

STONE = {3: (slice(20, 26), slice(20, 26))}
HEALTHY = "No cyst is seen. No stone is seen."
BOTH = "There is a cyst. There is a stone."


@pytest.fixture
def cases(tmp_path):
    where = {"cyst": CYST, "stone": STONE}
    present = [["cyst", "stone"], ["cyst"], ["stone"], []]
    made = [disc_case(tmp_path, number, names, where=where) for number, names in enumerate(present)]
    told = Finding(name="cyst", side="left", malignant=False, location="kidney")
    made[1] = dataclasses.replace(made[1], findings=(told, *made[1].findings[1:]))
    return made


@pytest.fixture
def world(tmp_path):
    """Return a function that measures completions, and its evaluation, task and prompts."""

    def ask(cases, texts, labeler=None, **options):
        task = ReportEvidence(tmp_path / "cache", **options)
        given = {"cache_folder": tmp_path / "cache", "vocabulary": lambda: ("cyst", "stone")}
        evaluation, built = (
            factory.build(kind, {"use": "report-evidence"}, given=given, where="test")
            for kind in ("evaluation", "task")
        )
        evaluation.labeler = labeler or evaluation.labeler
        prompts = [prompt for case in cases for prompt in task.prompts(case, Slices(slices=6), 0)]
        assert evaluation.refusal(built, prompts) == ""
        asking = EvalOptions(max_new_tokens=9, prompts_per_batch=2)
        following = iter(texts)
        said = evaluation.answer(Says(lambda _: next(following)), prompts, task, asking)
        [result] = evaluation.score([Answers(prompts, said)], task, "it")
        return result, evaluation, built, prompts

    return ask


def answer(report, evidence):
    return f"<report>{report}</report><evidence>{json.dumps(evidence)}</evidence>"


def rows_of(result):
    return {row.metric: row for row in result.rows()}


def test_every_figure_is_that_of_hand_arithmetic(cases, world):
    texts = [
        answer(BOTH, {"slice": 3}),  # both right, the slice shows the stone; the gold slice is 2, with 36
        answer(BOTH, {"slice": 1}),  # the stone is made up; the slice shows the cyst
        answer("There is a cyst. No stone is seen.", {"slice": 3}),  # contradicts; the slice shows the stone
        answer("There is a cyst.", {"slice": 0}),  # of a healthy scan
    ]
    result, *_ = world(cases, texts)
    rows = {name: row.value for name, row in rows_of(result).items()}
    assert result.values("grounded_accuracy") == (1 / 2, 1 / 2, 0.0, 0.0)
    assert rows["grounded_accuracy"] == pytest.approx(1 / 4)
    assert rows["hallucination_rate"] == pytest.approx(3 / 6)  # stone, cyst and cyst of six assertions
    assert rows["omission_rate"] == pytest.approx(1 / 4)
    assert rows["evidence_hit_rate"] == pytest.approx(2 / 3)  # a seen stone that is not affirmed is none
    assert rows["false_citation_rate"] == 1.0
    assert rows["slice_off"] == pytest.approx((1 + 1 + 0) / 3)
    assert rows["slice_off_mm"] == pytest.approx(5 * 2 / 3)
    assert rows["findings_f1"] == pytest.approx(2 * 3 / (6 + 4))
    assert rows["gold_grounded_accuracy"] == pytest.approx((1 / 2 + 1 + 1 + 1) / 4)
    assert rows["hallucination_rate/cyst"] == pytest.approx(2 / 4)
    assert rows["hallucination_rate/stone"] == pytest.approx(1 / 2)
    assert rows["omission_rate/stone"] == pytest.approx(1 / 2)
    assert rows["evidence_hit_rate/cyst"] == pytest.approx(1 / 2)
    assert rows["grounded_accuracy/stone"] == pytest.approx(1 / 3)
    assert rows["format_rate"] == 1.0


def test_what_asserts_nothing_has_no_rate_of_hallucination_and_omits_all(cases, world):
    result, *_ = world(cases, ["", answer(HEALTHY, None), answer(HEALTHY, None), answer(HEALTHY, None)])
    rows = rows_of(result)
    assert rows["hallucination_rate"].value is None
    assert rows["hallucination_rate"].note == "4 of 4 reports affirm nothing and add nothing"
    assert rows["omission_rate"].value == 1.0
    assert rows["evidence_hit_rate"].value == 0.0  # no slice is a miss
    assert rows["false_citation_rate"].value == 0.0
    assert result.values("grounded_accuracy") == (0.0, 0.0, 0.0, 1.0)  # the healthy scan, in its form
    assert result.values("hallucination_rate") == (0.0,) * 4
    assert "slice_off" not in rows or rows["slice_off"].value is None
    texts = [answer(BOTH, {"slice": 2}), answer(HEALTHY, None), "", ""]
    rows = rows_of(world(cases, texts)[0])
    assert rows["hallucination_rate"].value == 0.0  # of the two of the first
    assert rows["hallucination_rate"].note.startswith("3 of 4 reports affirm nothing")
    assert "2 times no slice is cited" in rows["slice_off"].note


def test_an_answer_out_of_its_form_has_nothing_of_the_headline(cases, world):
    result, *_ = world(cases[2:], [answer(BOTH, {"slice": 3}) + " see", f"<report>{HEALTHY}</report>"])
    assert result.values("grounded_accuracy") == (0.0, 0.0)
    assert rows_of(result)["hallucination_rate"].value == pytest.approx(1 / 2)  # its words are read


@pytest.mark.parametrize(
    ("gold", "side", "nature", "place"),
    [
        ("There is a cyst in the left kidney, benign.", 1 / 3, 2 / 3, 1 / 3),
        ("There is a cyst on the left.", 1 / 3, None, None),
        ("There is a cyst on the right, benign.", None, 2 / 3, None),  # the side contradicts the case
        ("There is a cyst.", None, None, None),
    ],
)
def test_details_are_asked_for_that_the_gold_report_tells_as_the_case_does_and_silence_is_an_error(
    cases, world, gold, side, nature, place
):
    texts = [
        answer(f"There is a cyst{more}.", {"slice": 2})
        for more in (" in the left kidney, benign", " on the right, benign", "")
    ]
    case = dataclasses.replace(cases[1], report=Report(text=gold))
    rows = {name: row.value for name, row in rows_of(world([case] * 3, texts)[0]).items()}
    expected = {"side_accuracy": side, "malignancy_accuracy": nature, "location_accuracy/cyst": place}
    assert {name: rows[name] for name in expected} == pytest.approx(expected)


def test_each_finding_is_held_against_its_own_slice(cases, world):
    texts = [answer(BOTH, {"cyst": 1, "stone": 2}), answer(BOTH, {"stone": 3})]
    result, *_ = world(cases[:2], texts, cite="finding")
    rows = {name: row.value for name, row in rows_of(result).items()}
    assert result.values("grounded_accuracy") == (1 / 2, 0.0)
    assert rows["evidence_hit_rate"] == pytest.approx(1 / 3)  # of three findings
    assert rows["slice_off"] == pytest.approx(1.0)  # 1 and 1 in the first, none in the second
    assert rows["gold_grounded_accuracy"] == 1.0


def test_a_report_that_cannot_be_read_is_not_measured(cases, world):
    result, *_ = world(cases, [answer(BOTH, {"slice": 2})] * 4, labeler=Unreading())
    assert result.values("grounded_accuracy") == (0.0,) * 4
    assert {line["unread"] for line in result.lines()} == {"timed out"}
    assert "4 of 4 not measured: timed out" in {row.note for row in result.rows()}


def test_the_best_blind_rule_learns_what_training_reports_say_and_where(cases, world, tmp_path):
    _, evaluation, task, prompts = world(cases, [answer(HEALTHY, None)] * 4)
    training = [prompts[1]] * 8 + [prompts[3]] * 3 + [prompts[0]] * 2
    training = [
        dataclasses.replace(item, case=dataclasses.replace(item.case, patient=f"p{number}"))
        for number, item in enumerate(training)
    ]
    blind = evaluation.references(prompts, lambda: training, task, "it")
    assert blind.rule == "the same findings each time, with their usual slice"
    assert blind.values == (1 / 2, 1.0, 0.0, 0.0)  # a cyst on slice 2, whatever is there
    assert blind.figures == {
        "blind_grounded_accuracy": pytest.approx(3 / 8),
        "usual_slice_evidence_hit_rate": 1.0,  # all lesions lie where the training scans have theirs
    }
    names = ("grounded_accuracy", "hallucination_rate", "omission_rate", "evidence_hit_rate")
    rows = {*(f"blind_{name}" for name in names), "usual_slice_evidence_hit_rate"}
    assert {row.metric for row in blind.rows} == rows
    _, said = best_answers(prompts, [training[8]] * 5, tmp_path / "cache")
    assert said[0] == (frozenset(), None)  # healthy is most frequent
    with pytest.raises(ValueError, match="there are none"):
        best_answers(prompts, [], tmp_path / "cache")


def test_usual_slices_go_where_training_scans_show_the_findings_most_often(tmp_path):
    def at(number, cyst, stone=None):
        where = {"cyst": {z: CYST[1] for z in cyst}, "stone": {z: STONE[3] for z in stone or ()}}
        return disc_case(tmp_path, number, ["cyst"] if stone is None else ["cyst", "stone"], where=where)

    def usual(*asked, **options):
        task = ReportEvidence(tmp_path / "cache", **options)
        training = [at(0, [1]), at(1, [4]), at(2, [3, 4]), at(3, [2], [0]), at(4, [5], [0])]
        prompts = [
            [prompt for case in some for prompt in task.prompts(case, Slices(slices=6), 0)]
            for some in (asked, training)
        ]
        return usual_slices(*prompts, tmp_path / "cache")

    cyst, both, healthy = at(5, [1]), at(6, [1], [2]), disc_case(tmp_path, 7, [], where={})
    said = usual(cyst, both, healthy)
    assert [item and item.slice for item in said] == [4, 0, None]  # 2 of 5 cysts on slice 4, both stones on 0
    assert usual(both, cite="finding")[0].slices == {"cyst": 4, "stone": 0}
    seldom = disc_case(tmp_path, 8, ["gas"], where={"gas": {1: CYST[1]}}, kinds={"gas": 0.0})
    assert usual(seldom) == [None]  # no training scan has any


def test_words_that_tell_are_known_to_the_blind_rule(cases, world, tmp_path):
    _, _, _, prompts = world(cases, [answer(HEALTHY, None)] * 4)

    def told(prompt, number):
        last = dataclasses.replace(prompt.parts[-1], text=f"{prompt.case.present()} {number}")
        case = dataclasses.replace(prompt.case, patient=f"p{number}")
        return dataclasses.replace(prompt, parts=(*prompt.parts[:-1], last), case=case)

    training = [told(prompt, number) for number, prompt in enumerate(prompts * 5)]
    rule, said = best_answers([told(prompt, 99) for prompt in prompts], training, tmp_path / "cache")
    assert "words" in rule
    assert [{*affirms} for affirms, _ in said] == [{"cyst", "stone"}, {"cyst"}, {"stone"}, set()]


def test_it_keeps_the_contract_and_refuses_by_name_what_it_cannot_measure(cases, world):
    _, evaluation, task, prompts = world(cases, [answer(HEALTHY, None)] * 4)
    check_evaluation(evaluation, task, prompts)
    bare = dataclasses.replace(prompts[0], reference={})
    assert "names no slices that show its findings" in evaluation.refusal(task, [bare])
    without = dataclasses.replace(prompts[0], case=dataclasses.replace(cases[0], masks={}))
    refusal = evaluation.refusal(task, [without])
    assert "finding 'cyst' of prompt 'case-0:report-evidence' has no mask" in refusal
