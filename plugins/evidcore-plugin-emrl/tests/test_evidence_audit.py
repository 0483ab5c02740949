"""The ladder over reports with evidence: who looks is told to see, and who knows words alone is not."""

import pytest
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_testing.checks_evaluation import Says

from evidcore.api import EvalOptions
from evidcore.builtin.views import Slices
from evidcore.registry import factory

CONDITIONS = [
    {"use": name} for name in ("blank", "scrambled", "perturbed", "other-patient", "twin", "sham", "matched")
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("abdomens")
    dataset = PhantomAbdomen(
        folder, train_cases=24, validation_cases=0, test_cases=24, size_zyx=(20, 48, 64), prevalence=0.3
    )
    given = {"cache_folder": folder, "vocabulary": lambda: dataset.findings, "recipe_folder": folder}
    task = ReportEvidence(folder)
    evaluation = factory.build("evaluation", {"use": "report-evidence"}, given=given, where="test")
    audit = factory.build("audit", {"use": "policy", "conditions": CONDITIONS}, given=given, where="test")
    view, told = Slices(slices=20), {}
    asked = {
        split: [prompt for case in dataset.cases(split) for prompt in task.prompts(case, view, 0)]
        for split in ("train", "test")
    }
    for prompt in asked["test"]:
        case, gold = prompt.case, task.gold(prompt)[0]
        told[case.volumes[0].path] = gold
        for finding in case.present():
            (twin,) = dataset.without(case, finding)
            told[twin.path] = gold.replace(finding, "scar").replace(finding.capitalize(), "Scar")

    def run(say):
        asking = EvalOptions(max_new_tokens=9, seed=1, dataset=dataset)
        return audit(Says(say), asked["test"], task, evaluation, lambda: asked["train"], asking, "it")

    return run, told, asked


@pytest.mark.slow
def test_who_looks_at_the_scan_is_told_to_see(world):
    run, told, _ = world
    healthy = "<report>The liver is normal.</report><evidence>null</evidence>"

    def look(prompt):
        crop = prompt.crops()[0]
        return healthy if crop.blank or crop.change == "scrambled" else told[crop.volume.path]

    audit = run(look)
    assert audit.verdict().startswith("What is asked is seen")
    rungs = {rung.name: rung for rung in audit.rungs}
    names = {"blind-rule", "blank", "scrambled", "perturbed", "other-patient", "twin", "matched"}
    assert names == rungs.keys()  # no sham: all findings are asked about, so none is something else
    assert rungs["perturbed"].above.value == 0.0
    assert rungs["twin"].above.low > 0
    rows = {row.metric: row for row in audit.rows()}
    assert rows["own_minus_blind"].low > 0
    assert rows["own_minus_twin"].low > 0
    assert rows["blind_grounded_accuracy"].note
    own = {row.metric: row for row in audit.rows() if row.condition == "own"}
    assert own["grounded_accuracy"].is_headline
    assert {"evidence_hit_rate", "hallucination_rate", "omission_rate", "format_rate"} <= own.keys()
    assert {line["condition"] for line in audit.lines()} >= {"own", "blank", "twin", "blind-rule"}


@pytest.mark.slow
def test_who_says_what_training_says_is_not_told_to_see(world):
    run, _, asked = world
    sick = [prompt for prompt in asked["train"] if prompt.reference["present"]]
    text = ReportEvidence.gold(ReportEvidence("none"), sick[0])[0]
    audit = run(lambda prompt: text)
    assert audit.verdict().startswith("No sign")
    assert all(rung.above.value == 0.0 for rung in audit.rungs if rung.name != "blind-rule")
