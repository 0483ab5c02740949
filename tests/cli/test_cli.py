import json
import sys
import tomllib

import jsonschema
import pytest
from evidcore_plugin_reports.task import ReportTask
from evidcore_testing.recipes import phantoms, recipe_text

from evidcore.builtin.choice import Choice

RECIPE = recipe_text(
    {"kind": "sft", "train": ["bridge", "language"], "data": [{"dataset": "chest", "task": "report"}],
     "steps": 4, "learning_rate": 2e-3},
    {"kind": "evaluate", "data": [{"dataset": "chest", "task": "choice", "split": "test"}]},
    dataset={"chest": phantoms(6, 2, 4, questions_per_finding=1)},
    model={"encoder": {"use": "vit3d"}},
)  # fmt: skip


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_the_version_is_told(evid):
    assert "0.1.0" in evid("--version").output


def test_every_command_of_the_design_takes_json(evid):
    for path in ("run", "resume", "check", "plugins", "show", "audit policy", "data prepare"):
        assert "--json" in evid(*path.split(), "--help").output, path


def test_plugins_lists_kind_name_package_and_target(evid):
    row = next(line for line in evid("plugins", "scorer").output.splitlines() if "token-f1" in line)
    assert row.split() == ["scorer", "token-f1", "evidcore", "0.1.0", "evidcore.builtin.scorers:TokenF1"]
    result = json.loads(evid("plugins", "scorer", "--json").output)
    assert {item["name"] for item in result["components"]} >= {"token-f1", "findings-f1"}
    assert all(item["broken"] is None for item in result["components"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plugins", "rewrd"], "no component kind is called 'rewrd'. Did you mean 'reward'?"),
        (["show", "fromat"], "called 'fromat'. Did you mean 'format'?"),
        (["show"], "give the NAME"),
    ],
)
def test_what_is_not_there_is_answered_with_the_nearest(evid, words, said):
    assert said in evid(*words, exit_code=2).stderr


def test_show_gives_options_with_types_bounds_and_defaults(evid):
    text = evid("show", "phantom-chest").output
    assert "dataset phantom-chest, from evidcore-plugin-phantoms 0.1.0" in text
    assert "prior_strength: float, from 0 to 1 = 0.0" in text
    result = json.loads(evid("show", "phantom-chest", "--json").output)[0]
    assert next(item for item in result["options"] if item["name"] == "seed")["default"] == 17


@pytest.mark.slow
def test_show_tells_every_component_that_is_installed(evid):
    result = json.loads(evid("plugins", "--json").output)
    for item in result["components"]:
        shown = json.loads(evid("show", item["name"], "--kind", item["kind"], "--json").output)
        assert shown[0]["about"], item["name"]
    keys = {row["name"] for row in json.loads(evid("show", "sft", "--json").output)[0]["options"]}
    assert keys >= {"data", "learning_rate", "rows_per_step", "reweighter"}  # of four modules


def test_the_schema_accepts_the_recipe_and_names_every_component(evid, recipe):
    schema = json.loads(evid("show", "--schema").output)
    assert schema["$defs"]["encoder"]["anyOf"]
    names = [item["properties"]["use"]["enum"][0] for item in schema["$defs"]["reward"]["anyOf"]]
    assert {"format", "choice-accuracy"} <= set(names)
    jsonschema.validate(tomllib.loads(RECIPE), schema)
    wrong = tomllib.loads(RECIPE.replace("steps = 4", "stepps = 4"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_a_mistake_is_printed_without_traceback_and_exits_2(evid, recipe):
    result = evid("check", recipe, "--set", "stage.sft.stepz=1", exit_code=2)
    assert "command line, stage.sft.stepz: unknown key. Did you mean 'steps'?" in result.stderr
    assert "Traceback" not in result.stderr
    result = evid("check", recipe, "--set", "stage.sft.stepz=1", "--json", exit_code=2)
    assert "stepz" in json.loads(result.stdout)["error"]["message"]


def test_what_components_print_is_not_in_the_json(evid, recipe, monkeypatch):
    real = ReportTask.prompts

    def talking(self, *args):
        for part in ("asked", "\n", json.dumps({"asked": True}), "\n"):  # as `print` writes
            sys.stdout.write(part)
        return real(self, *args)

    monkeypatch.setattr(ReportTask, "prompts", talking)
    said = evid("check", recipe, "--json")
    assert json.loads(said.stdout)["data"]
    assert 'asked\n{"asked": true}\n' in said.stderr


def test_an_audit_of_one_patient_is_refused(evid, recipe):
    text = RECIPE.replace('kind = "evaluate"', 'kind = "audit"').replace('"test" }', '"test", limit = 1 }')
    recipe.write_text(text)
    said = evid("check", recipe, exit_code=2).stderr
    assert "02-audit.data[0]: its questions are about 1 patient, and an audit compares" in said


def test_a_letter_that_is_always_right_is_told(evid, recipe, monkeypatch, caplog):
    real, is_a = Choice.prompts, lambda prompt: prompt.reference["letter"] == "A"
    monkeypatch.setattr(Choice, "prompts", lambda *given: list(filter(is_a, real(*given))))
    evid("check", recipe)
    assert "02-evaluate.data[0]: the right letter of all 4 questions is 'A', so an answer" in caplog.text


@pytest.mark.slow
def test_check_reads_first_cases_and_counts_tokens(evid, recipe):
    text = evid("check", recipe).output
    assert "01-sft               chest train, report" in text
    assert "a volume: 8 x 8 x 8 = 512 patches -> 64 visual tokens" in text
    assert "M frozen" in text
    assert "not checked" not in text
    assert "nothing wrong found" in text
    rows = json.loads(evid("check", recipe, "--json").output)["data"]
    assert [row["stage"] for row in rows] == ["01-sft", "02-evaluate"]
    assert rows[0]["prompt_tokens"] > rows[0]["image_tokens"] > 0
    assert rows[1]["prompt"].startswith("<|im_start|>user\n<|vision_start|>")


def test_check_says_what_only_a_download_would_tell(evid, recipe):
    unknown = 'model.language={ id = "someone/unknown", revision = "abc" }'
    text = evid("check", recipe, "--set", unknown).output
    assert "chest train, report          6 cases, 6 patients; tokens not known before the download" in text
    assert "None" not in text
    assert "weights of someone/unknown are not here" in text


def test_a_labeler_within_a_stage_knows_the_recipes_folder(evid, recipe, tmp_path):
    labels = f'{{ use = "labels-file", path = "labels.json", sha256 = "{"0" * 64}" }}'
    line = f'reweighter = {{ use = "abnormality", labeler = {labels} }}'
    recipe.write_text(RECIPE.replace('kind = "sft"', f'kind = "sft"\n{line}', 1))
    evid("check", recipe)
    recipe.write_text(recipe.read_text().replace("sha256", "sha"))
    said = evid("check", recipe, exit_code=2).stderr
    assert "reweighter.labeler.sha256: missing" in said
