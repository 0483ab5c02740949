import dataclasses
import json

import pytest
from evidcore_plugin_lab.ablation.contrasts import Arms
from evidcore_plugin_lab.ablation.items import row_items
from evidcore_plugin_reports.evaluation import ReportEvaluation, reference_of
from evidcore_plugin_reports.labelers import NegationRules, Phrases
from evidcore_plugin_reports.task import ReportTask
from evidcore_testing import check_evaluation, volume_case
from evidcore_testing.checks_evaluation import Says
from sklearn.metrics import f1_score

from evidcore.builtin.views import Volume
from evidcore.case import Answer, Case, Finding, Report, Span, TextPart, VolumeRef
from evidcore.contracts import Answers, EvalOptions, Labeler, LabelError
from evidcore.evaluate.pooling import from_json, pooled
from evidcore.registry import factory

NAMES = ("emphysema", "lung nodule", "cardiomegaly")


def case(name, present, uncertain=(), patient=None):
    states = {item: "present" if item in present else "absent" for item in NAMES}
    states |= dict.fromkeys(uncertain, "uncertain")
    return Case(
        id=name,
        patient=patient or name,
        volumes=(VolumeRef(path=f"{name}.nii"),),
        report=Report(text="Given."),
        findings=tuple(Finding(name=item, state=state) for item, state in states.items()),
    )


def evaluated(cases, reports, *, condition="own", labeler=None, metric=()):
    prompts = [prompt for item in cases for prompt in ReportTask().prompts(item, Volume(), 0)]
    evaluation = ReportEvaluation(labeler=labeler or NegationRules(), metric=metric)
    policy = Says(lambda prompt: reports[prompt.case.id])
    written = evaluation.answer(policy, prompts, ReportTask(), EvalOptions(max_new_tokens=50))
    [result] = evaluation.score([Answers(prompts, written, condition)], ReportTask(), "report")
    return result


def row_of(result, metric):
    (results,) = [row for row in result.rows() if row.metric == metric]
    return results


CASES = [
    case("a", NAMES[:1]), case("b", NAMES[:2]), case("c", ()), case("d", NAMES[1:2]), case("e", NAMES[:1]),
]  # fmt: skip
REPORTS = {
    "a": "Emphysema. No cardiomegaly.", "b": "There is emphysema.", "c": "There is cardiomegaly.",
    "d": "There is a lung nodule. There is emphysema.", "e": "Clear.",
}  # fmt: skip


def test_f1_agrees_with_scikit_learn():
    result = evaluated(CASES, REPORTS)
    truth = [[name in item.present() for name in NAMES] for item in CASES]
    said = [[1, 0, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]]
    rows = {row.metric: row for row in result.rows()}
    assert rows["findings_f1_micro"].value == pytest.approx(f1_score(truth, said, average="micro"))
    by_name = f1_score(truth, said, average=None, zero_division=0)
    assert rows["findings_f1/emphysema"].value == pytest.approx(by_name[0])
    assert rows["findings_f1/lung nodule"].value == pytest.approx(by_name[1])
    assert "findings_f1/cardiomegaly" not in rows  # no case has it
    assert rows["findings_f1_macro"].value == pytest.approx((by_name[0] + by_name[1]) / 2)
    assert rows["findings_f1_macro"].note.startswith("mean over 2 findings; too few patients")


def test_what_a_case_doubts_or_does_not_know_is_left_out():
    doubted = case("a", NAMES[:1], uncertain=NAMES[1:2])
    result = evaluated([doubted], {"a": "Emphysema. Lung nodule. Consolidation."})
    assert row_of(result, "findings_f1_micro").value == 1.0


def test_answers_tell_what_was_asked_what_was_said_and_what_was_so():
    (answer,) = evaluated(CASES[:1], REPORTS, labeler=Phrases(), condition="blank").answers
    line = json.loads(json.dumps(answer.line()))
    assert (line["affirmed"], line["present"]) == (["emphysema"], ["emphysema"])
    assert line["absent"] == ["lung nodule", "cardiomegaly"]
    assert (line["condition"], line["images"]) == ("blank", ["a.nii#intensity=hu"])
    [prompt] = ReportTask().prompts(CASES[0], Volume(), 0)
    words = "".join(part.text for part in prompt.parts if isinstance(part, TextPart))
    assert line["prompt"].replace("<image>", "") == words
    assert (line["prompt"].count("<image>"), line["prompt_id"]) == (1, prompt.id)


def test_an_empty_report_is_malformed_and_affirms_nothing():
    result = evaluated(CASES[:2], {"a": "", "b": "There is emphysema."})
    rows = {row.metric: row.value for row in result.rows()}
    assert rows["format_rate"] == 0.5
    assert rows["findings_f1_micro"] == pytest.approx(2 / 4)  # 1 hit, 2 missed


def test_macro_f1_in_a_resample_is_that_of_scikit_learn():
    result = evaluated(CASES, REPORTS)
    picked = [0, 0, 1, 3, 4]  # as a resample draws them
    figures = [result.lines()[place]["figures"]["findings_f1_macro"] for place in picked]
    truth = [[name in CASES[place].present() for name in NAMES[:2]] for place in picked]
    said = [[(1, 0), (1, 0), (0, 0), (1, 1), (0, 0)][place] for place in picked]
    expected = f1_score(truth, said, average="macro", zero_division=0)
    assert pooled([from_json(figure) for figure in figures]) == pytest.approx(expected)


def test_cases_without_findings_are_left_out_of_f1_and_counted():
    bare = Case(id="z", patient="p", volumes=(VolumeRef(path="z.nii"),), report=Report(text="Given."))
    result = evaluated([bare, CASES[0]], {"z": "Clear.", "a": "Emphysema."})
    results = row_of(result, "findings_f1_micro")
    assert (results.value, results.questions) == (1.0, 1)
    assert results.note.startswith("1 of 2 not measured: no finding of the case is known")
    assert result.lines()[0]["unscored"] == {"findings_f1_micro": "no finding of the case is known"}
    alone = row_of(evaluated([bare], {"z": "Clear."}), "findings_f1_micro")
    assert alone.value is None
    assert alone.note == "1 of 1 not measured: no finding of the case is known"
    with pytest.raises(ValueError, match="no prompt"):
        evaluated([], {})


class Shy(Labeler):
    def __call__(self, text):
        if text == "secret":
            raise LabelError("a text of 6 characters")
        return Phrases()(text)


def test_a_report_that_the_labeler_cannot_read_is_missing_not_wrong():
    reports = {"a": "secret", "b": "There is emphysema. There is a lung nodule."}
    results = row_of(evaluated(CASES[:2], reports, labeler=Shy()), "findings_f1_micro")
    assert results.value == 1.0
    assert "1 of 2 not measured: a text of 6 characters" in results.note


def test_macro_f1_lists_the_same_findings_whatever_could_be_read():
    cases = [case("a", NAMES[:1]), case("b", NAMES[1:2])]  # one alone has a nodule
    reports = {"a": "There is emphysema.", "b": "There is a lung nodule."}
    every = evaluated(cases, reports).lines()
    some = evaluated(cases, {**reports, "b": "secret"}, labeler=Shy()).lines()
    figures = [line["figures"].get("findings_f1_macro") for line in [*every, *some]]
    assert len({len(figure["mean_ratio"]) for figure in figures if figure}) == 1
    row = {"name": every[0]["task"], "metric": "findings_f1_macro"}
    items = {"every": {0: row_items(every, row)}, "some": {0: row_items(some, row)}}
    arms = Arms(items, patients_shared=True)
    assert isinstance(arms.contrast({"some": 1.0, "every": -1.0}).value, float)


def test_metrics_hold_reports_against_the_gold_answer():
    metric = factory.build("metric", {"use": "rouge-l"}, given={}, where="test")
    result = evaluated(CASES[:2], {"a": "Given.", "b": "Given twice."}, metric=(metric,))
    assert row_of(result, "rouge_l").value == pytest.approx((1 + 2 / 3) / 2)
    assert [line["figures"]["rouge_l"] for line in result.lines()] == pytest.approx([1.0, 2 / 3])
    assert [row.metric for row in result.rows()][:4] == [
        "format_rate", "findings_f1_micro", "findings_f1_macro", "rouge_l",
    ]  # fmt: skip


def test_the_reference_is_the_report_within_the_gold_answer():
    class Tagged(ReportTask):
        def gold(self, prompt):
            return f"<report>{prompt.case.report.text}</report>", tuple(
                dataclasses.replace(span, start=span.start + 8, end=span.end + 8)
                for span in prompt.case.report.spans
            )

        def parse(self, prompt, completion):
            return Answer(text=completion, report=completion[len("<report>") : -len("</report>")])

    spans = (Span(start=0, end=6, label="normal"), Span(start=7, end=17, label="abnormal"))
    item = dataclasses.replace(CASES[0], report=Report(text="Clear. Emphysema.", spans=spans))
    (prompt,) = ReportTask().prompts(item, Volume(), 0)
    assert reference_of(prompt, Tagged()) == item.report
    assert reference_of(prompt, ReportTask()) == item.report


def test_a_labeler_without_the_data_sets_words_is_refused_by_name():
    prompts = ReportTask().prompts(case("a", NAMES[:1]), Volume(), 0)
    table = {"use": "report", "labeler": {"use": "negation-rules", "findings": ["gallstone", "emphysema"]}}
    given = {"vocabulary": lambda: ("gallstone",)}

    def refusal(table):
        task = factory.build("task", {"use": "report"}, given={}, where="test")
        return factory.build("evaluation", table, given=given, where="test").refusal(task, prompts)

    assert refusal(table) == (
        "labeler 'negation-rules' does not look for 'lung nodule', 'cardiomegaly' (2 of the 3 findings of "
        "case 'a'). Leave its findings out, to take those of the data sets, or name all of them"
    )
    assert refusal({"use": "report"}).startswith("labeler 'negation-rules' does not look for 'emphysema', ")
    given["vocabulary"] = lambda: NAMES
    assert refusal({"use": "report"}) == ""


def test_it_keeps_the_contract_of_an_evaluation(tmp_path):
    cases = [volume_case(tmp_path, seed) for seed in range(4)]
    prompts = [prompt for item in cases for prompt in ReportTask().prompts(item, Volume(), 0)]
    evaluation = factory.build("evaluation", {"use": "report"}, given={}, where="test")
    task = factory.build("task", {"use": "report"}, given={}, where="test")
    check_evaluation(evaluation, task, prompts)
