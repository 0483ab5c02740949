"""The phantoms on disk: what a case holds, and that a split is there whole or not at all."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time

import nibabel
import numpy as np
import pytest
from evidcore_plugin_phantoms import drawing, store
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_phantoms.render import Population, draw

from evidcore.builtin.labelers import NegationRules
from evidcore.errors import DataError
from evidcore.testing.checks_dataset import check_dataset
from evidcore.text.findings import CT_RATE_FINDINGS
from evidcore.volume import read, read_mask

SMALL = {"train_cases": 6, "validation_cases": 5, "test_cases": 24, "questions_per_finding": 4}
POPULATION = Population(seed=17, prior_strength=0.0, subtlety=1.0, prevalence=0.2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cases(cache):
    return list(PhantomChest(cache, **SMALL).cases("test"))


def test_it_keeps_the_contract_of_a_dataset(cache):
    check_dataset(PhantomChest(cache, **SMALL), other=PhantomChest(cache, **(SMALL | {"seed": 18})))


def test_nothing_is_drawn_before_cases_are_asked_for(tmp_path):
    dataset = PhantomChest(tmp_path / "cache", **SMALL)
    dataset.fingerprint()
    dataset.cases("train")
    assert not (tmp_path / "cache").exists()


def test_a_volume_lies_in_the_body_as_declared(cases):
    image = nibabel.load(cases[0].volumes[0].path)
    assert image.shape == (64, 64, 32)
    assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")
    assert image.header.get_zooms() == pytest.approx((5.5, 5.5, 10.0))
    assert image.get_data_dtype() == np.int16
    phantom, _ = draw(POPULATION, "test", 0)
    volume = read(cases[0].volumes[0])
    assert np.array_equal(volume.array, phantom.hu)
    assert volume.spacing_mm_zyx == pytest.approx((10.0, 5.5, 5.5))


def test_masks_labels_and_words_say_the_same(cases):
    for case in cases:
        assert tuple(case.masks) == case.present()
        assert [finding.name for finding in case.findings] == list(CT_RATE_FINDINGS)
        like = read(case.volumes[0])
        for finding in case.findings:
            said = case.report.text[finding.span.start : finding.span.end]
            assert said.lower() == finding.name
            (sentence,) = [span for span in case.report.spans if span.start <= finding.span.start < span.end]
            assert sentence.label == ("abnormal" if finding.state == "present" else "normal")
            words = case.report.text[sentence.start : sentence.end].lower()
            assert (finding.side or "") in words
            if finding.state == "present":
                assert read_mask(case.masks[finding.name], like).sum() >= 10
                place = f" on the {finding.side}" if finding.side else ""
                assert f"{finding.name}{place}." in case.notes["impression"].lower()
            else:
                assert finding.name not in case.notes["impression"].lower()


def test_report_spans_tile_the_text_with_the_normal_first(cases):
    for case in cases:
        spans = case.report.spans
        assert [span.label for span in spans] == sorted((span.label for span in spans), reverse=True)
        assert " ".join(case.report.text[span.start : span.end] for span in spans) == case.report.text


def test_reports_may_leave_absent_findings_unnamed(cases, cache):
    dataset = PhantomChest(cache, **(SMALL | {"names_absent": False}))
    terse = list(dataset.cases("test"))
    labeler = NegationRules()
    for one, case in zip(terse, cases, strict=True):
        assert np.array_equal(read(one.volumes[0]).array, read(case.volumes[0]).array)
        read_back = {finding.name for finding in labeler.read([one.report.text])[0]}
        assert read_back == set(one.present()) == set(case.present())
        named = [finding.name for finding in one.findings if finding.span is not None]
        assert tuple(named) == one.present()
        labels = [span.label for span in one.report.spans]
        assert labels == sorted(labels, reverse=True)
        assert labels.count("abnormal") == len(named)
        assert labels.count("normal") >= 6


def test_splits_share_no_patient_and_no_picture(cache):
    dataset = PhantomChest(cache, **SMALL)
    groups = [list(dataset.cases(split)) for split in ("train", "validation", "test")]
    patients = [case.patient for group in groups for case in group]
    assert len(set(patients)) == len(patients) == 6 + 5 + 24
    pictures = {read(case.volumes[0]).array.tobytes() for group in groups for case in group}
    assert len(pictures) == len(patients)


def test_another_seed_is_another_population(cases, cache):
    others = list(PhantomChest(cache, **(SMALL | {"seed": 18, "test_cases": 3})).cases("test"))
    assert not {case.patient for case in cases} & {case.patient for case in others}
    assert not np.array_equal(read(cases[0].volumes[0]).array, read(others[0].volumes[0]).array)


def test_more_cases_begin_with_the_same_ones(cases, cache):
    fewer = list(PhantomChest(cache, **(SMALL | {"test_cases": 3})).cases("test"))
    for one, other in zip(cases, fewer, strict=False):
        assert (one.id, one.report, one.findings) == (other.id, other.report, other.findings)


def test_questions_are_balanced_on_disk_as_they_are_in_theory(cases):
    asked = [(case, question) for case in cases for question in case.questions]
    right = collections.Counter(question.options[question.answer] for _, question in asked)
    assert set(right.values()) == {4}
    assert set(right) == {name for case in cases for name in case.present()}
    letters = collections.Counter(question.answer for _, question in asked)
    assert set(letters.values()) == {len(asked) // 4}
    assert len({question.id for _, question in asked}) == len(asked)
    for case, question in asked:
        held = [place for place, option in enumerate(question.options) if option in case.present()]
        assert held == [question.answer] == list(question.true_options)


def test_the_indication_is_told_only_where_it_says_something(cache, cases):
    assert all("indication" not in case.notes for case in cases)
    assert all("Indication" not in question.text for case in cases for question in case.questions)
    strong = PhantomChest(cache, **(SMALL | {"prior_strength": 1.0}))
    for case in strong.cases("test"):
        for question in case.questions:
            assert question.text.startswith(f"Indication: {case.notes['indication']}. ")


@pytest.mark.parametrize(
    "changed",
    [
        {"train_cases": 7},
        {"validation_cases": 6},
        {"test_cases": 25},
        {"seed": 18},
        {"prior_strength": 0.1},
        {"subtlety": 1.5},
        {"prevalence": 0.3},
        {"questions_per_finding": 5},
    ],
)
def test_every_option_changes_the_fingerprint(tmp_path, changed):
    assert (
        PhantomChest(tmp_path, **SMALL).fingerprint() == PhantomChest(tmp_path / "b", **SMALL).fingerprint()
    )
    assert (
        PhantomChest(tmp_path, **(SMALL | changed)).fingerprint()
        != PhantomChest(tmp_path, **SMALL).fingerprint()
    )


def test_worker_processes_draw_the_same_bytes(tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    for folder, workers in ((alone, 1), (shared, 2)):
        folder.mkdir()
        store.draw(POPULATION, "train", 5, folder, workers=workers)
    names = sorted(file.name for file in alone.iterdir())
    assert len(names) == 15
    assert names == sorted(file.name for file in shared.iterdir())
    for name in names:
        if name.endswith(".npz"):  # holds the time at which it was written
            one, other = np.load(alone / name), np.load(shared / name)
            assert all(np.array_equal(one[key], other[key]) for key in one.files)
        else:
            assert (alone / name).read_bytes() == (shared / name).read_bytes()


def test_a_split_is_drawn_once(tmp_path):
    first = store.ensure(tmp_path, POPULATION, "train", 2)
    stamp = (first / "00000.nii").stat().st_mtime_ns
    assert store.ensure(tmp_path, POPULATION, "train", 2) == first
    assert (first / "00000.nii").stat().st_mtime_ns == stamp


KILLED = """
import sys
from pathlib import Path
from evidcore_plugin_phantoms.render import Population
from evidcore_plugin_phantoms.store import ensure
ensure(Path(sys.argv[1]), Population(seed=17, prior_strength=0.0, subtlety=1.0, prevalence=0.2), "train", 40)
"""


def test_a_kill_leaves_nothing_that_looks_finished(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    while len(list(tmp_path.glob(".*.partial/*.nii"))) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not [folder for folder in tmp_path.iterdir() if not folder.name.startswith(".")]
    folder = store.ensure(tmp_path, POPULATION, "train", 40)
    assert len(list(folder.glob("*.nii"))) == 40
    assert not list(tmp_path.glob(".*.partial"))


FULL = """
import resource, sys
from pathlib import Path
from evidcore_plugin_phantoms.render import Population
from evidcore_plugin_phantoms.store import ensure
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
ensure(Path(sys.argv[1]), Population(seed=17, prior_strength=0.0, subtlety=1.0, prevalence=0.2), "train", 2)
"""


def test_a_full_disk_is_named_with_the_folder_and_leaves_nothing(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert f"DataError: {tmp_path}: the 2 phantoms of split 'train' could not be written" in ended.stderr
    assert "They take about 1 MB" in ended.stderr
    assert not [folder for folder in tmp_path.iterdir() if folder.is_dir()]


def test_a_cache_that_is_a_file_is_named(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(
        DataError, match=rf"{tmp_path}/cache: the 3 phantoms of split 'test' could not be written"
    ):
        store.ensure(tmp_path / "cache", POPULATION, "test", 3)


def test_a_worker_stops_when_its_parent_is_gone(tmp_path):
    drawing.write(
        POPULATION, "train", range(3), tmp_path, parent=os.getpid()
    )  # not the parent of this process
    assert not list(tmp_path.iterdir())
