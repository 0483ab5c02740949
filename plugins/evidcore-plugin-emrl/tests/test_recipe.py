"""Recipes in small: a reader fitted on patients of its own pays a policy, and reports are measured."""

import json
from statistics import fmean

import pytest
from disc_cases import disc_case
from evidcore_testing.recipes import recipe_text

from evidcore.api import DataError, Dataset, Episode, RolloutStrategy
from evidcore.errors import RecipeError
from evidcore.recipe import load
from evidcore.runs.begin import run, start
from evidcore.runs.dry_run import dry_run

pytestmark = pytest.mark.slow
PATIENTS = {"policy": range(100, 112), "readers": range(0, 40)}
ASKED = {"dataset": "policy", "task": "report-evidence"}
CROSS_VIEW = {"use": "cross-view", "reader": "judge"}
ASKED_NOW = {"use": "cross-view", "name": "asked-now", "control": "text", "bind": "finding",
             "reader": {"use": "policy-reader", "max_new_tokens": 8}}  # fmt: skip
ASKED_AT_START = {"use": "cross-view", "name": "asked-at-start", "control": "blank", "agreement": "local",
                  "reader": {"use": "policy-reader", "at": "start", "max_new_tokens": 8}}  # fmt: skip
WINDOWS = {"windows": [[-50.0, 150.0]]}


class Discs(Dataset):
    """Patients with discs, drawn once."""

    def __init__(self, recipe_folder, *, whose: str):
        self.folder, self.patients = recipe_folder / whose, PATIENTS[whose]

    findings = ("cyst", "stone")

    def cases(self, split):
        numbers = {"train": self.patients, "validation": range(900, 904), "test": range(950, 956)}[split]
        return [disc_case(self.folder, number) for number in numbers]

    def fingerprint(self):
        return "discs"


class Says(RolloutStrategy):
    """Writes a report, and the slices that were shown one after the other."""

    def __call__(self, sampler, prompts, n):
        tokenizer, result = sampler.processor.tokenizer, []
        for prompt in prompts:
            for z in range(n):
                text = f'<report>There is a cyst.</report><evidence>{{"slice": {z % 6}}}</evidence>'
                ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
                mask = (1,) * len(ids)
                result.append(Episode(prompt=prompt, ids=ids, loss_mask=mask, finished=True))
        return result


def fit(steps):
    return {"kind": "fit", "component": "service.judge", "data": [{"dataset": "readers"}],
            "options": {"steps": steps}}  # fmt: skip


def sft(steps):
    return {"kind": "sft", "train": ["encoder", "bridge", "language"], "data": [ASKED], "steps": steps,
            "rows_per_step": 4, "learning_rate": 4e-3}  # fmt: skip


def grpo(steps, *rewards, **more):
    return {"kind": "grpo", "train": ["bridge", "language"], "data": [ASKED], "steps": steps,
            "prompts_per_step": 4, "answers_per_prompt": 8, "learning_rate": 3e-3, "max_new_tokens": 48,
            "reward": rewards, **more}  # fmt: skip


def measuring(evaluation="report-evidence", **options):
    """Return an evaluate and an audit stage."""
    data = [{**ASKED, "split": "test", "evaluation": evaluation}]
    return [{"kind": kind, "data": data, "max_new_tokens": 48, **options} for kind in ("evaluate", "audit")]


@pytest.fixture
def recipe(tmp_path, offered):
    names = "[evidcore.dataset]\ndiscs = evid_discs:Discs\n[evidcore.rollout]\nsays = evid_discs:Says\n"
    offered("evid-discs", names, Discs=Discs, Says=Says)

    def write(*stages, **reader):
        judge = {"kind": "reader", "use": "slice-reader", "size_yx": [32, 48], "channels": [12, 24]}
        encoder = {"use": "vit3d", "size_zyx": [6, 32, 48], "patch_zyx": [1, 8, 8], "width": 24, **WINDOWS}
        text = recipe_text(
            *stages,
            name="evidence",
            dataset={whose: {"use": "discs", "whose": whose} for whose in PATIENTS},
            service={"judge": {**judge, **WINDOWS, **reader}},
            model={"view": {"use": "slices", "slices": 6}, "encoder": encoder},
        )
        path = tmp_path / "evidence.toml"
        path.write_text(text, encoding="utf-8")
        return load(path)

    return write


NEVER = r"grpo: service\.judge: slice-reader: was never fitted\. Put a fit stage with its service"
SHORT = (sft(2), grpo(1, CROSS_VIEW))


@pytest.mark.parametrize("stages", [SHORT, (*SHORT, fit(2))], ids=["no fit", "fitted after its use"])
def test_a_reader_that_was_never_fitted_is_refused_by_check_and_by_run(recipe, tmp_path, stages):
    result = recipe(*stages)
    with pytest.raises(RecipeError, match=NEVER):
        dry_run(result)
    with pytest.raises(DataError, match="was never fitted"):
        run(start(result, tmp_path / "runs"))
    (folder,) = (tmp_path / "runs" / "evidence").iterdir()
    assert not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text()
    with pytest.raises(RecipeError, match=r"none/reader\.json: there is no such file"):
        dry_run(recipe(*stages, pretrained="none"))


@pytest.mark.parametrize("evaluation", ["report-evidence", "report"])
def test_a_labeler_without_the_words_of_the_data_is_refused_by_check(recipe, evaluation):
    lacking = r"labeler 'negation-rules' does not look for 'cyst', 'stone'"
    labeler = {"use": "negation-rules", "findings": ["emphysema"]}
    with pytest.raises(RecipeError, match=rf"evaluate\.data\[0\]: task 'report-evidence' .*: {lacking}"):
        dry_run(recipe(sft(2), *measuring(evaluation, labeler=labeler)))
    assert dry_run(recipe(sft(2), *measuring(evaluation))).data


def test_reports_with_evidence_are_measured_and_audited_in_a_run(recipe, tmp_path):
    folder = start(recipe(sft(2), *measuring()), tmp_path / "runs")
    run(folder)
    measured, audited = (
        json.loads((folder.path / "results" / name).read_text(encoding="utf-8"))
        for name in ("02-evaluate.json", "03-audit.json")
    )
    assert {row["metric"] for row in measured["rows"]} >= {"grounded_accuracy", "blind_grounded_accuracy"}
    assert "own_minus_blind" in {row["metric"] for row in audited["rows"]}
    lines = {"blind_grounded_accuracy", "usual_slice_evidence_hit_rate"}
    assert measured["reference_lines"]["report-evidence"].keys() == lines


def judged(folder):
    """Return the lines of judged groups."""
    text = (folder.path / "rollouts" / "03-grpo.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.strip().split("\n")]


def test_a_fitted_reader_and_the_policy_itself_are_asked(recipe, tmp_path, caplog):
    paid = grpo(2, CROSS_VIEW, ASKED_NOW, ASKED_AT_START, rollout={"use": "says"})
    result = recipe(fit(60), sft(2), paid)
    dry_run(result)
    folder = start(result, tmp_path / "runs")
    run(folder)
    groups = judged(folder)
    scans = {group["case_id"]: bool(group["reference"]["present"]) for group in groups}
    assert {True, False} <= {*scans.values()}
    for group in groups:
        for item in group["rollouts"]:
            assert item["rewards"].keys() == {"cross-view", "asked-now", "asked-at-start"}
            for verdict in item["rewards"].values():
                assert (verdict["value"] is None) >= (not scans[group["case_id"]])  # healthy: unscored
    by_reader = [item["rewards"]["cross-view"] for group in groups for item in group["rollouts"]]
    parts = [item["parts"] for item in by_reader if item["value"] is not None]
    assert any(part["seen"] > 0 for part in parts)
    assert any(part["control"] > 0 for part in parts)
    assert "could not be audited" not in caplog.text


def test_a_policy_that_is_paid_by_it_names_better_slices(recipe, tmp_path):
    folder = start(recipe(fit(120), sft(240), grpo(100, CROSS_VIEW)), tmp_path / "runs")
    run(folder)
    paid = {}
    for group in judged(folder):
        verdicts = [item["rewards"]["cross-view"] for item in group["rollouts"]]
        paid.setdefault(group["step"], []).extend(
            item["value"] for item in verdicts if item["value"] is not None
        )
    by_step = [fmean(values) for _, values in sorted(paid.items()) if values]
    assert fmean(by_step[-15:]) > fmean(by_step[:15]) + 0.1
