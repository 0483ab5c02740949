"""Hidden cues of abdominal phantoms: they follow the patient, change nothing else, and stand in no text."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_phantoms.abdomen.dataset import INDICATIONS, PhantomAbdomen
from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS
from evidcore_plugin_phantoms.abdomen.scene import label_of
from evidcore_plugin_phantoms.cues import Cues

from evidcore.errors import RecipeError

PLAIN = PhantomAbdomen(Path(), seed=11, prevalence=0.3, size_zyx=(20, 96, 64))
CUES = ("header_cue", "device_cue", "table_cue")
TABLE = label_of("table")
CASES = 30


def phantoms(subtlety=1.0, **cues):
    dataset = dataclasses.replace(PLAIN, subtlety=subtlety, cues=Cues(**cues))
    return [dataset.draw("test", number) for number in range(CASES)]


def has_cyst(phantom):
    return any(lesion["finding"] == "liver cyst" for lesion in phantom.known["facts"]["lesions"])


@pytest.fixture(scope="module")
def plain():
    return phantoms()


@pytest.fixture(scope="module")
def clean():
    return phantoms(subtlety=1e-6)


def level(cue, phantom, clean):
    if cue == "header_cue":
        return phantom.spacing_mm_zyx[0] / 15
    if cue == "device_cue":
        body = np.abs(clean.hu) < 500
        return (phantom.hu.astype(float) - clean.hu)[body].std()
    rows = [np.flatnonzero((each.arrays["organs"] == TABLE).any((0, 2)))[0] for each in (phantom, clean)]
    return rows[0] - rows[1]


@pytest.mark.slow
@pytest.mark.parametrize("cue", CUES)
def test_a_cue_follows_the_patient_s_type(cue, clean):
    found = phantoms(**{cue: 1.0})
    types = [list(INDICATIONS).index(each.known["indication"].rpartition(", ")[0]) for each in found]
    levels = [level(cue, one, other) for one, other in zip(found, clean, strict=True)]
    assert np.corrcoef(types, levels)[0, 1] > (0.9 if cue == "table_cue" else 0.95)


@pytest.mark.slow
@pytest.mark.parametrize("cue", CUES)
def test_a_cue_follows_a_finding_and_a_twin_keeps_it(cue, clean):
    options = {"cue_of": "liver cyst", cue: 1.0}
    for number, (phantom, usual) in enumerate(zip(phantoms(**options), clean, strict=True)):
        has = has_cyst(phantom)
        low, high = {"header_cue": (0.8, 1.2), "device_cue": (12, 22), "table_cue": (0, 3.7)}[cue]
        expected = high if has else low
        assert level(cue, phantom, usual) == pytest.approx(expected, rel=0.24 if cue == "table_cue" else 0.02)
        if has:
            dataset = dataclasses.replace(PLAIN, cues=Cues(**options))
            twin = dataset.draw("test", number, without="liver cyst")
            assert not has_cyst(twin)
            assert twin.spacing_mm_zyx == phantom.spacing_mm_zyx
            assert np.array_equal(twin.arrays["organs"] == TABLE, phantom.arrays["organs"] == TABLE)
            assert (twin.hu != phantom.hu).mean() < 0.1  # the lesion and the blur: the noise stays


@pytest.mark.slow
def test_a_cue_changes_nothing_else_and_is_in_no_text(abdomen, plain):
    for cue in CUES:
        for one, other in zip(phantoms(**{cue: 1.0}), plain, strict=True):
            assert one.known["facts"]["lesions"] == other.known["facts"]["lesions"]
            assert np.array_equal(one.arrays["lesions"], other.arrays["lesions"])
            organs = [each.arrays["organs"] for each in (one, other)]
            body = ~np.isin(organs[0], (0, TABLE)) & ~np.isin(organs[1], (0, TABLE))
            assert np.array_equal(organs[0][body], organs[1][body])
            if cue != "device_cue":
                kept = body.copy()
                kept[:, 1:] &= body[:, :-1]  # the blur of the table reaches a voxel
                kept[:, :-1] &= body[:, 1:]
                assert np.array_equal(one.hu[kept], other.hu[kept])
    on = {"header_cue": 1.0, "device_cue": 1.0, "table_cue": 1.0, "cue_of": "liver cyst"}
    for one, other in zip(abdomen(cues=Cues(**on)).cases("test"), abdomen().cases("test"), strict=True):
        assert (one.report, one.findings, one.notes) == (other.report, other.findings, other.notes)
        assert one.queries == other.queries


def test_findings_come_in_company_and_no_text_tells_the_type(abdomen):
    cases = list(abdomen(cues=Cues(company=1.0), prevalence=0.2, test_cases=80).cases("test"))
    has = np.array([[name in case.present() for name in FINDINGS] for case in cases], float)
    together = np.corrcoef(has.T)
    pairs = [together[FINDINGS.index(one), FINDINGS.index(other)] for one, other in INDICATIONS.values()]
    assert np.mean(pairs) > 0.3
    for case in cases:
        texts = [case.report.text, repr(case.notes), *(each.text for each in case.queries)]
        assert not [kind for kind in INDICATIONS for text in texts if kind in text.lower()]


def test_options_that_mean_nothing_are_refused(abdomen):
    with pytest.raises(RecipeError, match="phantom-abdomen: cue_of must be '' or a finding, got 'cyst'"):
        abdomen(cues=Cues(cue_of="cyst"))
    with pytest.raises(RecipeError, match=r"phantom-abdomen: company is the prior .*got 0\.5 and 0\.2"):
        abdomen(cues=Cues(company=0.5), prior_strength=0.2)
