import dataclasses

import pytest

from evidcore.recipe import load
from evidcore.run import code
from evidcore.run.assembly import Assembly
from evidcore.run.inputs import after, hashed_inputs, inputs_hash


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, recipe_text):
    path = tmp_path_factory.mktemp("inputs") / "tiny.toml"
    path.write_text(recipe_text, encoding="utf-8")
    return load(path)


BUILT = {}


def assembled(recipe):
    """Return what a recipe names, built once for this module."""
    if id(recipe) not in BUILT:
        BUILT[id(recipe)] = Assembly(recipe)  # which keeps the recipe alive
    return BUILT[id(recipe)]


def key(recipe, place, fingerprint="f", upstream=None, salt=""):
    lock = {"dataset": {"chest": {"fingerprint": fingerprint}}}
    stage = recipe.stages[place]
    return inputs_hash(hashed_inputs(assembled(recipe), stage, lock, upstream or {}), salt)


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
    bridge = dataclasses.replace(recipe.model, bridge={"use": "residual-alignment"})
    encoder = dataclasses.replace(recipe.model, encoder={**recipe.model.encoder, "layers": 2})
    view = dataclasses.replace(recipe.model, view={"use": "evidcore/volume"})
    for place, others in ((0, (bridge, view)), (1, (bridge, encoder))):
        for other in others:
            assert key(recipe, place) == key(changed(recipe, model=other), place)
    assert key(recipe, 0) != key(changed(recipe, model=encoder), 0)
    assert key(recipe, 1) != key(changed(recipe, model=view), 1)
    finer = dataclasses.replace(recipe.model, encoder={**recipe.model.encoder, "patch_zyx": [8, 8, 8]})
    assert key(recipe, 1) != key(changed(recipe, model=finer), 1)  # it is fitted to the number of tokens
    assert all(key(recipe, 2) != key(changed(recipe, model=other), 2) for other in (bridge, encoder, view))
    assert key(recipe, 0) == key(recipe, 0, upstream={"language": "x"})


def test_no_stage_depends_on_those_below_it(recipe):
    """But for the words of a tiny tokenizer that no stage has fitted, which have a test of their own."""
    stands = [{}, {"encoder": "x"}, {"encoder": "x", "language": "y"}, *[{"language": "y", "model": "z"}] * 2]
    for place in range(5):
        above = changed(recipe, stages=recipe.stages[: place + 1])
        assert key(recipe, place, upstream=stands[place]) == key(above, place, upstream=stands[place])


def test_a_service_counts_where_it_is_named(recipe):
    words, loud = {"kind": "labeler", "use": "phrases"}, {"kind": "labeler", "use": "negation-rules"}
    judge = {"kind": "scorer", "use": "findings-f1", "labeler": "words"}
    reward = {**recipe.stages[3].reward[0], "scorer": "judge"}
    grpo = dataclasses.replace(recipe.stages[3], reward=(reward,))
    asking = changed(
        recipe, stages=(*recipe.stages[:3], grpo, recipe.stages[4]),
        services={"words": words, "judge": judge, "idle": words},
    )  # fmt: skip
    idle = changed(asking, services={**asking.services, "idle": loud})
    other = changed(asking, services={**asking.services, "words": loud})
    assert all(key(asking, place) == key(idle, place) for place in range(5))
    assert key(asking, 3) != key(other, 3)  # which the reward names through the scorer
    assert all(key(asking, place) == key(other, place) for place in (0, 1, 2, 4))
    fitted = {"model": "z", "service.words": "w"}
    assert key(asking, 3, upstream=fitted) != key(asking, 3, upstream={**fitted, "service.words": "v"})
    assert key(asking, 4, upstream=fitted) == key(asking, 4, upstream={**fitted, "service.words": "v"})


def test_another_segmenter_of_an_evaluation_trains_nothing_again(recipe):
    grower = {"kind": "segmenter", "use": "region-growing"}
    known = changed(recipe, services={"grower": grower})
    by_service, by_table = (
        changed(known, stages=(*recipe.stages[:4], dataclasses.replace(recipe.stages[4], options=options)))
        for options in ({"segmenter": "grower"}, {"segmenter": {"use": "region-growing", "reach": 0.2}})
    )
    coarse = changed(by_service, services={"grower": {**grower, "reach": 0.2}})
    for other in (by_service, by_table, coarse):
        assert all(key(known, place) == key(other, place) for place in range(4))
    assert len({key(one, 4) for one in (known, by_service, by_table, coarse)}) == 4


def test_a_task_counts_where_it_is_asked(recipe):
    report = {**recipe.tasks["report"], "instruction": "Say it."}
    other = changed(recipe, tasks={**recipe.tasks, "report": report})
    stands = {"language": "x", "model": "y"}
    assert key(recipe, 3, upstream=stands) == key(other, 3, upstream=stands)
    assert key(recipe, 2, upstream=stands) != key(other, 2, upstream=stands)


def test_a_tiny_tokenizer_depends_on_the_words_of_every_stage(recipe):
    alone = changed(recipe, stages=recipe.stages[2:])  # no stage fits the language model
    asked = changed(alone, tasks={**alone.tasks, "choice": {**alone.tasks["choice"], "think": False}})
    fewer = dataclasses.replace(alone.stages[1].data[0], limit=3)
    grpo = dataclasses.replace(alone.stages[1], data=(fewer,))
    limited = changed(alone, stages=(alone.stages[0], grpo, *alone.stages[2:]))
    report = dataclasses.replace(alone.stages[0], data=(alone.stages[0].data[0],))
    alone, asked, limited = (
        changed(one, stages=(report, *one.stages[1:])) for one in (alone, asked, limited)
    )
    assert key(alone, 0) != key(asked, 0)
    assert key(alone, 0) != key(limited, 0)
    again = dataclasses.replace(alone.stages[0], steps=7)  # a later stage that asks the same
    assert key(alone, 0) == key(changed(alone, stages=(*alone.stages, again)), 0)
    for upstream in ({"language": "x"}, {"model": "x"}):  # whose tokenizer it then takes
        assert key(alone, 0, upstream=upstream) == key(asked, 0, upstream=upstream)


def test_a_fit_of_the_language_model_depends_on_the_findings_of_every_data_set(recipe):
    more = changed(recipe, datasets={**recipe.datasets, "other": {"use": "phantom-chest"}})
    lock = {"dataset": {"chest": {"fingerprint": "f"}, "other": {"fingerprint": "g"}}}
    keys = [inputs_hash(hashed_inputs(assembled(more), more.stages[place], lock, {})) for place in (0, 1)]
    assert keys[0] == key(recipe, 0)
    assert keys[1] != key(recipe, 1)


@pytest.mark.parametrize("module", ["context", "assembly", "model"])
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
