import dataclasses

import pytest

from evidcore.recipe import load
from evidcore.run.inputs import after, inputs_hash, stage_inputs


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, recipe_text):
    path = tmp_path_factory.mktemp("inputs") / "tiny.toml"
    path.write_text(recipe_text, encoding="utf-8")
    return load(path)


def key(recipe, place, fingerprint="f", upstream=None, salt=""):
    lock = {"dataset": {"chest": {"fingerprint": fingerprint}}}
    return inputs_hash(stage_inputs(recipe, recipe.stages[place], lock, upstream or {}), salt)


def changed(recipe, **parts):
    return dataclasses.replace(recipe, **parts)


def test_equal_inputs_have_equal_hashes(recipe):
    assert key(recipe, 3) == key(recipe, 3)


def test_what_a_stage_depends_on_changes_its_hash(recipe):
    for place in range(5):
        assert key(recipe, place) != key(changed(recipe, seed=3), place)
        assert key(recipe, place) != key(recipe, place, fingerprint="g")
        assert key(recipe, place) != key(recipe, place, salt="run")
    assert key(recipe, 3) != key(recipe, 3, upstream={"model": "x"})


def test_a_fit_depends_on_its_own_component_alone(recipe):
    bridge = dataclasses.replace(recipe.model, bridge={**recipe.model.bridge, "pool": 3})
    other = changed(recipe, model=bridge)
    assert key(recipe, 0) == key(other, 0)
    assert key(recipe, 1) != key(other, 1)  # the language model is fitted to the bridge's number of tokens
    assert key(recipe, 2) != key(other, 2)
    assert key(recipe, 0) == key(recipe, 0, upstream={"language": "x"})


def test_a_task_counts_where_it_is_asked(recipe):
    other = changed(recipe, tasks={**recipe.tasks, "report": {**recipe.tasks["report"], "x": 1}})
    assert key(recipe, 3) == key(other, 3)
    assert key(recipe, 2) != key(other, 2)


def test_what_stands_after_a_stage(recipe):
    found = {}
    for place, stage in enumerate(recipe.stages):
        found = after(stage, str(place), found)
    assert found == {"encoder": "0", "language": "1", "model": "3"}
