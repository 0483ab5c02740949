"""Runs through the command line: whole, used again, killed, changed."""

import json
import time
import tomllib
from dataclasses import replace as changed

import pytest

from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.folder import read_lines
from evidcore.runs.inputs import hashed_inputs, inputs_hash

pytestmark = pytest.mark.slow

STAGES = ["01-fit-encoder", "02-fit-language", "03-sft", "04-grpo", "05-evaluate"]


def lines(path):
    """Return the lines of a JSON lines file without what a clock says."""
    return [
        {key: value for key, value in line.items() if "_s/" not in key and not key.endswith("_s")}
        for line in read_lines(path)
    ]


def kill_at(evid, out, stage, step):
    """Start a run, kill it at a step, and return its folder."""
    process = evid.start("run", evid.recipe, "--out", out, "--fresh")
    while process.poll() is None:
        for metrics in (evid.folder / out).glob("tiny/*/metrics.jsonl"):
            steps = [json.loads(line) for line in metrics.read_text(encoding="utf-8").split("\n")[:-1]]
            if any(line["stage"] == stage and line["step"] >= step for line in steps):
                process.kill()
                process.communicate()
                return metrics.parent
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def test_a_run_leaves_everything_where_it_belongs(evid, done):
    assert (done / "recipe.toml").read_text() == evid.recipe.read_text()
    assert json.loads((done / "STATUS").read_text())["state"] == "finished"
    assert sorted(path.stem for path in (done / "results").glob("*.json")) == STAGES
    assert sorted(path.name for path in (done / "checkpoints").iterdir()) == STAGES[:4]
    assert (done / "checkpoints" / "04-grpo" / "model.safetensors").is_file()
    assert not (done / "checkpoints" / "04-grpo" / "steps").exists()
    assert len(lines(done / "rollouts" / "04-grpo.jsonl")) == 12
    assert {line["stage"] for line in lines(done / "metrics.jsonl")} == set(STAGES[:4])
    assert (done / "answers" / "05-evaluate.jsonl").is_file()
    assert (done / "page" / "index.html").is_file()
    result = json.loads((done / "results" / "05-evaluate.json").read_text())
    assert result["kind"] == "evaluate"
    assert set(result["reference_lines"]["choice"]) == {"uniform_chance", "prior_only", "perfect_perception"}
    lock = tomllib.loads((done / "lock.toml").read_text())
    assert lock["package"]["evidcore"]["components"]["reward/random"] == "evidcore.builtin.rewards:Random"
    assert set(lock["versions"]) >= {"python", "torch", "transformers", "trl"}


def test_unchanged_stages_are_used_again_and_changed_ones_are_not(evid, done):
    again = evid.run("--set", "stage.grpo.steps=2")
    for stage in STAGES[:3]:
        assert (again / "checkpoints" / stage).resolve() == (done / "checkpoints" / stage).resolve()
    assert (again / "checkpoints" / "04-grpo").resolve() != (done / "checkpoints" / "04-grpo").resolve()
    known = [line for line in lines(again / "metrics.jsonl") if line["stage"] == "03-sft"]
    assert [line.pop("reused") for line in known] == [True] * 4
    assert known == [line for line in lines(done / "metrics.jsonl") if line["stage"] == "03-sft"]


def test_a_stage_that_moved_in_the_recipe_is_used_again_under_its_new_name(evid, done):
    text = evid.recipe.read_text()
    stage = text[text.rindex('[[stage]]\nkind = "evaluate"') :]
    moved = evid.folder / "moved.toml"
    moved.write_text(
        text.replace('[[stage]]\nkind = "grpo"', stage + '\n[[stage]]\nkind = "grpo"'), encoding="utf-8"
    )
    again = evid.folder / json.loads(evid("run", moved, "--json").stdout)["run"]
    assert (again / "checkpoints" / "05-grpo").resolve() == (done / "checkpoints" / "04-grpo").resolve()
    assert {line["stage"] for line in lines(again / "rollouts" / "05-grpo.jsonl")} == {"05-grpo"}
    assert json.loads((again / "results" / "06-evaluate.json").read_text())["stage"] == "06-evaluate"


@pytest.mark.parametrize(("stage", "step"), [("03-sft", 3), ("04-grpo", 5)])
def test_a_run_resumed_after_a_kill_gives_the_same_bits(evid, done, stage, step):
    folder = kill_at(evid, f"killed-{stage}", stage, step)
    assert json.loads((folder / "STATUS").read_text())["state"] == "running"
    evid("resume", folder)
    for name in ("checkpoints/03-sft/model.safetensors", "checkpoints/04-grpo/model.safetensors"):
        assert (folder / name).read_bytes() == (done / name).read_bytes(), name
    for name in ("metrics.jsonl", "rollouts/04-grpo.jsonl", "answers/05-evaluate.jsonl"):
        assert lines(folder / name) == lines(done / name), name


def test_what_was_begun_with_other_inputs_is_begun_anew(evid, done):
    folder = kill_at(evid, "changed", "03-sft", 3)
    begun = folder / "working" / "03-sft" / "inputs.json"
    assert list((begun.parent / "checkpoint" / "steps").glob("checkpoint-*/complete"))
    inputs = json.loads(begun.read_text())
    begun.write_text(json.dumps({**inputs, "versions": {**inputs["versions"], "torch": "0.1"}}))
    shown = evid("resume", folder).stderr
    torch = inputs["versions"]["torch"]
    assert f"working/03-sft: begun with other inputs (versions.torch: 0.1 -> {torch}), so" in shown
    steps = [line["step"] for line in lines(folder / "metrics.jsonl") if line["stage"] == "03-sft"]
    assert steps == [1, 2, 3, 4]
    name = "checkpoints/03-sft/model.safetensors"
    assert (folder / name).read_bytes() == (done / name).read_bytes()
    assert (
        json.loads((folder / "checkpoints" / "03-sft").resolve().with_name("inputs.json").read_text())
        == inputs
    )


def test_a_resume_refuses_changed_data_and_shows_the_difference(evid, done):
    text = (done / "lock.toml").read_text()
    fingerprint = tomllib.loads(text)["dataset"]["chest"]["fingerprint"]
    (done / "lock.toml").write_text(text.replace(fingerprint, "0123456789abcdef"))
    shown = evid("resume", done, exit_code=2).stderr
    assert f"dataset.chest.fingerprint: 0123456789abcdef -> {fingerprint}" in shown
    assert f"evid resume {done} --accept-changes" in shown
    evid("resume", done, "--accept-changes")
    accepted = tomllib.loads((done / "lock.toml").read_text())["run"]["accepted"]
    assert accepted == [f"dataset.chest.fingerprint: 0123456789abcdef -> {fingerprint}"]
    evid("resume", done)


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


def test_what_a_stage_depends_on_changes_its_hash(recipe):
    for index in range(5):
        assert key(recipe, index) != key(changed(recipe, seed=3), index)
        assert key(recipe, index) != key(recipe, index, fingerprint="g")
        assert key(recipe, index) != key(recipe, index, salt="run")
    assert key(recipe, 3) != key(recipe, 3, upstream={"model": "x"})


def test_a_fit_depends_on_its_own_component_alone(recipe):
    bridge = changed(recipe.model, bridge={"use": "residual-alignment"})
    encoder = changed(recipe.model, encoder={**recipe.model.encoder, "layers": 2})
    view = changed(recipe.model, view={"use": "evidcore/volume"})
    for place, others in ((0, (bridge, view)), (1, (bridge, encoder))):
        for other in others:
            assert key(recipe, place) == key(changed(recipe, model=other), place)
    assert key(recipe, 0) != key(changed(recipe, model=encoder), 0)
    assert key(recipe, 1) != key(changed(recipe, model=view), 1)
    finer = changed(recipe.model, encoder={**recipe.model.encoder, "patch_zyx": [8, 8, 8]})
    assert key(recipe, 1) != key(changed(recipe, model=finer), 1)  # it is fitted to the number of tokens
    assert all(key(recipe, 2) != key(changed(recipe, model=other), 2) for other in (bridge, encoder, view))
    assert key(recipe, 0) == key(recipe, 0, upstream={"language": "x"})


def test_no_stage_depends_on_those_below_it(recipe):
    """But for the words of a tiny tokenizer that no stage has fitted, which have a test of their own."""
    stands = [{}, {"encoder": "x"}, {"encoder": "x", "language": "y"}, *[{"language": "y", "model": "z"}] * 2]
    for index in range(5):
        above = changed(recipe, stages=recipe.stages[: index + 1])
        assert key(recipe, index, upstream=stands[index]) == key(above, index, upstream=stands[index])


def test_a_service_counts_where_it_is_named(recipe):
    words, loud = {"kind": "labeler", "use": "phrases"}, {"kind": "labeler", "use": "negation-rules"}
    judge = {"kind": "scorer", "use": "findings-f1", "labeler": "words"}
    reward = {**recipe.stages[3].reward[0], "scorer": "judge"}
    grpo = changed(recipe.stages[3], reward=(reward,))
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
        changed(known, stages=(*recipe.stages[:4], changed(recipe.stages[4], options=options)))
        for options in ({"segmenter": "grower"}, {"segmenter": {"use": "region-growing", "reach": 0.2}})
    )
    coarse = changed(by_service, services={"grower": {**grower, "reach": 0.2}})
    for other in (by_service, by_table, coarse):
        assert all(key(known, index) == key(other, index) for index in range(4))
    assert len({key(item, 4) for item in (known, by_service, by_table, coarse)}) == 4


def test_a_task_counts_where_it_is_asked(recipe):
    report = {**recipe.tasks["report"], "instruction": "Say it."}
    other = changed(recipe, tasks={**recipe.tasks, "report": report})
    stands = {"language": "x", "model": "y"}
    assert key(recipe, 3, upstream=stands) == key(other, 3, upstream=stands)
    assert key(recipe, 2, upstream=stands) != key(other, 2, upstream=stands)


def test_a_tiny_tokenizer_depends_on_the_words_of_every_stage(recipe):
    alone = changed(recipe, stages=recipe.stages[2:])  # no stage fits the language model
    asked = changed(alone, tasks={**alone.tasks, "choice": {**alone.tasks["choice"], "think": False}})
    fewer = changed(alone.stages[1].data[0], limit=3)
    grpo = changed(alone.stages[1], data=(fewer,))
    limited = changed(alone, stages=(alone.stages[0], grpo, *alone.stages[2:]))
    report = changed(alone.stages[0], data=(alone.stages[0].data[0],))
    alone, asked, limited = (
        changed(item, stages=(report, *item.stages[1:])) for item in (alone, asked, limited)
    )
    assert key(alone, 0) != key(asked, 0)
    assert key(alone, 0) != key(limited, 0)
    again = changed(alone.stages[0], steps=7)  # a later stage that asks the same
    assert key(alone, 0) == key(changed(alone, stages=(*alone.stages, again)), 0)
    for upstream in ({"language": "x"}, {"model": "x"}):  # whose tokenizer it then takes
        assert key(alone, 0, upstream=upstream) == key(asked, 0, upstream=upstream)


def test_a_fit_of_the_language_model_depends_on_the_findings_of_every_data_set(recipe):
    more = changed(recipe, datasets={**recipe.datasets, "other": {"use": "phantom-chest"}})
    lock = {"dataset": {"chest": {"fingerprint": "f"}, "other": {"fingerprint": "g"}}}
    keys = [inputs_hash(hashed_inputs(assembled(more), more.stages[place], lock, {})) for place in (0, 1)]
    assert keys[0] == key(recipe, 0)
    assert keys[1] != key(recipe, 1)
