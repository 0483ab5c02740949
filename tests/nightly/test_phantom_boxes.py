"""What is told of MedVol-R1 over seeds: lifts paired by query, kinds of queries, the curve of SFT, a rule."""

import dataclasses
import json

import pytest

from evidcore.case import Answer, Box, Evidence


@pytest.fixture(scope="module")
def script(benchmark):
    return benchmark("phantom_boxes")


def run_folder(folder, script, gain):
    """Write what a run leaves: 30 patients with two queries each, whose figures rise by `gain`."""
    (folder / "answers").mkdir(parents=True)
    for stage, dsc, spread in ((script.BEFORE, 0.5, 0.0), (script.AFTER, 0.5 + gain, 1e-4)):
        lines = [
            {
                "prompt_id": f"case-{case}:query-{query}", "case_id": f"case-{case}",
                "patient": f"patient-{case}", "task": script.TASK, "kind": "organ",
                "figures": {
                    "dsc": dsc + 0.01 * (case % 3) + spread * (-1) ** case,
                    "box_iou": dsc + gain,
                    **({"right_mask": float(case % 4 == 0)} if query else {}),
                },
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
    text = "".join(json.dumps(line) + "\n" for line in [*steps, {"stage": "06-grpo", "step": 1, "loss": 0.0}])
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_the_curve_of_sft_has_ten_pieces(script, tmp_path):
    curve = script.learned(run_folder(tmp_path, script, 0.1))["curve"]
    assert [part["step"] for part in curve] == list(range(2, 21, 2))
    assert curve[0]["loss"] == pytest.approx((10 + 5) / 2)


def test_the_lift_over_seeds_is_said_with_its_interval(script, tmp_path):
    columns = {
        "sft": script.Column(script.BEFORE),
        "grpo": script.Column(script.AFTER),
        "boxes": script.Column(script.AFTER, metric="box_iou"),
        "right": script.Column(script.AFTER, metric="right_mask"),
    }
    claims = (
        script.Claim("lift", {"grpo": 1.0, "sft": -1.0}),
        script.Claim("boxes", {"boxes": 1.0, "grpo": -1.0}),
        script.Claim("right", {"right": 1.0}),
    )
    study = dataclasses.replace(script.STUDY, columns=columns, claims=claims)
    for seed, gain in enumerate((0.05, 0.1, 0.15)):
        rows = study.questions(run_folder(tmp_path / str(seed), script, gain))
        made = {"questions": [",".join(row) for row in rows]}
        (tmp_path / f"seed-{seed}.json").write_text(json.dumps(made))
    said = study.over_all([tmp_path / f"seed-{seed}.json" for seed in range(3)])
    assert "lift   0.100 [-0.024, 0.224]  each 0.050  0.100  0.150" in said  # 4.303 times 0.05 over root 3
    assert "boxes  0.090" in said  # a metric of its own: 0.50 + 2 x gain, beside 0.51 + gain
    assert "right  0.267" in said  # of the 30 queries that have it


def test_kinds_of_queries_are_told_arm_by_arm(script, tmp_path):
    places = []
    for seed, after in enumerate(("0.56", "0.66")):
        place = tmp_path / f"seed-{seed}.json"
        lines = [
            "kind,registration,sft,longer,grpo",
            f"organ,0.4,0.5,0.55,{after}",
            "organ beside another,,0.5,0.6,0.7",
            "organ with the lesion,0.1,0.2,0.3,0.4",
        ]
        place.write_text(json.dumps({"questions": lines}))
        places.append(place)
    _, organ, beside, lesion = script.by_kind(places)
    assert organ.split() == ["organ", "0.400", "0.500", "0.550", "0.610", "0.560", "0.660"]
    assert beside.split()[3:5] == ["-", "0.500"]
    assert lesion.split()[-2:] == ["0.400", "0.400"]


def test_the_tables_show_what_is_there_and_the_curves(script, tmp_path):
    row = {"name": "answer", "metric": "dsc", "value": 0.5, "low": 0.4, "high": 0.6}
    for seed in (17, 18):
        own = script.learned(run_folder(tmp_path / "runs" / str(seed), script, 0.1))
        stages = (script.BEFORE, script.LONGER, script.AFTER, script.AUDIT)
        results = {"learned": own} | {stage: {"rows": [row]} for stage in stages}
        (tmp_path / f"seed-{seed}.json").write_text(json.dumps({"results": results}))
    places = sorted(tmp_path.glob("seed-*.json"))
    text = script.STUDY.tables(places)
    assert "| DSC after SFT | 0.500 [0.400, 0.600] | 0.500 [0.400, 0.600] | 0.500 |" in text
    assert "| on blank volumes, DSC | - | - | - |" in text
    assert "| seed-18, SFT to step | 2 | 4 |" in text
    assert "DSC after as much more SFT" in script.STUDY.summary(places)


def test_boxes_are_made_smaller_on_each_side_as_long_as_a_voxel_is_left(benchmark):
    rule = benchmark("shrunk_boxes")
    box = Box(z=3, y0=10, y1=20, x0=5, x1=8)
    assert rule.shrunk(box, 0) == box
    assert rule.shrunk(box, 2) == Box(z=3, y0=12, y1=18, x0=6, x1=7)
    assert rule.shrunk(box, 9) == Box(z=3, y0=14, y1=16, x0=6, x1=7)
    said = Answer(text="", evidence=Evidence(slice=3, boxes=(box,)))
    assert rule.smaller(said, 2).evidence == Evidence(slice=3, boxes=(rule.shrunk(box, 2),))
    assert rule.smaller(Answer(text="x"), 2) == Answer(text="x")
