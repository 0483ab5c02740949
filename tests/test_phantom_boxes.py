"""What is told of MedVol-R1 over seeds: the lift of GRPO, paired by query, and the curve of SFT."""

import dataclasses
import json

import pytest


@pytest.fixture(scope="module")
def script(benchmark):
    return benchmark("phantom_boxes")


def run_folder(folder, script, gain):
    """Write what a run leaves: 30 patients with two queries each, whose DSC rises by `gain`."""
    (folder / "answers").mkdir(parents=True)
    for stage, dsc, spread in ((script.BEFORE, 0.5, 0.0), (script.AFTER, 0.5 + gain, 1e-4)):
        lines = [
            {
                "prompt_id": f"case-{case}:query-{query}", "case_id": f"case-{case}",
                "patient": f"patient-{case}", "task": script.TASK, "kind": "organ",
                "figures": {"dsc": dsc + 0.01 * (case % 3) + spread * (-1) ** case},
            }
            for case in range(30)
            for query in range(2)
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "answers" / f"{stage}.jsonl").write_text(text)
    steps = [
        {"stage": script.SFT, "step": step, "loss": 10.0 / step, "token_accuracy": step / 20}
        for step in range(1, 21)
    ]
    text = "".join(json.dumps(line) + "\n" for line in [*steps, {"stage": "04-grpo", "step": 1, "loss": 0.0}])
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_the_lift_is_paired_and_the_curve_has_ten_pieces(script, tmp_path):
    found = script.learned(run_folder(tmp_path, script, 0.1))
    (lift,) = found["rows"]
    assert (lift["name"], lift["metric"], lift["value"]) == ("answer", "dsc_change", pytest.approx(0.1))
    assert lift["low"] == pytest.approx(0.1, abs=1e-4)  # queries rise almost alike
    assert [part["step"] for part in found["curve"]] == list(range(2, 21, 2))
    assert found["curve"][0]["loss"] == pytest.approx((10 + 5) / 2)


def test_the_lift_over_seeds_is_said_with_its_interval(script, tmp_path):
    columns = {"sft": script.Column(script.BEFORE), "grpo": script.Column(script.AFTER)}
    study = dataclasses.replace(
        script.STUDY, columns=columns, claims=(script.Claim("lift", {"grpo": 1.0, "sft": -1.0}),)
    )
    for seed, gain in enumerate((0.05, 0.1, 0.15)):
        rows = study.questions(run_folder(tmp_path / str(seed), script, gain))
        text = "".join(",".join(row) + "\n" for row in rows)
        (tmp_path / f"seed-{seed}.csv").write_text(text)
    places = [tmp_path / f"seed-{seed}.json" for seed in range(3)]
    said = study.over_all(places)
    assert "lift  0.100 [-0.024, 0.224]  each 0.050  0.100  0.150" in said  # 4.303 times 0.05 over root 3
    assert study.groups(places).splitlines()[1].split() == ["organ", "0.560", "0.610", "0.660"]


def test_the_tables_show_what_is_there_and_the_curves(script, tmp_path):
    row = {"name": "answer", "metric": "dsc", "value": 0.5, "low": None, "high": None}
    stages = (script.BEFORE, script.AFTER, *script.AUDITS)
    for seed in (17, 18):
        own = script.learned(run_folder(tmp_path / "runs" / str(seed), script, 0.1))
        results = {"learned": own} | {stage: {"rows": [row]} for stage in stages}
        (tmp_path / f"seed-{seed}.json").write_text(json.dumps({"results": results}))
    places = sorted(tmp_path.glob("seed-*.json"))
    text = script.STUDY.tables(places)
    assert "| DSC after SFT | 0.500 | 0.500 | 0.500 |" in text
    assert "| DSC, GRPO minus SFT | 0.100 [0.100, 0.100] |" in text
    assert "| on blank volumes, DSC after GRPO | - | - | - |" in text
    assert "| seed-18, SFT to step | 2 | 4 |" in text
    assert "DSC, GRPO minus SFT" in script.STUDY.summary(places)
