"""Task `report-evidence`: the form, the gold slice, and every way to break it by name."""

import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import pytest
from disc_cases import SHAPE, disc_case
from evidcore_plugin_emrl.report_evidence import ReportEvidence, best_evidence
from evidcore_plugin_medvol_r1.key_slice import KeySlice
from evidcore_testing import check_task

from evidcore.api import DataError, MaskRef, Rollout, Unscored
from evidcore.builtin.views import Slices
from evidcore.case import Evidence
from evidcore.errors import RecipeError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

REPORT = "There is a cyst. There is a stone."


@pytest.fixture
def asked(tmp_path):
    def ask(case, slices=6, **options):
        task = ReportEvidence(tmp_path / "cache", **options)
        (prompt,) = task.prompts(case, Slices(slices=slices), 0)
        return task, prompt

    return ask


@pytest.mark.parametrize("cite", ["report", "finding"])
@pytest.mark.parametrize("order", ["report-first", "evidence-first"])
@pytest.mark.parametrize("think", [False, True])
def test_it_keeps_the_contract_of_a_task(sick, healthy, tmp_path, cite, order, think):
    task = ReportEvidence(tmp_path, cite=cite, order=order, think=think, margin_slices=1)
    check_task(task, Slices(slices=6), [sick, healthy], garbage=[REPORT, "<report>x</report>", "null"])


@pytest.mark.parametrize(("options", "expected", "told"), TABLE["gold"])
def test_the_gold_slice_shows_most_of_all_findings_and_spans_move_with_the_report(
    sick, asked, options, expected, told
):
    task, prompt = asked(dataclasses.replace(sick, notes={"indication": "pain on the left"}), **options)
    gold, spans = task.gold(prompt)
    assert gold == expected
    assert prompt.words().endswith(told)
    abnormal = [("There is a cyst.", "abnormal"), ("There is a stone.", "abnormal")]
    assert [(gold[span.start : span.end], span.label) for span in spans] == abnormal
    assert prompt.reference["present"] == ["cyst", "stone"]
    if "cite" in options:
        assert task.parse(prompt, gold).evidence == Evidence(slices={"cyst": 2, "stone": 3})
        assert prompt.reference["target"] is None
    else:
        assert prompt.reference["target"] == {"slice": 2, "areas": {"1": 16, "2": 45, "3": 36}}


def test_gold_answers_may_hold_the_impression_alone(sick, healthy, asked):
    told = dataclasses.replace(sick, notes={"impression": " Cyst. Nothing else, but a stone?\nNo scar."})
    task, prompt = asked(told, section="impression")
    gold, spans = task.gold(prompt)
    assert gold.startswith("<report>Cyst. Nothing else, but a stone?\nNo scar.</report>")
    assert [(gold[span.start : span.end], span.label) for span in spans] == [
        ("Cyst.", "abnormal"),
        ("Nothing else, but a stone?", "abnormal"),
        ("No scar.", "normal"),
    ]
    bare = dataclasses.replace(prompt, case=healthy)
    with pytest.raises(ValueError, match="has no impression, so there is no gold answer"):
        task.gold(bare)
    assert task.prompts(healthy, Slices(slices=6), 0) == ()


@pytest.mark.parametrize("cite", ["report", "finding"])
def test_gold_answers_may_be_off_by_a_margin_and_nothing_else_goes_by_it(sick, asked, tmp_path, cite):
    task = ReportEvidence(tmp_path, cite=cite, margin_slices=1)
    _, plain = asked(sick, cite=cite)
    best = best_evidence(plain)
    cited = {}
    for seed in range(40):
        (prompt,) = task.prompts(sick, Slices(slices=6), seed)
        assert {**prompt.reference, "cited": plain.reference["cited"]} == plain.reference
        assert best_evidence(prompt) == best
        parsed = task.parse(prompt, task.gold(prompt)[0])
        assert parsed.malformed is None
        for name, z in (parsed.evidence.slices or {"slice": parsed.evidence.slice}).items():
            cited.setdefault(name, set()).add(z)
    assert cited == {name: {z - 1, z, z + 1} for name, z in plain.reference["cited"].items()}


def test_a_margin_stays_within_the_slices_that_are_shown(tmp_path):
    case = disc_case(tmp_path, 1, ["cyst"], where={"cyst": {5: (slice(4, 8), slice(4, 8))}})
    task = ReportEvidence(tmp_path, margin_slices=9)
    cited = {task.prompts(case, Slices(slices=6), seed)[0].reference["cited"]["slice"] for seed in range(80)}
    assert cited == set(range(6))


KIDNEYS = {"left kidney": range(4), "right kidney": range(3, 6), "liver": range(1, 6)}


def in_organs(folder, case, **locations):
    """Give findings a place, and the case masks of organs."""
    masks = {name: np.zeros(SHAPE, bool) for name in KIDNEYS}
    for name, slices in KIDNEYS.items():
        masks[name][list(slices), :2, :2] = True
    np.savez(folder / "organs.npz", **masks)
    findings = [dataclasses.replace(item, **locations.get(item.name, {})) for item in case.findings]
    refs = {name: MaskRef(path=str(folder / "organs.npz"), key=name) for name in masks}
    return dataclasses.replace(case, findings=tuple(findings), masks={**case.masks, **refs})


@pytest.mark.parametrize(
    ("cyst", "expected"),
    [
        ({"location": "liver"}, {1, 2, 3, 4, 5}),
        ({"location": "kidney", "side": "right"}, {1, 2, 3, 4, 5}),  # its own slices, 1 and 2, too
        ({"location": "kidney", "side": "left"}, {0, 1, 2, 3}),
        ({"location": "kidney", "side": "both"}, {0, 1, 2, 3, 4, 5}),
    ],
)
def test_gold_answers_may_name_any_slice_of_the_organ(sick, asked, tmp_path, cyst, expected):
    case = in_organs(tmp_path, sick, cyst=cyst, stone={"location": "liver"})
    task = ReportEvidence(tmp_path, cite="finding", slices_of="organ")
    _, plain = asked(case, cite="finding")
    drawn = set()
    for seed in range(60):
        (prompt,) = task.prompts(case, Slices(slices=6), seed)
        assert {**prompt.reference, "cited": plain.reference["cited"]} == plain.reference
        drawn.add(prompt.reference["cited"]["cyst"])
    assert drawn == expected
    kidney = {"location": "kidney", "side": "left"}
    left = in_organs(tmp_path, sick, cyst=kidney, stone=kidney)
    whole = ReportEvidence(tmp_path, slices_of="organ")  # one slice for the report is one of any organ
    prompts = [whole.prompts(left, Slices(slices=6), seed)[0] for seed in range(60)]
    assert {prompt.reference["cited"]["slice"] for prompt in prompts} == {0, 1, 2, 3}


def test_a_finding_whose_organ_has_no_mask_leaves_the_case_out_and_no_margin_goes_with_organs(
    sick, tmp_path, caplog
):
    case = in_organs(tmp_path, sick, cyst={"location": "spleen"}, stone={"location": "liver"})
    assert ReportEvidence(tmp_path, slices_of="organ").prompts(case, Slices(slices=6), 0) == ()
    assert "no mask shows the spleen of finding 'cyst', so nothing is asked about it" in caplog.text
    assert ReportEvidence(tmp_path).prompts(case, Slices(slices=6), 0)
    with pytest.raises(RecipeError, match="margin_slices goes with slices_of = 'finding'; leave one out"):
        ReportEvidence(tmp_path, slices_of="organ", margin_slices=1)


@pytest.mark.parametrize("cite", ["report", "finding"])
def test_a_healthy_scan_has_no_slice_and_is_unscored(healthy, asked, cite):
    task, prompt = asked(healthy, cite=cite)
    gold, _ = task.gold(prompt)
    assert gold == "<report>No cyst is seen. No stone is seen.</report><evidence>null</evidence>"
    for text in (gold, gold.replace("null", '{"slice": 2}')):
        assert isinstance(judged(task, prompt, text), Unscored)


def judged(task, prompt, text, **options):
    rollout = Rollout(prompt=prompt, group=0, text=text, answer=task.parse(prompt, text))
    return KeySlice(over="global", **options)([rollout], {})[0]


def test_key_slice_reads_what_the_task_writes(sick, asked):
    task, prompt = asked(sick)
    gold, _ = task.gold(prompt)
    assert judged(task, prompt, gold).value == 1.0
    assert judged(task, prompt, gold.replace("2}", "3}")).value == pytest.approx(36 / 45)
    assert judged(task, prompt, gold.replace("2}", "5}")).reason == "slice 5 does not show the target"
    null = judged(task, prompt, gold.replace('{"slice": 2}', "null"))  # on a sick scan
    assert (null.value, null.reason) == (0.0, "no slice is named")
    task, prompt = asked(sick, cite="finding")
    text = f'<report>{REPORT}</report><evidence>{{"cyst": 1, "stone": 3}}</evidence>'
    assert judged(task, prompt, text).parts == {"cyst": pytest.approx(16 / 36), "stone": 1.0}


LONG = [
    [f'{{"slice": {"9" * 900}}}', f"'slice' is slice {'9' * 40}…, which was not shown"],
    ["[" * 5000, "the evidence is '[["],
]


@pytest.mark.parametrize(("evidence", "said"), [*TABLE["refused"], *LONG])
def test_evidence_that_is_no_slice_is_malformed_by_name(sick, asked, evidence, said):
    task, prompt = asked(sick)
    answer = task.parse(prompt, f"<report>{REPORT}</report><evidence>{evidence}</evidence>")
    assert said in answer.malformed
    assert answer.evidence is None
    assert answer.report == REPORT


@pytest.mark.parametrize(("completion", "said"), TABLE["malformed"])
def test_another_form_is_malformed_by_name(sick, asked, completion, said):
    task, prompt = asked(sick)
    assert said in task.parse(prompt, completion).malformed


def test_what_no_shown_slice_shows_is_not_asked(sick, tmp_path, caplog):
    task = ReportEvidence(tmp_path / "cache")
    assert task.prompts(sick, Slices(slices=2), 0) == ()  # 1 and 4 are shown, the stone lies on 2 and 3
    assert "case case-1: none of the 2 slices shown shows finding 'stone'" in caplog.text
    assert task.prompts(sick, Slices(slices=2), 0) == ()
    assert caplog.text.count("none of the 2 slices") == 1
    bare = dataclasses.replace(sick, masks={"cyst": sick.masks["cyst"]})
    assert ReportEvidence(tmp_path).prompts(bare, Slices(slices=6), 0) == ()
    assert "finding 'stone' has no mask" in caplog.text


def test_a_case_without_a_report_asks_nothing_but_can_be_asked_and_several_volumes_are_refused(
    sick, tmp_path
):
    bare, task = dataclasses.replace(sick, report=None, findings=(), masks={}), ReportEvidence(tmp_path)
    assert task.prompts(bare, Slices(slices=6), 0) == ()
    (prompt,) = task.ask(bare, Slices(slices=6))
    assert task.parse(prompt, '<report>A cyst.</report><evidence>{"slice": 4}</evidence>').evidence.slice == 4
    two = dataclasses.replace(sick, volumes=sick.volumes * 2)
    with pytest.raises(DataError, match=r"case 'case-1': has 2 volumes, and a slice is named by its index"):
        ReportEvidence(tmp_path).prompts(two, Slices(slices=6), 0)
