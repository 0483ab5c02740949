"""Recipes with a reader: what `evid check` refuses before anything is trained, and one that runs."""

import json

import pytest
from evidcore_testing.recipes import recipe_text

from evidcore.api import DataError
from evidcore.errors import RecipeError
from evidcore.recipe import load
from evidcore.runs.begin import run, start
from evidcore.runs.dry_run import dry_run

pytestmark = pytest.mark.slow
TASK = {"dataset": "abdomen", "task": "report-evidence"}
FIT = {"kind": "fit", "component": "service.judge", "data": [{"dataset": "readers"}],
       "options": {"steps": 2, "slices_per_step": 4}}  # fmt: skip
SFT = {"kind": "sft", "train": ["encoder", "bridge", "language"], "data": [TASK], "steps": 2,
       "rows_per_step": 2, "learning_rate": 1e-2}  # fmt: skip
GRPO = {
    "kind": "grpo", "train": ["bridge", "language"], "data": [TASK], "steps": 1, "prompts_per_step": 2,
    "answers_per_prompt": 2, "learning_rate": 1e-3, "max_new_tokens": 160,
    "reward": [{"use": "key-slice", "over": "global"}, {"use": "cross-view", "reader": "judge"}],
}  # fmt: skip


def abdomens(train, validation, test, **options):
    counts = {"train_cases": train, "validation_cases": validation, "test_cases": test}
    return {"use": "phantom-abdomen", **counts, "size_zyx": [20, 48, 64], **options}


@pytest.fixture
def recipe(tmp_path):
    def write(*stages, test_cases=2, **reader):
        judge = {"kind": "reader", "use": "slice-reader", "size_yx": [48, 64], "channels": [8, 8], **reader}
        encoder = {"use": "vit3d", "size_zyx": [20, 16, 16], "patch_zyx": [1, 8, 8], "width": 24}
        text = recipe_text(
            *stages,
            name="evidence",
            dataset={"abdomen": abdomens(6, 2, test_cases), "readers": abdomens(8, 3, 0, seed=1017)},
            service={"judge": judge},
            model={"view": {"use": "slices", "slices": 20}, "encoder": encoder},
        )
        path = tmp_path / "evidence.toml"
        path.write_text(text, encoding="utf-8")
        return load(path)

    return write


NEVER = r"grpo: service\.judge: slice-reader: was never fitted\. Put a fit stage with its service"


@pytest.mark.parametrize("stages", [(SFT, GRPO), (SFT, GRPO, FIT)], ids=["no fit", "fitted after its use"])
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


def measuring(evaluation="report-evidence", **options):
    """Return an evaluate and an audit stage."""
    data = [{**TASK, "split": "test", "evaluation": evaluation}]
    return [{"kind": kind, "data": data, "max_new_tokens": 160, **options} for kind in ("evaluate", "audit")]


@pytest.mark.parametrize("evaluation", ["report-evidence", "report"])
def test_a_labeler_without_the_words_of_abdomens_is_refused_by_check(recipe, evaluation):
    lacking = r"labeler 'negation-rules' does not look for 'liver cyst', 'liver metastasis', .*, … \(10 of "
    labeler = {"use": "negation-rules", "findings": ["emphysema"]}
    with pytest.raises(RecipeError, match=rf"evaluate\.data\[0\]: task 'report-evidence' .*: {lacking}"):
        dry_run(recipe(SFT, *measuring(evaluation, labeler=labeler)))
    assert dry_run(recipe(SFT, *measuring(evaluation))).data


def test_reports_with_evidence_are_measured_and_audited_in_a_run(recipe, tmp_path):
    folder = start(recipe(SFT, *measuring(), test_cases=6), tmp_path / "runs")
    run(folder)
    (measured,), (audited,) = (
        [
            json.loads(path.read_text(encoding="utf-8"))
            for path in (folder.path / "results").glob(f"*{kind}.json")
        ]
        for kind in ("evaluate", "audit")
    )
    assert {row["metric"] for row in measured["rows"]} >= {"grounded_accuracy", "blind_grounded_accuracy"}
    assert "own_minus_blind" in {row["metric"] for row in audited["rows"]}
    assert measured["reference_lines"]["report-evidence"].keys() == {
        "blind_grounded_accuracy",
        "usual_slice_evidence_hit_rate",
    }
