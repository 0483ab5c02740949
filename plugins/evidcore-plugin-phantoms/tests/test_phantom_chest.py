"""The phantoms on disk: what a case holds, and that a split is there whole or not at all."""

import collections
import errno
import functools
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_phantoms.phantoms import run_share, spread
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_plugin_reports.labelers import NegationRules

from evidcore.api import read, read_mask
from evidcore.errors import RunError


@pytest.fixture(scope="module")
def cases(chest):
    return list(chest().cases("test"))


def test_masks_labels_and_words_say_the_same(cases):
    for case in cases:
        spans = case.report.spans
        assert [span.label for span in spans] == sorted((span.label for span in spans), reverse=True)
        assert " ".join(case.report.text[span.start : span.end] for span in spans) == case.report.text
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


def test_reports_may_leave_absent_findings_unnamed(cases, chest):
    labeler = NegationRules()
    for item, case in zip(chest(names_absent=False).cases("test"), cases, strict=True):
        assert np.array_equal(read(item.volumes[0]).array, read(case.volumes[0]).array)
        read_back = {finding.name for finding in labeler.read([item.report.text])[0]}
        assert read_back == set(item.present()) == set(case.present())
        named = [finding.name for finding in item.findings if finding.span is not None]
        assert tuple(named) == item.present()
        labels = [span.label for span in item.report.spans]
        assert labels == sorted(labels, reverse=True)
        assert labels.count("abnormal") == len(named)
        assert labels.count("normal") >= 6


def test_as_many_questions_as_are_asked_for_are_on_disk_with_the_answer_that_is_right(cases):
    asked = [(case, question) for case in cases for question in case.questions]
    right = collections.Counter(question.options[question.answer] for _, question in asked)
    assert right == dict.fromkeys((name for case in cases for name in case.present()), 4)
    for case, question in asked:
        held = [index for index, option in enumerate(question.options) if option in case.present()]
        assert held == [question.answer] == list(question.true_options)


def test_a_split_is_drawn_once_and_not_before_cases_are_asked_for(tmp_path):
    dataset = PhantomChest(tmp_path, train_cases=2)
    dataset.fingerprint()
    dataset.cases("train")
    assert not list(tmp_path.iterdir())
    first, known = dataset.drawn("train")
    stamp = (first / "00000.nii").stat().st_mtime_ns
    assert PhantomChest(tmp_path, train_cases=2).drawn("train") == (first, known)
    assert (first / "00000.nii").stat().st_mtime_ns == stamp


KILLED = """
import sys
from pathlib import Path
from evidcore_plugin_phantoms.chest import PhantomChest
PhantomChest(Path(sys.argv[1]), train_cases=40).drawn("train")
"""


@pytest.mark.slow
def test_a_kill_leaves_nothing_that_looks_finished(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    root = tmp_path / "phantoms"
    while len(list(root.glob(".*/*.nii"))) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not [folder for folder in root.iterdir() if folder.is_dir() and folder.name[0] != "."]
    folder, _ = PhantomChest(tmp_path, train_cases=40).drawn("train")
    assert len(list(folder.glob("*.nii"))) == 40


class OnFullDisk(PhantomChest):
    def draw(self, split, number, *, without=None):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_named_with_the_folder_and_leaves_nothing(tmp_path):
    with pytest.raises(RunError, match=rf"^{tmp_path}/phantoms: the disk is full"):
        OnFullDisk(tmp_path, train_cases=2).drawn("train")
    assert not [folder for folder in (tmp_path / "phantoms").iterdir() if folder.is_dir()]


def test_a_worker_stops_when_its_parent_is_gone(tmp_path, monkeypatch, capfdbinary):
    share = pickle.dumps((str, range(3), os.getpid()))  # not the parent of this process
    monkeypatch.setattr(sys, "argv", ["", share.hex()])
    run_share()
    assert pickle.loads(capfdbinary.readouterr().out) == []


@pytest.mark.parametrize(
    ("work", "error", "says"),
    [
        (functools.partial(os.mkdir, "/nowhere/there"), FileNotFoundError, "'/nowhere/there'"),
        (functools.partial(divmod, 1), RuntimeError, "ended with 1: Traceback[^$]*ZeroDivisionError"),
    ],
)
@pytest.mark.slow
def test_what_a_worker_cannot_do_is_told(work, error, says):
    with pytest.raises(error, match=says):
        spread(work, 2, workers=2)
