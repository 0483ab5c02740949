"""A real patient's report is told only where it was asked for; the model's own words always are."""

import csv
import json
import shutil
import time

import pytest
from evidcore_testing.recipes import recipe_text

from evidcore.api import Crop, VolumeRef

MARK = "XYZZY-SECRET"
STAGE = {"kind": "evaluate", "data": [{"dataset": "own", "task": "choice", "split": "test"}]}


@pytest.fixture
def real(tmp_path, cases):
    """A run on scans that count as a patient's, whose report and whose task's reference hold marked text."""
    folder = tmp_path / "run"
    for name in ("answers", "rollouts", "scans"):
        (folder / name).mkdir(parents=True)
    scan = folder / "scans" / "p1.nii"
    shutil.copy(cases["chest"]["test"][0].volumes[0].path, scan)
    with (folder / "scans" / "cases.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "report"])
        table.writerow(["p1", "p1.nii", "pat", "test", f"{MARK} in the left lung."])
    text = recipe_text(STAGE, recipe_folder=str(folder), dataset={"own": {"use": "folder", "path": "scans"}})
    (folder / "resolved.toml").write_text(text)
    shown = [Crop(volume=VolumeRef(path=str(scan), intensity="hu")).uri()]
    line = {"prompt_id": "p1:0", "case_id": "p1", "patient": "pat", "task": "choice", "images": shown}
    answer = {
        "condition": "own", "text": "the model's words", "malformed": None, "answer": "A", "finding": "cyst",
        "correct": True, "reference_text": MARK, "remarks": {"x": MARK},
    }  # fmt: skip
    group = {
        "step": 1, "prompt": "what?", "reference": {"letter": "A", "report": MARK},
        "rollouts": [{"text": "sampled words", "total": 1.0, "malformed": None, "rewards": {}}],
    }  # fmt: skip
    (folder / "answers" / "01-evaluate.jsonl").write_text(json.dumps(line | answer) + "\n")
    (folder / "rollouts" / "01-evaluate.jsonl").write_text(json.dumps(line | group) + "\n")
    return folder


def all_told(get, server):
    """Everything that the server answers about the run's lines, once the data set was asked."""
    lines = ["a:answers:01-evaluate:0", "a:rollouts:01-evaluate:0"]
    while get(server, "scene", a=lines[0])[1]["waiting"]:
        time.sleep(0.2)
    answers = [get(server, "runs"), get(server, "results", run="a")]
    answers += [get(server, "line", line=line) for line in lines]
    answers += [get(server, "scene", a=line) for line in lines]
    for kind in ("answers", "rollouts"):
        answers.append(get(server, "rows", run="a", kind=kind, stage="01-evaluate"))
        answers.append(get(server, "search", run="a", kind=kind, stage="01-evaluate", words=MARK))
    return [answer for _, answer in answers]


@pytest.mark.slow
def test_a_patients_report_is_shown_on_request_only(get, serve, real):
    told = all_told(get, serve(real))
    assert MARK not in json.dumps(told)
    line, group = told[2:4]
    assert line["text"]["text"] == "the model's words"
    assert group["rollouts"][0]["text"]["text"] == "sampled words"
    assert (line["stage"], line["case_id"]) == ("01-evaluate", "p1")
    assert (line["phantom"], line["report"], line["report_withheld"]) == (False, None, True)
    assert told[-1] == told[-3] == []  # a search is no way around it

    shown = all_told(get, serve(real, show_reports=True))[2]
    assert shown["report"]["text"] == f"{MARK} in the left lung."
    assert "reference_text" not in shown  # a task's own fields are no report that was asked for
