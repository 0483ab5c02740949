"""The trained blind arm of an audit, through the command line."""

import json

import pytest
from evidcore_plugin_lab.ablation.cells import planned_inputs

from evidcore.errors import RunError
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.execute import Execution
from evidcore.runs.folder import RunFolder
from evidcore.runs.inputs import inputs_hash
from evidcore.runs.lock import lock_table
from evidcore.runs.post_run import audit_run

pytestmark = pytest.mark.slow

AUDIT = """
[[stage]]
kind = "audit"
blind_arm = true
conditions = [{ use = "blank" }, { use = "other-patient", exchanges = 1 }]
data = [{ dataset = "chest", task = "choice", split = "test", limit = 6 }]
max_new_tokens = 24
"""


def stored(folder):
    """Return the inputs of each stage folder of the store, by its hash."""
    found = RunFolder(folder).store.glob("*/inputs.json")
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in found}


def result(folder, name="06-audit"):
    return json.loads((folder / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def armed(evid):
    """A run with an audit that asks for an arm."""
    evid.recipe.write_text(evid.recipe.read_text() + AUDIT, encoding="utf-8")
    return evid.run()


def test_the_arm_is_trained_alike_from_the_same_start_over_blank_volumes(armed):
    inputs = stored(armed)
    assert sorted(one["stage"]["kind"] for one in inputs.values()) == [
        "audit", "evaluate", "fit", "fit", "grpo", "grpo", "sft", "sft",
    ]  # fmt: skip
    for kind in ("sft", "grpo"):
        own, arm = sorted(
            (one for one in inputs.values() if one["stage"]["kind"] == kind),
            key=lambda one: one["stage"]["volumes"] == "blank",
        )
        assert arm["stage"] == {**own["stage"], "volumes": "blank"}
        assert {name for name in own if own[name] != arm[name]} <= {"stage", "upstream"}
    weights = [
        (RunFolder(armed).store / key / "checkpoint" / "model.safetensors").read_bytes()
        for key, one in inputs.items()
        if one["stage"]["kind"] == "grpo"
    ]
    assert weights[0] != weights[1]


def test_the_arm_is_one_more_rung_of_the_audit(armed):
    found = result(armed)
    assert {row.get("condition") for row in found["rows"]} >= {"own", "blank", "other-patient", "blind-arm"}
    assert "own_minus_blind_arm" in {row["metric"] for row in found["rows"]}
    page = (armed / "page" / "index.html").read_text(encoding="utf-8")
    assert "a policy trained alike over blank volumes" in page
    lines = [json.loads(line) for line in (armed / "answers" / "06-audit.jsonl").read_text().splitlines()]
    asked = [
        {line["prompt_id"] for line in lines if line["condition"] == one} for one in ("own", "blind-arm")
    ]
    assert asked[0] == asked[1] != set()


def test_what_is_planned_is_what_is_run(evid, armed):
    assembly = Assembly(load(evid.recipe))
    planned = planned_inputs(assembly, lock_table(assembly.recipe, assembly.datasets))
    for name, inputs in planned.items():
        assert inputs_hash(inputs) == result(armed, name)["inputs"], name


def test_an_arm_is_used_again_and_trained_anew_where_its_training_changes(evid, armed):
    before = stored(armed)
    again = evid.run("--set", "stage.audit.max_new_tokens=20")
    new = [one["stage"]["kind"] for key, one in stored(again).items() if key not in before]
    assert new == ["audit"]
    before = stored(armed)
    shorter = evid.run("--set", "stage.grpo.steps=2")
    new = [one["stage"]["kind"] for key, one in stored(shorter).items() if key not in before]
    assert sorted(new) == ["audit", "evaluate", "grpo", "grpo"]


def test_a_finished_run_can_be_audited_with_an_arm(evid, armed):
    before = stored(armed)
    shown = json.loads(evid("audit", "policy", armed, "--json", "--limit", "6", "--blind-arm").stdout)
    assert "own_minus_blind_arm" in {row["metric"] for row in shown["rows"]}
    assert stored(armed).keys() == before.keys()
    assert json.loads((armed / "STATUS").read_text())["state"] == "finished"
    plain = json.loads(evid("audit", "policy", armed, "--json", "--limit", "6").stdout)
    assert "own_minus_blind_arm" not in {row["metric"] for row in plain["rows"]}


def test_a_recipe_that_trains_no_policy_has_no_arm(evid, armed):
    text = evid.recipe.read_text(encoding="utf-8")
    untrained = evid.folder / "untrained.toml"
    start, end = text.index('[[stage]]\nkind = "sft"'), text.index('[[stage]]\nkind = "evaluate"')
    untrained.write_text(text[:start] + text[end:], encoding="utf-8")
    said = evid("check", untrained, exit_code=2).stderr
    assert "no stage above trains a policy, so none can be trained alike" in said


def test_a_finished_run_stays_finished_where_its_arm_fails(copied_run, monkeypatch):
    def fails(execution, keys):
        execution.folder.set_status("running", stage="03-sft-blind")
        raise RunError("no more memory")

    before = json.loads((copied_run / "STATUS").read_text())
    monkeypatch.setattr(Execution, "with_blind_arm", fails)
    with pytest.raises(RunError, match="no more memory"):
        audit_run(RunFolder(copied_run), blind_arm=True)
    after = json.loads((copied_run / "STATUS").read_text())
    assert (after["state"], after["message"]) == (before["state"], before["message"])
