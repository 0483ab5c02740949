"""A recipe given in Python is the recipe that its file would give, or every mistake at once."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_audit.given_recipe import given_recipe
from evidcore_plugin_phantoms.testing import SMALL

import evidcore
from evidcore.errors import RecipeError
from evidcore.recipe import load, to_toml


def tables():
    return tomllib.loads(SMALL.read_text(encoding="utf-8"))


def test_tables_give_the_recipe_that_their_file_gives(monkeypatch):
    monkeypatch.chdir(SMALL.parent)  # where relative paths start
    assert given_recipe(tables()) == given_recipe(SMALL) == given_recipe(str(SMALL)) == load(SMALL)


def test_the_text_that_a_run_keeps_of_tables_gives_them_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = given_recipe(tables())
    (tmp_path / "again.toml").write_text(result.text)
    assert load(tmp_path / "again.toml") == result
    assert result.folder == tmp_path
    assert tomllib.loads(result.text) == tables()


def test_a_resolved_recipe_as_tables_gives_itself(tmp_path):
    recipe = load(SMALL)
    assert given_recipe(tomllib.loads(to_toml(recipe))) == recipe


def test_numbers_of_numpy_and_paths_are_as_toml_holds_them():
    given = tables()
    given["seed"] = np.int64(17)
    given["stage"][0]["learning_rate"] = np.float32(0.5)
    given["model"]["encoder"]["patch_zyx"] = np.array([8, 16, 16])
    given["recipe_folder"] = SMALL.parent
    result = given_recipe(given)
    assert result.seed == 17
    assert result.stages[0].learning_rate == 0.5
    assert given_recipe(result) is result


def test_overrides_are_those_of_the_command_line():
    by_text = given_recipe(SMALL, ["stage.sft[1].steps=3", 'name="other"'])
    by_mapping = given_recipe(SMALL, {"stage.sft[1].steps": 3, "name": "other"})
    assert by_text == by_mapping
    assert (by_text.stages[2].steps, by_text.name) == (3, "other")


def test_mistakes_of_tables_are_told_all_at_once_in_the_sentences_of_a_file(tmp_path):
    given = tables()
    given["stage"][0]["stepps"] = 3
    given["dataset"]["chest"]["use"] = "phantom-chets"
    with pytest.raises(RecipeError) as of_tables:
        given_recipe(given)
    text = SMALL.read_text().replace('"phantom-chest"', '"phantom-chets"')
    (tmp_path / "wrong.toml").write_text(text.replace("steps = 1\n", "steps = 1\nstepps = 3\n"))
    with pytest.raises(RecipeError) as of_file:
        load(tmp_path / "wrong.toml")
    first, *said = str(of_tables.value).splitlines()
    assert first == "recipe given as a dict: 2 mistakes"
    told = [line.strip().partition(", ")[2] for line in str(of_file.value).splitlines()[1:]]
    assert sorted(line.strip() for line in said) == sorted(told)
    assert "Did you mean 'phantom-chest'?" in str(of_tables.value)


def test_values_that_toml_has_no_form_for_are_named():
    given = tables()
    given["seed"] = None
    given["stage"][0]["steps"] = {1}
    given["model"]["view"] = {3: "volume"}
    given["name"] = "\ud800"
    with pytest.raises(RecipeError) as refused:
        given_recipe(given)
    assert str(refused.value).splitlines() == [
        "recipe given as a dict: 4 mistakes",
        "  model.view: a key is a text, got 3.",
        "  name: must be a text, a number, true or false, a list or a table, got '\\ud800'.",
        "  seed: must be a text, a number, true or false, a list or a table, got None. Leave the key out for "
        "its default.",
        "  stage[0].steps: must be a text, a number, true or false, a list or a table, got {1}.",
    ]


def test_what_is_no_recipe_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"a path, a dict or a Recipe, got 3\."):
        evidcore.run(3)
    with pytest.raises(TypeError, match=r"a list of texts, got the text 'seed=3'"):
        evidcore.run(SMALL, overrides="seed=3")
    with pytest.raises(RecipeError, match=r"nothing\.toml: no such file"):
        evidcore.run(tmp_path / "nothing.toml")
    with pytest.raises(RecipeError, match=r"small\.toml: overrides change a recipe while it is read"):
        evidcore.run(load(SMALL), overrides={"seed": 3})
    with pytest.raises(RecipeError, match=r"overrides: 1 mistake\n  seed: must be .* got None"):
        evidcore.run(SMALL, overrides={"seed": None})
    with pytest.raises(RecipeError, match=r"command line, --set stage\.grpo\.steps=3: .* no grpo stage"):
        evidcore.run(SMALL, overrides={"stage.grpo.steps": 3})
    assert not list(Path(tmp_path).iterdir())
