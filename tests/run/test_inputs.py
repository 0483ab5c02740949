import dataclasses

import pytest

from evidcore.recipe import load
from evidcore.run import code
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
    stands = {"language": "x", "model": "y"}
    assert key(recipe, 3, upstream=stands) == key(other, 3, upstream=stands)
    assert key(recipe, 2, upstream=stands) != key(other, 2, upstream=stands)


def test_a_tiny_tokenizer_depends_on_the_words_of_every_stage(recipe):
    alone = changed(recipe, stages=recipe.stages[2:])  # no stage fits the language model
    asked = changed(alone, tasks={**alone.tasks, "choice": {**alone.tasks["choice"], "x": 1}})
    fewer = dataclasses.replace(alone.stages[1].data[0], limit=3)
    grpo = dataclasses.replace(alone.stages[1], data=(fewer,))
    limited = changed(alone, stages=(alone.stages[0], grpo, *alone.stages[2:]))
    report = dataclasses.replace(alone.stages[0], data=(alone.stages[0].data[0],))
    alone, asked, limited = (
        changed(one, stages=(report, *one.stages[1:])) for one in (alone, asked, limited)
    )
    assert key(alone, 0) != key(asked, 0)
    assert key(alone, 0) != key(limited, 0)
    for upstream in ({"language": "x"}, {"model": "x"}):  # whose tokenizer it then takes
        assert key(alone, 0, upstream=upstream) == key(asked, 0, upstream=upstream)


def test_a_fit_of_the_language_model_depends_on_the_findings_of_every_data_set(recipe):
    more = changed(recipe, datasets={**recipe.datasets, "other": {"use": "phantom-chest"}})
    lock = {"dataset": {"chest": {"fingerprint": "f"}, "other": {"fingerprint": "g"}}}
    keys = [inputs_hash(stage_inputs(more, more.stages[place], lock, {})) for place in (0, 1)]
    assert keys[0] == key(recipe, 0)
    assert keys[1] != key(recipe, 1)


@pytest.mark.parametrize("module", ["stages", "parts", "model"])
def test_what_lies_between_recipe_and_stage_counts_for_every_stage(recipe, monkeypatch, tmp_path, module):
    before = [key(recipe, place) for place in range(5)]
    real = code._file
    edited = tmp_path / f"{module}.py"
    edited.write_text("changed = True\n")
    monkeypatch.setattr(
        code, "_file", lambda name: edited if name == f"evidcore.run.{module}" else real(name)
    )
    edited_keys = [key(recipe, place) for place in range(5)]
    assert not any(one == other for one, other in zip(before, edited_keys, strict=True))


def test_what_stands_after_a_stage(recipe):
    found = {}
    for place, stage in enumerate(recipe.stages):
        found = after(stage, str(place), found)
    assert found == {"encoder": "0", "language": "1", "model": "3"}
