"""`evid init`: a recipe for own scans, questions and model that checks, fits its GPU and runs."""

import csv
import json
import shutil
import tomllib
from pathlib import Path

import huggingface_hub
import nibabel
import numpy as np
import pytest
from evidcore_plugin_lab.ablation.cells import planned_inputs
from evidcore_testing import tiny_language, tiny_vision_language

from evidcore.model import assemble
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.inputs import inputs_hash

SHIPPED = "Qwen/Qwen2.5-VL-7B-Instruct"  # its shape is known without the network
SMALLER = "Qwen/Qwen2.5-VL-3B-Instruct"
COMMIT = "0" * 40


def questions(path: Path, files: list[str], **columns: list[str]) -> None:
    """Write a question about each scan: the first four for training, the others for the test."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["scan", "subject", "question", "A", "B", "answer", "split", *columns])
        for number, name in enumerate(files):
            split = "train" if number < 4 else "test"
            row = [name, f"p{number}", "Which side is dense?", "left", "right", "AB"[number % 2], split]
            table.writerow([*row, *(cells[number] for cells in columns.values())])


@pytest.fixture(scope="session")
def vlm(tmp_path_factory):
    return tiny_vision_language(tmp_path_factory.mktemp("models") / "vlm", "qwen2_5_vl")


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder to work in, with six small scans in HU and a question about each."""
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        scan = np.random.default_rng(number).normal(0, 20, (24, 24, 6)).astype(np.int16)
        scan[:4] = -1000
        scan[4:14] += 100 * (number % 2)
        nibabel.save(nibabel.Nifti1Image(scan, np.diag([-2.0, -2.0, 5.0, 1.0])), f"scan{number}.nii.gz")
    questions(Path("questions.csv"), [f"scan{number}.nii.gz" for number in range(6)])
    return tmp_path


def init(evid, model, *options, data="questions.csv", gpu=24, **changed):
    return evid("init", "--data", data, "--model", model, "--gpu", gpu, *options, **changed)


@pytest.mark.slow
def test_it_writes_a_recipe_that_checks_and_says_what_it_found(evid, desk, vlm):
    said = init(evid, vlm).output
    assert "image: column 'scan'" in said
    assert "cases: train 4, validation 0, test 2" in said
    assert "scans: CT in HU (lowest value -1000 in" in said
    assert "questions.toml: nothing wrong found" in said
    recipe = load(desk / "questions.toml")
    assert [stage.kind for stage in recipe.stages] == ["evaluate", "sft", "grpo", "evaluate", "audit"]
    assert recipe.datasets["own"]["image_column"] == "scan"
    assert recipe.datasets["own"]["intensity"] == "hu"
    text = (desk / "questions.toml").read_text(encoding="utf-8")
    assert 'path = "."' in text
    assert len(text.splitlines()) < 110
    assert max(map(len, text.splitlines())) <= 110 + len(str(vlm))


@pytest.mark.slow
def test_nothing_is_written_over_unless_told(evid, desk, vlm):
    (desk / "questions.toml").write_text("mine")
    assert "questions.toml: is there already. --force writes over it" in init(evid, vlm, exit_code=2).stderr
    assert (desk / "questions.toml").read_text() == "mine"
    said = init(evid, vlm, "--force", "--no-check").output
    assert "nothing wrong found" not in said
    assert load(desk / "questions.toml").name == "questions"
    init(evid, vlm, "--no-check", "--out", desk / "deep" / "other.toml", "--name", "other")
    assert load(desk / "deep" / "other.toml").datasets["own"]["path"] == str(desk)


@pytest.mark.slow
def test_values_that_are_no_hu_are_not_read_as_such(evid, desk, vlm):
    for path in desk.glob("*.nii.gz"):
        image = nibabel.load(path)
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj) + np.int16(1000), image.affine), path)
    assert "scans: values are no HU" in init(evid, vlm, "--no-check").output
    recipe = load(desk / "questions.toml")
    assert recipe.datasets["own"]["intensity"] == "arbitrary"
    assert recipe.model.encoder["windows"] == []
    init(evid, vlm, "--no-check", "--force", "--intensity", "hu")
    assert load(desk / "questions.toml").datasets["own"]["intensity"] == "hu"


@pytest.mark.slow
def test_slices_are_bounded_by_the_models_context(evid, desk, vlm):
    assert json.loads(init(evid, vlm, "--no-check", "--json").output)["slices"] == 64  # scans have six
    config = json.loads((vlm / "config.json").read_text())
    narrow = shutil.copytree(vlm, desk / "narrow")
    config["text_config"]["max_position_embeddings"] = 700
    (narrow / "config.json").write_text(json.dumps(config))
    refused = init(evid, narrow, "--force", exit_code=2).stderr
    assert "nothing fits, not even 4 slices of a scan: 4 slices take" in refused
    assert "and the model's context holds 700" in refused


@pytest.mark.slow
@pytest.mark.parametrize(("model", "gpu_gb"), [(SMALLER, 24), (SHIPPED, 80)])
def test_what_is_written_fits_as_evid_plan_works_it_out(evid, desk, model, gpu_gb):
    init(evid, model, "--revision", COMMIT, "--no-check", gpu=gpu_gb)
    stages = json.loads(evid("plan", "questions.toml", "--json").output)["stages"]
    peaks = {item["stage"]: item["memory"]["bfloat16"]["peak"] for item in stages}
    assert max(peaks.values()) <= 0.9 * gpu_gb * 1e9
    said = (desk / "questions.toml").read_text(encoding="utf-8")
    assert f"grpo {peaks['03-grpo'] / 1e9:.3g} GB" in said.replace("\n# ", " ")


@pytest.mark.slow
def test_frozen_weights_lie_in_bfloat16_where_the_model_was_published_so(evid, desk, vlm):
    init(evid, SHIPPED, "--revision", COMMIT, "--no-check")
    assert load(desk / "questions.toml").model.bfloat16 == ("encoder", "language")
    init(evid, vlm, "--no-check", "--force")  # in float32
    assert load(desk / "questions.toml").model.bfloat16 == ()


@pytest.mark.slow
def test_weights_in_bfloat16_are_run_and_take_the_bytes_that_are_planned(evid, desk, vlm, monkeypatch):
    """Each stage's weights on disk are what the plan says of the stage after it; hashes tell both apart."""
    monkeypatch.setenv("EVID_CACHE", str(desk / "cache"))
    init(evid, vlm, "--no-check")
    short = {
        "model.bfloat16": ["encoder", "language"], "model.view.slices": 2, "stage.sft.steps": 1,
        "stage.sft.pixel_check_every_steps": 0, "stage.grpo.steps": 1, "stage.grpo.prompts_per_step": 2,
        "stage.grpo.prompts_per_forward": 2, "stage.grpo.max_new_tokens": 4,
        **{f"stage.{name}.max_new_tokens": 4 for name in ("evaluate[0]", "evaluate[1]", "audit")},
    }  # fmt: skip
    given = [word for key, value in short.items() for word in ("--set", f"{key}={value}")]
    stages = json.loads(evid("plan", "questions.toml", *given, "--json").output)["stages"]
    planned = {item["stage"]: item["memory"] for item in stages}
    assert {kind for item in planned.values() for kind in item} == {"bfloat16"}
    evid("run", "questions.toml", *given)
    (run,) = Path("runs/questions").glob("*-*")
    for stage, after in [("02-sft", "03-grpo"), ("03-grpo", "04-evaluate")]:
        model, _ = assemble.load(run / "checkpoints" / stage)
        assert sum(item.nbytes for item in model.parameters()) == planned[after]["bfloat16"]["weights"]
        assert {*model.config.adapters.values()} == {{"02-sft": 16, "03-grpo": 32}[stage]}
    rounded, plain = (
        planned_inputs(Assembly(load(Path("questions.toml"), changed)), {"dataset": {"own": {}}})
        for changed in (given[1::2], [f"{key}={value}" for key, value in list(short.items())[1:]])
    )
    assert rounded["02-sft"]["model"]["bfloat16"] == ["encoder", "language"]
    assert all(inputs_hash(rounded[name]) != inputs_hash(plain[name]) for name in planned)


@pytest.mark.slow
def test_columns_that_are_not_found_are_told(evid, desk, vlm):
    text = Path("questions.csv").read_text().replace("question,", "Frage,")
    Path("questions.csv").write_text(text)
    assert "Call the column 'question', or name it" in init(evid, vlm, exit_code=2).stderr
    init(evid, vlm, "--column", "question=Frage", "--no-check")
    assert load(desk / "questions.toml").datasets["own"]["question_column"] == "Frage"
    assert "must be WHAT=NAME" in init(evid, vlm, "--force", "--column", "Frage", exit_code=2).stderr


@pytest.mark.slow
def test_what_follows_is_told_where_no_column_says_patient_and_split(evid, desk, vlm):
    first = Path("questions.csv").read_text().replace("subject", "case_id")
    table = first + first.partition("\n")[2].replace(",p", ",q")  # two questions about each scan
    Path("questions.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in table.splitlines()))
    said = init(evid, vlm, "--no-check").output
    assert "no column for the split: a fifth of the patients" in said
    assert "not used: case_id" in said
    assert "patients are not known: each scan counts as one, so two splits may share a patient" in said
    text = (desk / "questions.toml").read_text()
    assert "# not known: splits may share a" in text
    assert tomllib.loads(text)["dataset"]["own"]["split_column"] == ""
    stages = [stage.kind for stage in load(desk / "questions.toml").stages]
    assert stages.count("evaluate") == 2


@pytest.mark.slow
def test_a_folder_with_cases_trains_on_its_reports(evid, desk, vlm):
    lines = ["id,volume,patient,split,report"]
    lines += [f"c{n},scan{n}.nii.gz,p{n},{'train' if n < 4 else 'test'},No finding." for n in range(6)]
    Path("cases.csv").write_text("\n".join(lines))
    Path("questions.csv").unlink()
    said = init(evid, vlm, "--name", "mine", data=".").output
    assert "reports: 4 of the training cases" in said
    assert "mine.toml: nothing wrong found" in said
    kinds = [stage.kind for stage in load(desk / "mine.toml").stages]
    assert kinds == ["evaluate", "sft", "evaluate", "audit"]
    refused = init(evid, vlm, "--column", "image=volume", data=".", exit_code=2).stderr
    assert "--column goes with a table of questions" in refused


CASE, ASKED = "id,volume,patient,split", "image,patient,question,A,B,answer"
ROW, SPLIT_ROW = "scan0.nii.gz,p0,Where?,l,r,A", "scan0.nii.gz,p0,Where?,l,r,A,test"


@pytest.mark.parametrize(
    ("table", "rows", "message"),
    [
        ("cases", [CASE, "c0,scan0.nii.gz,p0,train"], "has no reports and 0 findings"),
        ("cases", [f"{CASE},report", "c0,scan0.nii.gz,p0,test,Fine."], "training case (cases: train 0, v"),
        ("questions", [ASKED, ROW, ROW], "too few patients to share out. Add a column 'split', or name"),
        ("questions", [f"{ASKED},split", *[SPLIT_ROW] * 2, "scan1.nii.gz,p1,Where?,l,r,Z,train"],
         "Rows that cannot be read: 1. The first: "),
    ],
)  # fmt: skip
def test_what_nothing_can_be_trained_on_is_refused_with_the_remedy(evid, desk, vlm, table, rows, message):
    Path("questions.csv").unlink()
    Path(f"{table}.csv").write_text("\n".join(rows))
    assert message in init(evid, vlm, data=".", exit_code=2).stderr


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("nowhere", (), "there is no such folder, and an id on the Hugging Face Hub is written OWNER/NAME"),
        ("empty", (), "the folder holds no config.json"),
        ("empty", ("--revision", COMMIT), "goes with a model on the Hub, and empty is a folder"),
        ("text", (), "--model text: a qwen2 reads text alone"),
        ("them/theirs", (), "--revision COMMIT names the commit without asking"),
        ("them/theirs", ("--revision", COMMIT), "the Hugging Face Hub did not give it"),
        pytest.param(SHIPPED, ("--revision", COMMIT, "--gpu", 4), "a scan: stage", marks=pytest.mark.slow),
        ("text", ("--data", "other.csv"), "--data other.csv: there is no such file."),
        ("text", ("--data", "broken.csv"), "--intensity says it"),  # its scan cannot be read
    ],
)
def test_what_cannot_be_used_is_refused(evid, desk, monkeypatch, model, options, message):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    Path("broken.nii.gz").write_bytes(b"not a scan")
    questions(Path("broken.csv"), ["broken.nii.gz"])
    Path("empty").mkdir()
    tiny_language(Path("text"))
    assert message in init(evid, model, *options, exit_code=2).stderr
