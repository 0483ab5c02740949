import json
import re
import shutil

import pytest
from evidcore_plugin_phantoms.testing import SMALL
from scipy import stats


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    shutil.copy(SMALL, path)
    return path


@pytest.mark.slow
def test_plan_counts_parameters_and_says_what_is_not_known(evid, recipe):
    result = json.loads(evid("plan", recipe, "--json").output)
    trained = result["parameters"]["bridge"] + result["parameters"]["language"]
    assert result["stages"][0]["trained"] == trained
    whole = trained + result["parameters"]["encoder"]
    memory = result["stages"][0]["memory"]["float32"]
    assert memory["weights"] + memory["gradients"] + memory["optimizer"] == 4 * (whole + 3 * trained)
    assert result["stages"][0]["lengths"]["ground"] == "counted"
    said = evid("plan", recipe).output
    assert "no earlier time" in said
    assert f"{memory['peak'] / 1e9:.2f} GB at the peak in float32: weights" in said
    assert "tokens (counted in the first prompts)" in said


@pytest.mark.slow
def test_plan_says_which_differences_an_evaluation_would_miss(evid, recipe):
    said = evid("plan", recipe).output
    assert "questions about 2 patients: too few patients for an interval or a verdict" in said
    said = evid("plan", recipe, "--set", "dataset.chest.test_cases=30").output
    shown = (
        r"(\d+) questions about (\d+) patients: differences below (\d+) points would be missed, below (\d+)"
    )
    questions, patients, *ends = (int(number) for number in re.search(shown, said).groups())
    assert 20 <= patients <= 30  # some are asked nothing
    reach = stats.t.ppf(0.975, patients - 1) + stats.t.ppf(0.8, patients - 1)
    assert ends == [round(100 * reach * (0.5 / count) ** 0.5) for count in (questions, patients)]


@pytest.mark.slow
def test_plan_says_whether_each_volume_is_encoded_once(evid, recipe, monkeypatch):
    features = json.loads(evid("plan", recipe, "--json").output)["features"]
    each = features["volume_bytes"]
    assert features["volumes"] == 6  # four to train on, two to test on
    said = evid("plan", recipe).output
    assert re.search(r"MB and at least 0\.\d+ CPU s a volume, .* GB for 6; each is encoded once", said)
    monkeypatch.setenv("EVID_CACHE_GB", f"{4 * each / 1e9}")
    half = ["--set", "features.memory_gb=0"]
    said = evid("plan", recipe, *half).output
    assert "has room for 0 in memory and 4 on disk, and the others are encoded whenever" in said
    half += ["--set", "features.precision='float16'", "--json"]
    rounded = json.loads(evid("plan", recipe, *half).output)
    assert each / 2 < rounded["features"]["volume_bytes"] < each


@pytest.mark.slow
def test_plan_says_what_leaves_the_machine_and_where_to(evid, recipe):
    assert "leaves this machine: nothing" in evid("plan", recipe).output
    endpoint = '{ url = "https://host.example/v1", model = "m", sends_text_away = true }'
    service = f'[service.asked]\nkind = "labeler"\nuse = "endpoint"\nendpoint = {endpoint}\n'
    recipe.write_text(recipe.read_text().replace("[model]", f"{service}\n[model]", 1))
    (sent,) = json.loads(evid("plan", recipe, "--json").output)["sends"]
    assert sent.startswith("texts of ")
    assert sent.endswith(", to https://host.example/v1 (service.asked.endpoint)")
    shown = service.replace("text", "images").replace("labeler", "reader")
    shown = shown.replace('"endpoint"', '"endpoint-reader"')
    recipe.write_text(recipe.read_text().replace(service, f"{service}\n{shown.replace('asked', 'shown', 1)}"))
    _, images = json.loads(evid("plan", recipe, "--json").output)["sends"]
    assert images.startswith("images of ")
    assert images.endswith(", to https://host.example/v1 (service.shown.endpoint)")
    recipe.write_text(recipe.read_text().replace("sends_text_away = true", "sends_text_away = false"))
    refused = evid("plan", recipe, exit_code=2).stderr
    assert "text would be sent to 'host.example'" in refused


def test_plan_says_which_models_judges_are_loaded_from(evid, recipe):
    named = '{ use = "reward-model", model = { id = "them/theirs", revision = "0a1b" } }'
    line = f"rescue = {named}"
    recipe.write_text(recipe.read_text().replace('kind = "evaluate"', f'kind = "evaluate"\n{line}', 1))
    of_package, download = json.loads(evid("plan", recipe, "--json").output)["downloads"]
    assert of_package.endswith("(evidcore-plugin-reports)")
    where = "from the Hugging Face Hub, for stage.02-evaluate.rescue.model"
    assert download == f"them/theirs at 0a1b, {where}: see its page for its size and licence"


@pytest.mark.slow
def test_plan_says_what_one_of_several_processes_holds(evid, recipe):
    dealt = ["--set", "stage.sft[0].rows_per_forward=1", "--set", "stage.sft[1].rows_per_forward=2"]

    def planned(*words):
        told = json.loads(evid("plan", recipe, "--json", *dealt, *words).output)
        return told["stages"][0]["memory"]["float32"]

    item, two = planned(), ("--processes", "2")
    sharded = planned(*two, "--set", 'stage.sft[0].trl={fsdp="full_shard"}')
    assert sharded["weights"] == item["weights"] // 2
    assert sharded["peak"] < item["peak"]
    assert planned(*two)["buckets"] == item["gradients"]
    refused = evid("plan", recipe, "--processes", "3", exit_code=2).stderr
    assert "cannot be dealt to 3 processes with 2 in a pass; take a multiple of 6." in refused


@pytest.mark.slow
def test_a_slice_that_is_shown_counts_as_a_slice(evid, recipe):
    by_slices = [
        "--set", "model.view.use='slices'", "--set", "model.encoder.patch_zyx=[1, 8, 8]",
        "--set", "model.bridge.pool_zyx=[1, 2, 2]",
    ]  # fmt: skip
    whole = json.loads(evid("plan", recipe, *by_slices[2:], "--json").output)["stages"][0]
    slices = json.loads(evid("plan", recipe, *by_slices, "--json").output)["stages"][0]
    assert whole["lengths"]["volumes"] == slices["lengths"]["size_zyx"][0] == 1
    assert slices["lengths"]["volumes"] == 8
    most = 1.3 * whole["memory"]["float32"]["activations"] * slices["lengths"]["prompt_tokens"]
    assert slices["memory"]["float32"]["activations"] < most / whole["lengths"]["prompt_tokens"]


@pytest.mark.slow
def test_rows_that_share_a_volume_are_counted_as_they_are_packed(evid, recipe):
    def needs(many):
        packed = [f"stage.sft[0].questions_per_volume={many}", "stage.sft[0].rows_per_step=8"]
        more_tokens = ["model.encoder.patch_zyx=[1, 8, 8]", "model.bridge.pool_zyx=[1, 2, 2]"]
        given = [word for text in packed + more_tokens for word in ("--set", text)]
        [stage, *_] = json.loads(evid("plan", recipe, *given, "--json").output)["stages"]
        assert stage["lengths"]["text_tokens"] < stage["lengths"]["prompt_tokens"]
        return stage["memory"]["float32"]

    apart, packed = needs(1), needs(4)
    assert packed["activations"] < apart["activations"]
    assert packed["head"] == apart["head"]
    assert needs(16)["activations"] > 0  # more than the rows of a step, which the stage itself refuses
