import pytest
from evidcore_plugin_reports.task import ReportTask
from evidcore_testing.checks_task import check_task
from evidcore_testing.data import volume_case

from evidcore.api import Case, TextPart
from evidcore.builtin.views import Volume


def test_it_keeps_the_contract_of_a_task(tmp_path):
    cases = [volume_case(tmp_path, seed) for seed in (0, 1)]
    check_task(ReportTask(), Volume(), cases, garbage=["...", "No nodule. <answer>B</answer>"])


def test_gold_is_the_report_with_its_labelled_sentences(tmp_path):
    case = volume_case(tmp_path)
    (prompt,) = ReportTask(instruction="Describe.").prompts(case, Volume(), 0)
    assert prompt.parts[-1] == TextPart(text="Describe.")
    text, spans = ReportTask().gold(prompt)
    assert (text, spans) == (case.report.text, case.report.spans)
    answer = ReportTask().parse(prompt, f"  {text}\n")
    assert (answer.malformed, answer.report) == (None, text)


def test_a_case_without_a_report_asks_nothing_and_has_no_gold(tmp_path):
    bare = Case(id="c9", patient="p", volumes=())
    assert list(ReportTask().prompts(bare, Volume(), 0)) == []
    (prompt,) = ReportTask().prompts(volume_case(tmp_path), Volume(), 0)
    with pytest.raises(ValueError, match="case 'c9' has no report"):
        ReportTask().gold(prompt.__class__(id="x", case=bare, task="report", parts=()))


def test_a_scan_of_which_nothing_is_known_is_asked_about_all_the_same(tmp_path):
    known = volume_case(tmp_path)
    bare = Case(id="scan", patient=None, volumes=known.volumes)
    (asked,) = ReportTask().ask(bare, Volume())
    (prompt,) = ReportTask().prompts(known, Volume(), 0)
    assert asked.parts == prompt.parts


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("", "no words: ''"),
        ("12 - .", "no words: '12 - .'"),
        ("Clear. <think>", "prose holds no tags, got <think>"),
    ],
)
def test_what_is_no_report_is_malformed(tmp_path, completion, reason):
    (prompt,) = ReportTask().prompts(volume_case(tmp_path), Volume(), 0)
    assert ReportTask().parse(prompt, completion).malformed == reason
