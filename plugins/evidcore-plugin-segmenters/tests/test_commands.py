"""`evid audit segmenter` through the command line."""

import csv
import json
import tomllib
from pathlib import Path

import pytest
from evidcore_testing import volume_case

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    with (folder / "cases.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "masks"])
        for seed in range(3):
            case = volume_case(folder, 2 * seed)  # even ones show a nodule
            masks = f"nodule=case-{2 * seed}.npz#lung nodule" if seed < 2 else ""
            table.writerow([case.id, f"case-{2 * seed}.nii.gz", case.patient, "test", masks])
    return folder


def test_it_prints_what_its_json_holds(evid, folder):
    asked = ("audit", "segmenter", folder, "--jitter", "0.5")
    said = evid(*asked).output
    assert "set" in said
    assert "2 objects of 2 patients" in said
    assert "passed over: 1 cases without masks, 0 empty masks" in said
    assert "No intervals: too few patients (2 of at least 20)." in said
    result = json.loads(evid(*asked, "--json").stdout)
    (dataset,) = result["datasets"].values()
    (dice,) = [
        row["value"]
        for row in dataset["rows"]
        if (row["segmenter"], row["prompt"], row["metric"], row["distance_slices"])
        == ("region-growing", "oracle box", "dice", None)
    ]
    assert f"{dice:.3f}" in said
    assert dice > 0.8
    spreads = {row["prompt"]: row["value"] for row in dataset["rows"] if row["metric"] == "dice_spread"}
    assert list(spreads) == ["box moved 50 %"]
    (line,) = [line for line in said.splitlines() if "box moved 50 %" in line and "leaps" not in line][:1]
    assert f"{spreads['box moved 50 %']:.3f}" in line


def test_segmenters_are_named_or_given_as_tables_and_compared(evid, folder):
    table = '{ use = "region-growing", smoothing_steps = 0 }'
    options = ["--segmenter", "region-growing", "--segmenter", table, "--jitter", "", "--limit", "1"]
    result = json.loads(evid("audit", "segmenter", folder, *options, "--json").stdout)
    names = [item["name"] for item in result["segmenters"]]
    assert names == ["region-growing", table]
    (dataset,) = result["datasets"].values()
    compared = [row for row in dataset["rows"] if row["metric"] == "dice_difference"]
    assert {row["segmenter"] for row in compared} == {f"{table} minus region-growing"}
    assert {record["case"] for record in dataset["records"]} == {"case-0"}


@pytest.mark.parametrize(("option", "given", "message"), TABLE["refused"])
def test_what_cannot_be_done_is_said(evid, folder, option, given, message):
    result = evid("audit", "segmenter", folder, option, given, exit_code=2)
    assert message in " ".join(result.stderr.split())
