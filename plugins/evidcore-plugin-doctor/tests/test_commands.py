"""`evid data check` and `evid data profile` through the command line."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from evidcore_testing.data import save_nifti
from evidcore_testing.recipes import recipe_text


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["id,volume,split,nodule,cyst"]
    for number in range(3):
        hu = rng.normal(-300, 500, (30, 30)).clip(-1000) + rng.normal(0, 20, (12, 30, 30))
        save_nifti(tmp_path / f"c{number}.nii.gz", hu.astype(np.int16), (5.0, 3.0, 3.0))
        rows.append(f"c{number},c{number}.nii.gz,train,{number % 2},{(number + 1) % 2}")
    (tmp_path / "cases.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SFT = {"kind": "sft", "train": ["bridge", "language"], "steps": 1, "learning_rate": 1e-3}
GOOD = {"use": "folder", "path": ".", "patient_column": "", "findings": ["nodule", "cyst"]}
BAD = {"use": "folder", "path": ".", "patient_column": "", "table": "bad.csv"}


@pytest.fixture
def recipe(folder):
    (folder / "bad.csv").write_text("id,volume,split\nx,gone.nii.gz,train\ny,c0.nii.gz,train\n")
    stage = {**SFT, "data": [{"dataset": "good", "task": "choice"}]}
    mine = {"mine": {"use": "choice", "options_per_question": 2}}
    (folder / "two.toml").write_text(recipe_text(stage, task=mine, dataset={"good": GOOD, "bad": BAD}))
    return folder / "two.toml"


def test_a_clean_folder_exits_with_0(evid, folder):
    said = evid("data", "check", folder, "--processes", 1)
    assert "3 cases (train 3), patients not known, 3 volumes, 0 masks, 0 reports" in said.output
    assert said.output.endswith(f"{folder.name}: nothing wrong found\n")


def test_faults_exit_with_1_one_line_each_or_as_json_alone(evid, folder):
    (folder / "c1.nii.gz").write_bytes((folder / "c1.nii.gz").read_bytes()[:-40])
    (folder / "c2.nii.gz").unlink()
    lines = evid("data", "check", folder, "--processes", 1, exit_code=1).output.splitlines()
    assert [line.split(": ")[0] for line in lines[:2]] == ["error   file", "error   file"]
    assert f"case 'c1', {folder / 'c1.nii.gz'}: the gzip stream ends too early" in lines[0]
    assert "there is no such file" in lines[1]
    assert lines[-1] == f"{folder.name}: 2 errors (file 2)"
    said = json.loads(evid("data", "check", folder, "--processes", 1, "--json", exit_code=1).stdout)
    faults, summary = (said["datasets"][folder.name][part] for part in ("faults", "summary"))
    assert [(fault["check"], fault["severity"]) for fault in faults] == [("file", "error")] * 2
    assert (faults[1]["case"], summary["volumes"], summary["errors"]) == ("c2", 1, {"file": 2})


def test_a_recipe_is_checked_data_set_by_data_set(evid, recipe):
    both = json.loads(evid("data", "check", recipe, "--processes", 1, "--json", exit_code=1).stdout)
    assert [len(both["datasets"][name]["faults"]) for name in ("good", "bad")] == [0, 1]
    evid("data", "check", recipe, "--dataset", "good", "--processes", 1)
    said = evid("data", "check", recipe, "--dataset", "goof", exit_code=2)
    assert "has no data set 'goof'. Did you mean 'good'? It has: good, bad." in said.stderr


def test_what_another_data_set_has_in_another_split_is_named(evid, tmp_path, tools):
    homes = {split: tools.Home(tmp_path / split) for split in ("train", "test")}
    for split, home in homes.items():
        home.folder.mkdir()
        home.add(f"{split}-a", tools.torso(0), axes="RAS", split=split)
        home.add(f"{split}-b", tools.torso(1)[4 * (split == "test") :], split=split)
        home.add(f"{split}-c", split=split, report=" ".join(f"word{n}" for n in range(30)))  # without a scan
        home.add(f"{split}-d", split=split, patient="p1")
        home.add("e", tools.torso(2))  # both have it in training
    image = nibabel.load(homes["test"].folder / "test-a.nii.gz")
    image = nibabel.Nifti1Image(image.get_fdata().astype(np.float32) / 2 + 512, image.affine)
    image.header.set_slope_inter(2, -1024)
    nibabel.save(image, homes["test"].folder / "test-a.nii.gz")  # the same values, of another slope and type
    sets = {split: {"use": "folder", "path": str(home.write())} for split, home in homes.items()}
    stage = {**SFT, "data": [{"dataset": "train", "task": "choice"}]}
    (tmp_path / "two.toml").write_text(recipe_text(stage, dataset=sets))
    said = evid("data", "check", tmp_path / "two.toml", "--processes", 1, "--json", exit_code=1)
    faults = [fault for item in json.loads(said.stdout)["datasets"].values() for fault in item["faults"]]
    faults = [fault for fault in faults if fault["check"] != "file"]  # no scan of c and d is there
    assert sorted((fault["case"], fault["check"]) for fault in faults) == [*TABLE["elsewhere"].items()]
    assert all(f"'train{fault['case'][4:]}' of data set 'train'" in fault["text"] for fault in faults)


@pytest.mark.parametrize(("name", "said"), TABLE["unusable"].items())
def test_what_cannot_be_checked_exits_with_2(evid, tmp_path, name, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "no-volume").mkdir()
    (tmp_path / "no-volume" / "cases.csv").write_text("id,scan,split\nx,gone.nii.gz,train\n")
    error = evid("data", "check", tmp_path / name, exit_code=2).stderr
    assert name in error
    assert said in error


def test_intensity_of_a_folder_can_be_arbitrary(evid, folder):
    array = np.random.default_rng(0).uniform(0, 1, (12, 30, 30)).astype(np.float32)
    save_nifti(folder / "c0.nii.gz", array, (5.0, 3.0, 3.0))
    assert "scaled to a unit range" in evid("data", "check", folder, "--processes", 1, exit_code=1).output
    evid("data", "check", folder, "--processes", 1, "--intensity", "arbitrary")


def test_a_folder_is_profiled(evid, folder, tmp_path):
    out, own = tmp_path / "out", tmp_path / "own.txt"
    out.mkdir()
    for name in ("profile.json", "index.html"):  # of a stranger's folder
        own.write_text("mine")
        (out / name).symlink_to(own)
    said = evid("data", "profile", folder, "--out", out).output
    assert own.read_text() == "mine"
    assert "train       3 cases, patients not known" in said
    assert "nodule" in said
    assert "spacing in mm  z 5 (5 to 5), y 3 (3 to 3), x 3 (3 to 3)" in said
    assert said.endswith(f"page: {out / 'index.html'}\n")
    (kept,) = json.loads((out / "profile.json").read_text(encoding="utf-8"))
    assert kept["volumes"]["train"]["volumes"] == 3
    assert "nodule" in (out / "index.html").read_text(encoding="utf-8")


def test_a_recipe_is_profiled_with_its_tasks(evid, recipe):
    said = json.loads(evid("data", "profile", recipe, "--dataset", "good", "--json").stdout)
    (result,) = said["profiles"]
    assert result["splits"]["train"]["cases"] == 3
    row = next(row for row in result["reference_lines"] if row["asked"] == "mine")
    assert (row["split"], row["questions"], row["uniform_chance"]["value"]) == ("train", 3, 0.5)


def test_what_a_profile_does_not_count_is_said(evid, folder):
    lines = (folder / "cases.csv").read_text().splitlines()
    lines += ["x,c0.nii.gz,val,1,0", "y,c0.nii.gz,train,1,2"]
    (folder / "cases.csv").write_text("\n".join(lines) + "\n")
    said = evid("data", "profile", folder).output
    assert f"  2 rows and cells cannot be read and are not counted: evid data check {folder}\n" in said
    (result,) = json.loads(evid("data", "profile", folder, "--json").stdout)["profiles"]
    assert result["unlisted"] == 2
    evid("data", "check", folder, "--processes", 1, exit_code=1)


def test_a_profile_in_which_nothing_can_be_read_points_to_the_check(evid, folder):
    (folder / "cases.csv").write_text("id,volume,split\na,c0.nii.gz,val\n")
    said = evid("data", "profile", folder, exit_code=2).stderr
    assert "no case in any split" in said
    assert "1 rows and cells cannot be read: evid data check names them." in said


def test_a_file_of_labels_is_profiled_by_its_columns(evid, tmp_path):
    path = tmp_path / "labels.csv"
    rows = [f"s{n},p{n},{'train' if n < 30 else 'test'},{n % 2},{(n + 1) % 2},0,0" for n in range(60)]
    path.write_text("\n".join(["scan,who,part,a,b,c,d", *rows]))
    said = evid("data", "profile", path, "--id", "scan", "--patient", "who", "--split", "part").output
    assert "asked as negatives, test: " in said
    assert "best blind rule" in said
    only = evid("data", "profile", path, "--split", "part", "--task", "negatives", "--json").stdout
    (result,) = json.loads(only)["profiles"]
    assert [row["asked"] for row in result["reference_lines"]] == ["negatives"]


def test_columns_belong_to_a_csv(evid, folder):
    said = evid("data", "profile", folder, "--patient", "who", exit_code=2)
    assert "columns belong to a CSV" in said.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "profile", "view"])
def test_what_the_file_system_refuses_is_named_without_a_traceback(tmp_path, command):
    """A folder or a loop in place of a file, a null byte, a name of other bytes, an --out below a file."""
    folder = tmp_path / os.fsdecode(b"t\xfcmor")
    folder.mkdir()
    (folder / "a.nii").mkdir()
    (folder / "loop.nii").symlink_to("loop.nii")
    rows = "".join(f"{n},{n}.nii,{n},train\n" for n in ("a", "loop", "n\0", "ü", "x" * 300))
    (folder / "cases.csv").write_text(f"id,volume,patient,split\n{rows}", encoding="utf-8")
    evid = Path(sys.executable).with_name("evid")
    (tmp_path / "file").write_text("")
    around = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    around |= {"EVID_CACHE": str(tmp_path / "file")}
    outs = [[]] if command == "check" else [[], ["--out", str(tmp_path / "file" / "page.html")]]
    for out in outs:
        words = [evid, "data", command, folder, *out]
        done = subprocess.run(words, capture_output=True, env=around, cwd=tmp_path, check=False)
        text = (done.stdout + done.stderr).decode()
        assert "Traceback" not in text
        if command == "check":
            for words in ("a.nii: is a folder that", "loop.nii: cannot be read (Too", "(File name too long)"):
                assert words in text
            assert "n\\x00.nii: cannot be read" in text
            assert ".nii: there is no such file" in text
        assert (done.returncode == 2) == bool(out)
        if out:
            assert str(tmp_path / "file") in text
            assert "Give a place that can be written" in text
