"""Data set `hearsay`: what is told and not shown, and where it must not leak."""

import pytest
from evidcore_plugin_emrl.evidence_figures import seen
from evidcore_plugin_emrl.hearsay import Hearsay
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_plugin_reports.agreement import affirmed
from evidcore_plugin_reports.labelers import NegationRules
from evidcore_testing.checks_dataset import check_dataset

from evidcore.builtin.views import Slices

COUNTS = {"train_cases": 30, "validation_cases": 2, "test_cases": 4}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    options = {"prior_strength": 0.9, "prevalence": 0.12, "queries_per_case": 0, **COUNTS}
    return PhantomAbdomen(tmp_path_factory.mktemp("hearsay"), size_zyx=(20, 48, 64), **options)


@pytest.fixture(scope="module")
def pairs(source):
    told = Hearsay(source=source, share=1.0)
    both = list(zip(source.cases("train"), told.cases("train"), strict=True))
    assert all(item == other for item, other in both if "hearsay" not in other.notes)
    pairs = [pair for pair in both if "hearsay" in pair[1].notes]
    assert len(pairs) > 20
    return pairs


def test_it_keeps_the_contract_of_a_data_set(source):
    check_dataset(Hearsay(source=source, share=1.0), other=Hearsay(source=source, share=0.5))


def test_report_findings_and_impression_tell_it_and_nothing_denies_it(pairs, source):
    reads = NegationRules(findings=source.findings)
    for plain, told in pairs:
        heard = told.notes["hearsay"]
        assert plain.state_of(heard) == "absent"
        assert told.state_of(heard) == "present"
        assert heard not in told.masks
        assert set(told.present()) == {*plain.present(), heard}
        for text in (told.report.text, told.notes["impression"]):
            (read,) = reads.read([text])
            assert set(affirmed(read)) == set(told.present())
        assert told.volumes == plain.volumes


def test_what_is_told_of_others_still_points_at_their_words(pairs):
    for _, told in pairs:
        for finding in told.findings:
            said = told.report.text[finding.span.start : finding.span.end]
            assert finding.name in said.lower()
        for span in told.report.spans:
            assert told.report.text[span.start : span.end] == told.report.text[span.start : span.end].strip()


def test_it_is_what_the_indication_makes_likely_and_no_twin_lacks_it(pairs, source):
    usual = {"pancreatic tumour", "gallstone"}
    heard = [told.notes["hearsay"] for _, told in pairs if told.notes["indication"].startswith("jaundice")]
    assert sum(name in usual for name in heard) > len(heard) / 2
    _, told = pairs[0]
    assert Hearsay(source=source, share=1.0).without(told, told.notes["hearsay"]) is None


def test_a_share_is_told_and_nothing_without_an_indication(source, tmp_path):
    told = sum("hearsay" in case.notes for case in Hearsay(source=source, share=0.5).cases("train"))
    assert 8 <= told <= 22
    assert not any("hearsay" in case.notes for case in Hearsay(source=source, share=0.0).cases("train"))
    bare = PhantomAbdomen(tmp_path, size_zyx=(20, 48, 64), **COUNTS)
    assert list(Hearsay(source=bare, share=1.0).cases("test")) == list(bare.cases("test"))


def test_such_a_case_is_asked_about_where_the_task_says_so_and_its_slice_is_of_the_rest(pairs, tmp_path):
    _, told = next(pair for pair in pairs if pair[0].present())
    view = Slices(slices=20)
    assert ReportEvidence(tmp_path).prompts(told, view, 0) == ()
    (prompt,) = ReportEvidence(tmp_path, unshown="report").prompts(told, view, 0)
    assert told.notes["hearsay"] not in prompt.reference["present"]
    assert told.notes["hearsay"] in ReportEvidence(tmp_path, unshown="report").gold(prompt)[0].lower()
    known = seen(prompt, tmp_path)
    assert set(known.areas) == set(known.gold) == set(prompt.reference["present"])
    alone = next(told for plain, told in pairs if not plain.present())
    assert ReportEvidence(tmp_path, unshown="report").prompts(alone, view, 0) == ()
