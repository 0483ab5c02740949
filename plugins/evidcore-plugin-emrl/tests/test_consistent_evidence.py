"""Reward `consistent-evidence`: a report and its evidence may not contradict each other."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
from disc_cases import Unreading, disc_case
from evidcore_plugin_emrl.consistent_evidence import ConsistentEvidence
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_testing import answer_group, check_reward

from evidcore.api import Answer, Rollout, Score, Unscored
from evidcore.builtin.views import Slices

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CYST, BOTH = "There is a cyst.", "There is a cyst and a stone."
NOTHING = "No cyst is seen."


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("consistent")
    return {"sick": disc_case(folder, 1, ["cyst"]), "healthy": disc_case(folder, 2, [])}


@pytest.fixture
def judge(cases, tmp_path):
    """Return the verdict on a report with an evidence about a case."""

    def verdict(name, said, evidence, *, cite="report", text=None, labeler=None):
        task = ReportEvidence(tmp_path, cite=cite)
        (prompt,) = task.prompts(cases[name], Slices(slices=6), 0)
        text = text or f"<report>{said}</report><evidence>{evidence}</evidence>"
        rollout = Rollout(prompt=prompt, group=0, text=text, answer=task.parse(prompt, text))
        (result,) = ConsistentEvidence(lambda: ("cyst", "stone"), labeler=labeler)([rollout], {})
        return result

    return verdict


@pytest.mark.parametrize("name", ["sick", "healthy"])  # the truth is not asked for
@pytest.mark.parametrize(("cite", "said", "evidence", "value"), TABLE["judged"])
def test_a_slice_goes_with_each_affirmed_finding_and_null_with_none(judge, name, cite, said, evidence, value):
    assert judge(name, said, evidence, cite=cite).value == value


def test_the_reason_names_what_disagrees(judge):
    assert judge("sick", CYST, "null").reason == "affirmed is cyst, cited is none"
    assert judge("sick", NOTHING, '{"slice": 2}').reason == "affirmed is nothing, cited is a slice"
    assert judge("sick", BOTH, '{"cyst": 2}', cite="finding").reason == "affirmed or cited alone: stone"
    assert judge("sick", BOTH, '{"cyst": 2, "stone": 2}', cite="finding").reason == ""


@pytest.mark.parametrize(("text", "reason"), TABLE["out_of_form"])
def test_an_answer_out_of_its_form_earns_nothing_and_says_why(judge, text, reason):
    result = judge("sick", "", "", text=text)
    assert result.value == 0.0
    assert reason in result.reason


def test_a_report_that_could_not_be_read_is_not_judged(judge):
    result = judge("sick", CYST, '{"slice": 2}', labeler=Unreading())
    assert result == Unscored(kind="failed", reason="timed out")
    out_of_form = judge("sick", "", "", text="words", labeler=Unreading())
    assert isinstance(out_of_form, Score)


def test_other_tasks_are_not_judged(cases, tmp_path):
    (prompt,) = ReportEvidence(tmp_path).prompts(cases["sick"], Slices(slices=6), 0)
    other = dataclasses.replace(prompt, reference={"letter": "A"})
    rollout = Rollout(prompt=other, group=0, text="A", answer=Answer(text="A", choice="A"))
    assert ConsistentEvidence(lambda: ("cyst",))([rollout], {}) == [None]


def test_it_keeps_the_contract_of_a_reward(cases, tmp_path):
    task, good, bad = ReportEvidence(tmp_path), [], []
    for group, case in enumerate(cases.values()):
        (prompt,) = task.prompts(case, Slices(slices=6), 0)
        gold, _ = task.gold(prompt)
        report, evidence = gold.split("<evidence>")
        wrong = gold.replace(evidence, ('{"slice": 2}' if "null" in evidence else "null") + "</evidence>")
        good += answer_group(task, prompt, [gold, gold], group)
        bad += answer_group(task, prompt, [wrong, report], group)
    check_reward(ConsistentEvidence(lambda: ("cyst", "stone")), good, bad)
