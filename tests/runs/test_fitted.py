"""Stages that ship with a recipe: used where recipe and data are the same, whatever became of the code."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

from evidcore.cache import publish
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.fitted import Fitted
from evidcore.runs.inputs import after, hashed_inputs, inputs_hash, lock_table

INPUTS = {
    "stage": {"kind": "fit", "steps": 4}, "seed": 17, "dataset": {"chest": {"fingerprint": "f"}},
    "upstream": {}, "code": {"evidcore": "a"}, "versions": {"torch": "2.1"},
}  # fmt: skip
RECIPES = Path(__file__).parents[2] / "recipes"
ship = runpy.run_path(str(RECIPES.with_name("benchmarks") / "ship_stages.py"))["ship"]
LOCK = {"dataset": {"chest": {"fingerprint": "f"}}}


def stored(store, inputs, **result):
    """Make a stage folder as a run leaves it."""
    folder = store / inputs_hash(inputs)
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "model.safetensors").write_bytes(b"weights")
    (folder / "inputs.json").write_text(json.dumps(inputs))
    (folder / "metrics.jsonl").write_text("")
    result = {"stage": "01-fit-encoder", "kind": "fit", "took_s": None, "rows": [], **result}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def shipped(tmp_path):
    """A folder with one stage in it."""
    ship(stored(tmp_path / "built", INPUTS, took_s=150.0), tmp_path / "shipped")
    return tmp_path / "shipped"


def brought(folder, inputs, store, given=()):
    place = store / inputs_hash(inputs)
    store.mkdir(exist_ok=True)
    Fitted(folder, given).restore(inputs, place)
    return json.loads((place / "result.json").read_text()) if place.is_dir() else None


def test_a_stage_with_the_same_inputs_is_brought_with_its_weights(shipped, tmp_path):
    result = brought(shipped, INPUTS, tmp_path / "store")
    assert result["fitted_before"] == "fitted before, by this recipe in 2.5 minutes"
    weights = tmp_path / "store" / inputs_hash(INPUTS) / "checkpoint" / "model.safetensors"
    assert weights.read_bytes() == b"weights"
    assert [path.name for path in (tmp_path / "store").iterdir()] == [inputs_hash(INPUTS)]


def test_of_two_processes_that_finish_the_same_stage_the_first_counts(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
        publish(tmp_path / name, tmp_path / "key")
    assert (tmp_path / "key" / "file").read_text() == "first"
    assert not (tmp_path / "second").exists()
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "gone", tmp_path / "other")


def test_what_of_code_and_versions_changed_since_is_told(shipped, tmp_path):
    now = {**INPUTS, "code": {"evidcore": "b"}, "versions": {"torch": "2.2"}}
    said = brought(shipped, now, tmp_path / "store")["fitted_before"]
    assert said.endswith("; changed since: code.evidcore, versions.torch")


@pytest.mark.parametrize(
    "change",
    [{"seed": 18}, {"stage": {"kind": "fit", "steps": 5}}, {"dataset": {"chest": {"fingerprint": "g"}}},
     {"upstream": {"encoder": "x"}}, {"files": {"words.txt": "h"}}, {"findings": ["cyst"]}],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_stage_of_another_recipe_or_other_data_is_not(shipped, tmp_path, change):
    assert brought(shipped, {**INPUTS, **change}, tmp_path / "store") is None


def test_an_option_that_came_later_counts_where_the_recipe_gives_it(shipped, tmp_path):
    now = {**INPUTS, "stage": {**INPUTS["stage"], "warmup": 0}}
    assert brought(shipped, now, tmp_path / "store", [("stage", 0, "warmup")]) is None
    assert brought(shipped, now, tmp_path / "store", [("stage", 0, "steps")]) is not None


def test_a_stage_is_brought_after_the_one_that_it_starts_from_and_both_can_be_shipped_again(
    shipped, tmp_path
):
    later = {**INPUTS, "stage": {"kind": "sft"}, "upstream": {"encoder": inputs_hash(INPUTS)}}
    ship(stored(tmp_path / "built", later), shipped)
    for code in ("b", "c"):
        now = {**INPUTS, "code": {"evidcore": code}}
        after = {**later, "code": {"evidcore": code}, "upstream": {"encoder": inputs_hash(now)}}
        fitted, store = Fitted(shipped), tmp_path / f"store-{code}"
        store.mkdir()
        fitted.restore(after, store / "too-early")
        assert not list(store.iterdir())
        for inputs in (now, after):
            fitted.restore(inputs, store / inputs_hash(inputs))
            assert (store / inputs_hash(inputs) / "result.json").is_file()
        shipped = tmp_path / f"shipped-{code}"
        for inputs in (now, after):
            ship(store / inputs_hash(inputs), shipped)
    result = json.loads((store / inputs_hash(now) / "result.json").read_text())
    assert result["fitted_before"].startswith("fitted before, by this recipe in 2.5 minutes; changed since")


SHIPPING = [path for path in sorted(RECIPES.glob("*.toml")) if load(path).fitted_folder]


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPING, ids=lambda path: path.stem)
def test_all_that_ships_with_a_recipe_is_what_it_would_run(tmp_path, path):
    recipe = load(path)
    assembly = Assembly(recipe)
    lock = lock_table(recipe, assembly.datasets)
    fitted = Fitted(recipe.fitted_folder, recipe.origins)
    upstream = {"": {}}  # of the recipe's line, and of each arm from where it leaves it
    for stage in recipe.stages:
        before = upstream.get(stage.arm, upstream[""])
        inputs = hashed_inputs(assembly, stage, lock, before)
        place = tmp_path / inputs_hash(inputs)
        fitted.restore(inputs, place)
        upstream[stage.arm] = after(stage, place.name, before)
    shipped = [json.loads(file.read_text())["stage"] for file in recipe.fitted_folder.glob("*/result.json")]
    used = len(list(tmp_path.iterdir()))
    assert used == len(shipped) or (used > 0 and recipe.fitted_folder.name != path.stem), shipped  # another's


def test_files_that_options_name_count_with_their_content(tmp_path, recipe_text):
    keys = []
    labels = '\n[service.told]\nkind = "labeler"\nuse = "labels-file"\npath = "labels.json"\nsha256 = "0"\n'
    reward = 'use = "report-consistency"\nscorer = { use = "findings-f1", labeler = "told" }'
    for place, content in (("here", "{}"), ("there", "{}"), ("there", '{"a": 1}')):
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        (folder / "labels.json").write_text(content, encoding="utf-8")
        text = recipe_text.replace("[model]", f"{labels}\n[model]", 1)
        text = text.replace('use = "choice-accuracy"', f'use = "choice-accuracy"\n[[stage.reward]]\n{reward}')
        (folder / "tiny.toml").write_text(text, encoding="utf-8")
        assembly = Assembly(load(folder / "tiny.toml"))
        stages = assembly.recipe.stages
        keys.append([inputs_hash(hashed_inputs(assembly, stage, LOCK, {})) for stage in stages])
    here, there, changed = keys
    assert here == there
    assert [item != other for item, other in zip(there, changed, strict=True)] == [False] * 3 + [True, False]


@pytest.mark.slow
def test_a_run_elsewhere_uses_shipped_fits_and_a_fresh_one_does_not(done, evid, tmp_path):
    kept = tmp_path / "recipes" / "kept"
    for stage in ("01-fit-encoder", "02-fit-language"):
        ship((done / "checkpoints" / stage).resolve().parent, kept)
    recipe = tmp_path / "recipes" / "tiny.toml"
    text = evid.recipe.read_text(encoding="utf-8").replace("schema = 1", 'schema = 1\nfitted = "kept"')
    recipe.write_text(text, encoding="utf-8")
    said = evid("run", recipe, "--out", "elsewhere").stdout
    assert said.count("fitted before, by this recipe in ") == 2
    (run,) = (evid.folder / "elsewhere" / "tiny").glob("2*")
    for stage in ("03-sft", "04-grpo"):
        own, first = (item / "checkpoints" / stage / "model.safetensors" for item in (run, done))
        assert own.read_bytes() == first.read_bytes()
    assert "fitted before, by this recipe" in (run / "page" / "index.html").read_text(encoding="utf-8")
    shutil.rmtree(run.parent)
    assert "fitted before" not in evid("run", recipe, "--out", "elsewhere", "--fresh").stdout
