"""Runs through the command line: whole, used again, killed, interrupted, changed."""

import hashlib
import json
import os
import signal
import time
import tomllib

import pytest

from evidcore.recipe import load

pytestmark = pytest.mark.slow

STAGES = ["01-fit-encoder", "02-fit-language", "03-sft", "04-grpo", "05-evaluate"]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lines(path):
    """Return the lines of a JSON lines file without what a clock says."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        {key: value for key, value in line.items() if "_s/" not in key and not key.endswith("_s")}
        for line in found
    ]


def kill_at(evid, out, stage, step, how):
    """Start a run, send it a signal at a step, and return its folder and what it printed."""
    process = evid.start("run", evid.recipe, "--out", out, "--fresh")
    while process.poll() is None:
        for metrics in (evid.folder / out).glob("tiny/*/metrics.jsonl"):
            steps = [json.loads(line) for line in metrics.read_text(encoding="utf-8").split("\n")[:-1]]
            if any(line["stage"] == stage and line["step"] >= step for line in steps):
                os.kill(process.pid, how)
                _, err = process.communicate()
                return metrics.parent, process.returncode, err
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def test_a_run_leaves_everything_where_it_belongs(done):
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


def test_the_resolved_copy_is_the_same_recipe(evid, done):
    assert load(done / "resolved.toml") == load(evid.recipe)
    assert (done / "recipe.toml").read_text() == evid.recipe.read_text()


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
    folder, _, _ = kill_at(evid, f"killed-{stage}", stage, step, signal.SIGKILL)
    assert json.loads((folder / "STATUS").read_text())["state"] == "running"
    evid("resume", folder)
    for name in ("checkpoints/03-sft/model.safetensors", "checkpoints/04-grpo/model.safetensors"):
        assert digest(folder / name) == digest(done / name), name
    for name in ("metrics.jsonl", "rollouts/04-grpo.jsonl", "answers/05-evaluate.jsonl"):
        assert lines(folder / name) == lines(done / name), name


def test_what_was_begun_with_other_inputs_is_begun_anew(evid, done):
    folder, _, _ = kill_at(evid, "changed", "03-sft", 3, signal.SIGKILL)
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
    assert digest(folder / name) == digest(done / name)
    assert (
        json.loads((folder / "checkpoints" / "03-sft").resolve().with_name("inputs.json").read_text())
        == inputs
    )


def test_ctrl_c_names_the_last_checkpoint_and_the_command(evid, done):
    folder, code, err = kill_at(evid, "interrupted", "04-grpo", 3, signal.SIGINT)
    assert code == 130
    assert "Traceback" not in err
    assert f"Go on with: evid resume {folder.relative_to(evid.folder)}" in err
    assert "Last checkpoint: " in err
    assert "04-grpo/checkpoint/steps/checkpoint-2" in err
    assert json.loads((folder / "STATUS").read_text())["state"] == "interrupted"


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


def test_the_audit_and_the_page_are_made_of_a_finished_run(evid, done):
    result = json.loads(evid("audit", "policy", done, "--json", "--limit", "6").stdout)
    assert result["stage"] == "06-audit"
    assert {row["metric"] for row in result["rows"]} >= {"strict_accuracy", "grounding_margin"}
    assert json.loads((done / "results" / "06-audit.json").read_text()) == result
    assert "grounding margin" in evid("audit", "policy", done, "--limit", "6").stdout
    assert evid("page", done).stdout.strip() == str(done / "page" / "index.html")


def test_the_controls_start_from_the_same_point_and_are_measured_alike(evid, done):
    folder = evid.run("--with-controls", "--set", "stage.grpo.steps=2")
    rows = json.loads((folder / "results" / "controls.json").read_text())["rows"]
    arms = ["start", "trained", "random reward", "format-only reward", "another patient's volumes"]
    assert list(dict.fromkeys(row["name"] for row in rows)) == arms
    trained = json.loads((folder / "results" / "05-evaluate.json").read_text())["rows"]
    for reading in ("log_likelihood", "verdict_log_likelihood"):
        moved = {row["name"]: row for row in rows if row["metric"] == f"{reading}_change"}
        assert list(moved) == arms[1:]
        by_arm = {row["name"]: row["value"] for row in rows if row["metric"] == f"{reading}_accuracy"}
        for arm in arms[1:]:
            assert moved[arm]["value"] == pytest.approx(by_arm[arm] - by_arm["start"])
        own = next(row["value"] for row in trained if row["metric"] == f"{reading}_accuracy")
        assert by_arm["trained"] == own
