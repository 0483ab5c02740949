"""`evid tour`: models as their recipe says, figures that are computed, a page that is whole or absent."""

import dataclasses
import json
import signal
import subprocess
import sys

import pytest
from evidcore_plugin_audit.external import NAME as STAGE
from evidcore_plugin_tour.shipped import MADE, MODELS, RECIPE, SCAN, TASK, TRAINING, WORDS
from evidcore_plugin_tour.side_by_side import ending, first_sentence
from safetensors import safe_open

from evidcore.recipe import load
from evidcore.recipe.resolve import stage_table
from evidcore.registry.factory import build
from evidcore.runs.folder import sha256

MODELS_BYTES, WHEEL_BYTES = 1_500_000, 4_000_000
INTERVAL = {"low": 0.5, "high": 0.7, "questions": 8, "patients": 4}


def test_the_models_are_those_that_the_training_recipe_describes(tmp_path):
    made, recipe = json.loads(MADE.read_text()), load(TRAINING)
    assert made["recipe"] == sha256(TRAINING)
    drawn = {
        name: build("dataset", table, given={"cache_folder": tmp_path}, where=name).fingerprint()
        for name, table in recipe.datasets.items()
    }
    stages = {WORDS.name: recipe.stages[2], SCAN.name: recipe.stages[3]}
    for name, stage in stages.items():
        kept = made["models"][name]
        asked = json.loads(json.dumps(stage_table(stage)))
        assert {key: asked[key] for key in kept["stage"]} == kept["stage"]
        assert kept["dataset"] == drawn
        assert kept["weights"] == sha256(MODELS / name / "model.safetensors")
    assert [stage.volumes for stage in stages.values()] == ["blank", "own"]
    assert dataclasses.replace(stages[WORDS.name], volumes="own", arm="") == stages[SCAN.name]  # else alike


@pytest.mark.parametrize("model", [SCAN, WORDS], ids=lambda model: model.name)
def test_a_model_is_small_and_of_the_parts_that_the_recipes_name(model):
    weights = model.folder / "model.safetensors"
    assert weights.stat().st_size <= MODELS_BYTES
    with safe_open(weights, "pt") as file:
        assert {str(file.get_slice(key).get_dtype()) for key in file.keys()} == {"F16"}  # noqa: SIM118
    config = json.loads((model.folder / "config.json").read_text())
    for recipe in (load(RECIPE), load(TRAINING)):
        assert config["encoder"] == recipe.model.encoder
        assert config["bridge"] == recipe.model.bridge


def test_what_is_asked_is_of_other_patients_than_the_training():
    asked, trained = (load(path).datasets["chest"]["seed"] for path in (RECIPE, TRAINING))
    assert asked != trained


def test_the_package_is_small():
    files = [path for path in MODELS.parent.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= WHEEL_BYTES


def result(own, blank, verdict):
    """A result as an audit writes it."""
    shown = {"own": own, "other-patient": 0.25, "blank": blank, "twin": 0.5}
    told = {"metric": "strict_accuracy", "headline": True, **INTERVAL}
    rows = [{"name": name, "condition": name, "value": value, **told} for name, value in shown.items()]
    others = {"prior_only": 0.5, "uniform_chance": 0.25}
    others |= {"own_minus_blind_rule": own - 0.5, "own_minus_blind": own - blank}
    rows += [{"name": TASK, "metric": name, "value": value, **INTERVAL} for name, value in others.items()]
    return {"rows": rows, "verdict": {TASK: verdict}}


def test_the_last_screen_has_twelve_lines_with_the_page():
    seen = "What is asked is seen: +50.0 points over the best. It falls."
    lines = ending({"a": result(1.0, 0.25, seen), "b": result(0.5, 0.5, "No sign: +0.0 points.")})
    assert len(lines) == 11
    assert lines[0].split() == ["8", "questions,", "4", "phantoms,", "%", "a", "b"]
    assert lines[1].split("  ")[0] == "own scan"
    assert "100.0 (50.0 to 70.0)" in lines[1]
    assert "+75.0 (+50.0 to +70.0)" in lines[8]
    assert lines[9:] == ["a: What is asked is seen: +50.0 points over the best.", "b: No sign: +0.0 points."]


def test_a_first_sentence_keeps_decimals():
    text = "It gains +2.5 points, at most 3.5. Then more."
    assert first_sentence(text) == text.removesuffix(" Then more.")
    assert first_sentence("One alone.") == "One alone."


def test_a_place_that_cannot_be_written_is_a_sentence(evid):
    done = evid("tour", "--out", "/sys/evid-tour", exit_code=2)
    assert "/sys/evid-tour" in done.stderr
    assert "Give a place that can be written" in done.stderr


@pytest.fixture(scope="module")
def told(tmp_path_factory, evid):
    """What the command says as JSON, and the folder that it was called in."""
    folder = tmp_path_factory.mktemp("tour")
    return json.loads(evid("tour", "--out", folder / "runs", "--json").stdout), folder


@pytest.mark.slow
def test_one_model_beats_the_best_blind_rule_and_the_other_does_not(told):
    models = told[0]["models"]
    scan, words = models[SCAN.name], models[WORDS.name]
    assert scan["own_minus_blind_rule"]["low"] > 0
    assert scan["own_minus_blind"]["low"] > 0
    assert scan["verdict"].startswith("What is asked is seen")
    assert words["own_minus_blind_rule"]["low"] <= 0
    assert words["verdict"].startswith("No sign that looking helps")


@pytest.mark.slow
def test_a_score_without_a_look_is_far_above_an_option_at_random(told):
    words = told[0]["models"][WORDS.name]
    assert words["own"]["low"] > words["uniform_chance"]["value"] == 0.25
    for showing in ("other-patient", "blank", "twin"):
        assert words[showing]["value"] == pytest.approx(words["own"]["value"], abs=0.03)


@pytest.mark.slow
def test_the_figures_are_those_of_the_answers(told):
    for name, result in told[0]["models"].items():
        lines = (told[1] / "runs" / f"tour-{name}").glob(f"*/answers/{STAGE}.jsonl")
        (answers,) = ([json.loads(line) for line in path.read_text().splitlines()] for path in lines)
        own = [line for line in answers if line["condition"] == "own"]
        right = [line["choice"] == line["answer"] for line in own]
        assert result["own"]["questions"] == len(right)
        assert result["own"]["value"] == pytest.approx(sum(right) / len(right))


@pytest.mark.slow
def test_the_page_shows_both_and_leads_to_all_answers(told):
    page = told[1] / "runs" / "tour" / "index.html"
    assert told[0]["page"] == str(page)
    text = page.read_text()
    for name, result in told[0]["models"].items():
        assert f"<h2>tour-{name}</h2>" in text
        assert result["verdict"].partition(":")[0] in text
        (own,) = (told[1] / "runs" / f"tour-{name}").glob("*/page/index.html")
        assert f'href="../tour-{name}/{own.parts[-3]}/page/index.html"' in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


@pytest.mark.slow
def test_a_second_run_gives_the_same_figures_and_a_new_page(told, evid):
    before = (told[1] / "runs" / "tour" / "index.html").read_text()
    again = json.loads(evid("tour", "--out", told[1] / "runs", "--json").stdout)
    for name, result in told[0]["models"].items():
        assert {**again["models"][name], "run": ""} == {**result, "run": ""}
    assert sorted(path.name for path in (told[1] / "runs" / "tour").iterdir()) == ["index.html"]
    assert (told[1] / "runs" / "tour" / "index.html").read_text() != before  # links to the new runs


@pytest.mark.slow
def test_a_tour_that_is_told_to_stop_leaves_no_page(tmp_path):
    command = [sys.executable, "-m", "evidcore", "tour"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("2 of 2"):
                process.send_signal(signal.SIGTERM)
                break
        process.communicate()
    assert process.returncode in (143, -signal.SIGTERM)
    assert not (tmp_path / "runs" / "tour").exists()
