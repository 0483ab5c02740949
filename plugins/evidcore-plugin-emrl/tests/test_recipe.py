"""Recipes with a reader: what `evid check` refuses before anything is trained, and one that runs."""

import json

import pytest

from evidcore.case import Score, Unscored
from evidcore.contracts import ImageQuestion, Reader, Reward
from evidcore.errors import DataError, RecipeError
from evidcore.recipe import load
from evidcore.runs import run, start
from evidcore.runs.dry_run import dry_run

RECIPE = """\
schema = 1
name = "evidence"
seed = 17

[dataset.abdomen]
use = "phantom-abdomen"
train_cases = 6
validation_cases = 2
test_cases = 2
size_zyx = [20, 48, 64]

[dataset.readers]
use = "phantom-abdomen"
seed = 1017
train_cases = 8
validation_cases = 3
test_cases = 0
size_zyx = [20, 48, 64]

[service.judge]
kind = "reader"
use = "slice-reader"
size_yx = [48, 64]
channels = [8, 8]

[model]
language = { use = "tiny", width = 32, layers = 1 }
view = { use = "slices", slices = 20 }
encoder = { use = "vit3d", size_zyx = [20, 16, 16], patch_zyx = [1, 8, 8], width = 24 }
bridge = { use = "projection" }
"""
FIT = """
[[stage]]
kind = "fit"
component = "service.judge"
data = [{ dataset = "readers" }]
options = { steps = 2, slices_per_step = 4 }
"""
SFT = """
[[stage]]
kind = "sft"
train = ["encoder", "bridge", "language"]
data = [{ dataset = "abdomen", task = "report-evidence" }]
steps = 2
rows_per_step = 2
learning_rate = 1e-2
"""
GRPO = """
[[stage]]
kind = "grpo"
train = ["bridge", "language"]
data = [{ dataset = "abdomen", task = "report-evidence" }]
steps = 1
prompts_per_step = 2
answers_per_prompt = 2
learning_rate = 1e-3
max_new_tokens = 160
[[stage.reward]]
use = "key-slice"
over = "global"
[[stage.reward]]
use = "is-seen"
reader = "judge"
"""


class IsSeen(Reward):
    """1 where the reader sees anything on any slice that is shown."""

    def __init__(self, *, reader: Reader):
        self.reader = reader

    def __call__(self, rollouts, earlier):
        asked = [ImageQuestion(crops=one.prompt.crops(), text="What is seen?") for one in rollouts]
        answers = self.reader(asked)
        none = Unscored(kind="not-applicable", reason="the reader gave no answer")
        return [none if one is None else Score(value=float("There is" in one)) for one in answers]


@pytest.fixture
def recipe(tmp_path, offered):
    offered("evid-seeing", "[evidcore.reward]\nis-seen = evid_seeing:It\n", It=IsSeen)

    def write(*stages, old="", new=""):
        path = tmp_path / "evidence.toml"
        path.write_text((RECIPE + "".join(stages)).replace(old, new), encoding="utf-8")
        return load(path)

    return write


NEVER = r"grpo: service\.judge: slice-reader: was never fitted\. Put a fit stage with its service"


@pytest.mark.slow
@pytest.mark.parametrize("stages", [(SFT, GRPO), (SFT, GRPO, FIT)], ids=["no fit", "fitted after its use"])
def test_a_reader_that_was_never_fitted_is_refused_by_check_and_by_run(recipe, tmp_path, stages):
    found = recipe(*stages)
    with pytest.raises(RecipeError, match=NEVER):
        dry_run(found)
    with pytest.raises(DataError, match="was never fitted"):
        run(start(found, tmp_path / "runs"))
    (folder,) = (tmp_path / "runs" / "evidence").iterdir()
    assert not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_a_folder_that_is_not_there_is_refused_by_check(recipe):
    with pytest.raises(RecipeError, match=r"none/reader\.json: there is no such file"):
        dry_run(recipe(SFT, GRPO, old="channels = [8, 8]", new='channels = [8, 8]\npretrained = "none"'))


@pytest.mark.slow
def test_a_reader_is_fitted_and_asked_in_a_run(recipe, tmp_path):
    folder = start(recipe(FIT, SFT, GRPO), tmp_path / "runs")
    run(folder)
    lines = (folder.path / "rollouts" / "03-grpo.jsonl").read_text(encoding="utf-8").splitlines()
    judged = [one["rewards"] for line in lines for one in json.loads(line)["rollouts"]]
    assert len(judged) == 4
    assert all(one.keys() == {"key-slice", "is-seen"} for one in judged)


EVALUATE = """
[[stage]]
kind = "evaluate"
data = [{ dataset = "abdomen", task = "report-evidence", split = "test" }]
max_new_tokens = 160

[[stage]]
kind = "audit"
data = [{ dataset = "abdomen", task = "report-evidence", split = "test" }]
max_new_tokens = 160
"""
WORDS = '160\nlabeler = { use = "negation-rules", findings = ["emphysema"] }\n'


@pytest.mark.slow
@pytest.mark.parametrize("report", [False, True], ids=["report-evidence", "report"])
def test_a_labeler_without_the_words_of_abdomens_is_refused_by_check(recipe, report):
    stages = EVALUATE.replace(', split = "test"', ', split = "test", evaluation = "report"')
    stages = stages if report else EVALUATE
    said = (
        "labeler 'negation-rules' does not look for 'liver cyst', 'liver metastasis', 'liver haemangioma', …"
    )
    with pytest.raises(
        RecipeError, match=rf"evaluate\.data\[0\]: task 'report-evidence' .*: {said} \(10 of "
    ):
        dry_run(recipe(SFT, stages.replace("160\n", WORDS)))
    assert dry_run(recipe(SFT, stages)).data


@pytest.mark.slow
def test_reports_with_evidence_are_measured_and_audited_in_a_run(recipe, tmp_path):
    folder = start(recipe(SFT, EVALUATE, old="test_cases = 2", new="test_cases = 6"), tmp_path / "runs")
    run(folder)
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (folder.path / "results").glob("*.json")
    }
    (measured,), (audited,) = (
        [found for name, found in results.items() if name.endswith(kind)] for kind in ("evaluate", "audit")
    )
    assert {row["metric"] for row in measured["rows"]} >= {"grounded_accuracy", "blind_grounded_accuracy"}
    assert "own_minus_blind" in {row["metric"] for row in audited["rows"]}
    assert measured["reference_lines"]["report-evidence"].keys() == {
        "blind_grounded_accuracy",
        "usual_slice_evidence_hit_rate",
    }
