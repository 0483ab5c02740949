import json
import shutil

import pytest
from evidcore_plugin_pages.jinja import NOTICE

from evidcore.recipe import load
from evidcore.runs.assembly import Assembly


@pytest.fixture
def scan(small_run, tmp_path):
    case = Assembly(load(small_run / "resolved.toml")).split("chest", "test")[0]
    return shutil.copyfile(case.volumes[0].path, tmp_path / "chest.nii")


def test_the_terminal_says_first_what_this_is_not_for(evid, small_run, scan, tmp_path):
    text = evid("predict", small_run, scan, "--out", tmp_path / "a").stdout
    record = json.loads((tmp_path / "a" / "answer.json").read_text())
    assert text.startswith(f"{NOTICE}\n\n{record['completion'].strip()}")
    assert "findings that words reads in it: " in text
    assert "Without the scan (a volume of air) the answer is " in text
    assert text.endswith(f"folder: {tmp_path / 'a'}\n")


def test_options_are_listed_with_their_shares(evid, small_run, scan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--option", "emphysema", "--option", "lung nodule")
    text = evid("predict", small_run, scan, *options).output
    record = json.loads((tmp_path / "predictions" / "chest-choice" / "answer.json").read_text())
    for row in record["options"]:
        assert f"{row['letter']}) {row['option']}" in text
        assert f"{100 * row['share']:.1f} %" in text
    again = json.loads(evid("predict", small_run, scan, *options, "--json").output)
    assert again.pop("folder") == "predictions/chest-choice-2"
    assert again == record
    pages = [tmp_path / "predictions" / name / "index.html" for name in ("chest-choice", "chest-choice-2")]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert record["notice"] == NOTICE
