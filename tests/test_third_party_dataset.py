"""A data set that others wrote: the cases of another, some told to have what no slice shows."""

from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.definition import load_ablation
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_plugin_reports.agreement import affirmed
from evidcore_plugin_reports.labelers import NegationRules
from evidcore_testing import check_dataset

from evidcore.registry import find

ABLATION = Path(__file__).parents[1] / "examples" / "dataset-hearsay" / "emrl_hearsay.toml"


@pytest.fixture
def hearsay(example_site, monkeypatch):
    monkeypatch.syspath_prepend(example_site)
    return find("dataset", "hearsay").load()


@pytest.fixture
def source(tmp_path):
    counts = {"train_cases": 30, "validation_cases": 2, "test_cases": 4, "queries_per_case": 0}
    return PhantomAbdomen(tmp_path, size_zyx=(20, 48, 64), prior_strength=0.9, prevalence=0.12, **counts)


def test_it_keeps_the_contract_of_a_data_set(hearsay, source):
    check_dataset(hearsay(source=source, share=1.0), other=hearsay(source=source, share=0.5))


def test_reports_tell_what_no_file_shows_and_nothing_denies_it(hearsay, source):
    data, reads, told = hearsay(source=source, share=1.0), NegationRules(findings=source.findings), 0
    for plain, case in zip(source.cases("train"), data.cases("train"), strict=True):
        assert (case.volumes, case.masks) == (plain.volumes, plain.masks)
        heard = case.notes.get("hearsay")
        told += heard is not None
        assert set(case.present()) == {*plain.present(), *([heard] if heard else [])}
        for text in (case.report.text, case.notes["impression"]):
            (read,) = reads.read([text])
            assert set(affirmed(read)) == set(case.present())
            assert heard not in [item.name for item in read if item.state != "present"]
        sentences = [case.report.text[span.start : span.end] for span in case.report.spans]
        assert " ".join(sentences) == case.report.text
        assert heard is None or data.without(case, heard) is None
    assert told > 20
    assert list(hearsay(source=source, share=0.0).cases("train")) == list(source.cases("train"))


@pytest.mark.slow
def test_the_ablation_beside_it_can_be_run(hearsay):
    assert [arm.name for arm in load_ablation(ABLATION).arms] == ["text", "finding", "finding-free"]
