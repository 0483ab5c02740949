"""A blind arm: trained as the recipe's own policy, over blank volumes, and compared with it in the audit."""

import json
import re

import pytest
from evidcore_testing.recipes import stage_text

from evidcore.runs.folder import RunFolder

pytestmark = pytest.mark.slow

AUDIT = stage_text(
    kind="audit", blind_arm="blind", conditions=[{"use": "blank"}, {"use": "other-patient", "repeats": 1}],
    data=[{"dataset": "chest", "task": "choice", "split": "test", "limit": 6}], max_new_tokens=24,
)  # fmt: skip


def with_arm(text):
    """Return a recipe with an arm beside its sft and grpo stages, and an audit that compares with it."""
    for kind in ("sft", "grpo"):
        own = re.search(rf'\[\[stage\]\]\nkind = "{kind}"\n.*?(?=\n\[\[stage\]\])', text, re.DOTALL).group(0)
        arm = own.replace(f'"{kind}"\n', f'"{kind}"\narm = "blind"\nvolumes = "blank"\n', 1)
        text = text.replace(own, f"{arm}\n{own}", 1)
    return text + AUDIT


def stored(folder):
    """Return the inputs of each stage folder of the store, by its hash."""
    result = RunFolder(folder).store.glob("*/inputs.json")
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in result}


@pytest.fixture(scope="module")
def armed(evid):
    """A run with an arm, and an audit that compares with it."""
    evid.recipe.write_text(with_arm(evid.recipe.read_text(encoding="utf-8")), encoding="utf-8")
    return evid.run()


def test_the_arm_is_trained_alike_from_the_same_start_over_blank_volumes(armed):
    inputs = stored(armed)
    assert sorted(item["stage"]["kind"] for item in inputs.values()) == [
        "audit", "evaluate", "fit", "fit", "grpo", "grpo", "sft", "sft",
    ]  # fmt: skip
    for kind in ("sft", "grpo"):
        own, arm = sorted(
            (item for item in inputs.values() if item["stage"]["kind"] == kind),
            key=lambda item: item["stage"]["volumes"] == "blank",
        )
        assert arm["stage"] == {**own["stage"], "volumes": "blank"}
        assert {name for name in own if own[name] != arm[name]} <= {"stage", "upstream"}
    weights = [
        (RunFolder(armed).store / key / "checkpoint" / "model.safetensors").read_bytes()
        for key, item in inputs.items()
        if item["stage"]["kind"] == "grpo"
    ]
    assert weights[0] != weights[1]


def test_the_arm_is_one_more_rung_of_the_audit(armed):
    results = RunFolder(armed).result("08-audit")
    assert {row.get("condition") for row in results["rows"]} >= {"own", "blank", "other-patient", "blind-arm"}
    assert "own_minus_blind_arm" in {row["metric"] for row in results["rows"]}
    page = (armed / "page" / "index.html").read_text(encoding="utf-8")
    assert "a policy trained alike over blank volumes" in page
    lines = [json.loads(line) for line in (armed / "answers" / "08-audit.jsonl").read_text().splitlines()]
    asked = [
        {line["prompt_id"] for line in lines if line["condition"] == item} for item in ("own", "blind-arm")
    ]
    assert asked[0] == asked[1] != set()


def test_an_arm_is_used_again_and_trained_anew_where_its_training_changes(evid, armed):
    before = stored(armed)
    again = evid.run("--set", "stage.audit.max_new_tokens=20")
    new = [item["stage"]["kind"] for key, item in stored(again).items() if key not in before]
    assert new == ["audit"]
    before = stored(armed)
    shorter = evid.run("--set", "stage.grpo.steps=2", "--set", "stage.blind.grpo.steps=2")
    new = [item["stage"]["kind"] for key, item in stored(shorter).items() if key not in before]
    assert sorted(new) == ["audit", "evaluate", "grpo", "grpo"]


def test_a_finished_run_is_audited_beside_its_arm(evid, armed):
    before = stored(armed)
    shown = json.loads(evid("audit", "policy", armed, "--json", "--limit", "6").stdout)
    assert "own_minus_blind_arm" in {row["metric"] for row in shown["rows"]}
    assert stored(armed).keys() == before.keys()


def test_an_arm_that_trains_otherwise_is_refused(evid, armed):
    said = evid("check", evid.recipe, "--set", "stage.grpo.steps=2", exit_code=2).stderr
    assert "08-audit.blind_arm: arm 'blind' must train as the recipe's own policy, with volumes = " in said
    assert "It differs in grpo[1].steps. Set these alike, or leave blind_arm out." in said


def test_an_arm_that_no_stage_above_trains_is_refused(evid, armed):
    said = evid("check", evid.recipe, "--set", "stage.audit.blind_arm='blank'", exit_code=2).stderr
    assert "no stage above has arm = 'blank'. Did you mean 'blind'? Train it as the recipe's own" in said
