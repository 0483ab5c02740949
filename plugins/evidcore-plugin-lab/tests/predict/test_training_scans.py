"""What a run's training scans were like: measured once, compared with, and what is refused for it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_lab.predict import Inquiry, describe_training, predict_scan
from evidcore_plugin_lab.predict.training_scans import FILE, TrainingScans, figures_of
from evidcore_testing.data import save_nifti
from evidcore_testing.recipes import phantoms, recipe_text

from evidcore.api import DataError, VolumeRef, read
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import run, start

SFT = {"kind": "sft", "train": ["bridge", "language"], "steps": 1, "rows_per_step": 2, "learning_rate": 1e-3}
RECIPE = recipe_text(
    {**SFT, "data": [{"dataset": "chest", "task": "report"}]},
    name="chests",
    dataset={"chest": phantoms(12, 6, 6), "belly": {**phantoms(1, 1, 2), "use": "phantom-abdomen"}},
)


@pytest.fixture(scope="module")
def chests(tmp_path_factory):
    """A run that was trained on chests, whose recipe also knows abdomens."""
    root = tmp_path_factory.mktemp("chests")
    (root / "recipe.toml").write_text(RECIPE)
    folder = start(load(root / "recipe.toml"), root / "runs")
    run(folder)
    return folder


def scans(folder, dataset):
    cases = Assembly(load(folder.path / "resolved.toml")).split(dataset, "test")
    return [case.volumes[0].path for case in cases]


def ask(folder, scan, out, **asked):
    return predict_scan(folder.path, Inquiry(scan=str(scan), **asked), out).record


@pytest.mark.slow
def test_scans_like_those_of_training_are_near(chests, tmp_path):
    for number, scan in enumerate(scans(chests, "chest")[:3]):
        record = ask(chests, scan, tmp_path / f"chest-{number}")
        assert [item for item in record["unlike"] if item["is_far"]] == []


@pytest.mark.slow
def test_an_abdomen_is_refused_with_a_sentence_or_answered_after_a_warning(evid, chests, tmp_path):
    belly, out = scans(chests, "belly")[0], tmp_path / "belly"
    said = r"is far outside of what the model of this run was trained on: its .*training scan.* add --unlike"
    assert re.search(said, evid("predict", chests.path, belly, "--out", out, exit_code=2).stderr)
    assert not out.exists()
    text = evid("predict", chests.path, belly, "--out", out, "--unlike").output
    record = json.loads((out / "answer.json").read_text())
    far = next(item["sentence"] for item in record["unlike"] if item["is_far"])
    assert far in (out / "index.html").read_text()
    assert record["completion"]
    warning = record["unlike"][0]["sentence"]
    assert 0 < text.index(warning) < text.index(record["completion"].strip() or "(it wrote nothing)")
    assert "Data chest (phantom-chest, generated phantoms, no patients): 12 patients, 12 scans." in text


def test_without_a_scan_the_command_says_what_the_model_was_trained_on(evid, chests):
    text = evid("predict", chests.path).stdout
    assert text.startswith("Data chest (phantom-chest, generated phantoms, no patients): 12 patients, 12 ")
    assert "Findings of chest: " in text
    assert "lung nodule" in text
    assert "belly" not in text
    assert "The middle 98 % of 12 training scans: spacing along z in mm 10 to 10;" in text
    training = json.loads(evid("predict", chests.path, "--json").stdout)
    assert training == describe_training(chests.path)
    assert training["scans"]["ranges"]["size along z in mm"] == [320.0, 320.0]
    assert training["scans"]["measured"] == 12


@pytest.mark.slow
def test_training_scans_are_measured_once_and_without_names(chests):
    describe_training(chests.path)
    text = (chests.path / FILE).read_text()
    cases = Assembly(load(chests.path / "resolved.toml")).split("chest", "train")
    assert not any(case.id in text or Path(case.volumes[0].path).name in text for case in cases)
    table = json.loads(text)
    assert {len(values) for values in table["figures"].values()} == {12}
    kept = {**table, "figures": {"spacing along z in mm": [9.0]}}
    for content, measured in ((kept, 1), ({**kept, "layout": 1}, 12), ("{", 12)):
        (chests.path / FILE).write_text(json.dumps(content))
        assert describe_training(chests.path)["scans"]["measured"] == measured


def test_a_run_without_its_data_says_that_nothing_was_compared(evid, copied_run, offered, tmp_path):
    scan = Assembly(load(copied_run / "resolved.toml")).split("chest", "test")[0].volumes[0].path
    shutil.copyfile(scan, tmp_path / "scan.nii")
    (copied_run / FILE).unlink(missing_ok=True)

    from evidcore.api import Dataset

    class Gone(Dataset):
        findings = ("lung nodule",)

        def cases(self, split):
            raise DataError("cases.csv: there is no such file.")

        def fingerprint(self):
            return "gone"

    offered("gone-pack", "[evidcore.dataset]\ngone = gone_pack:Gone\n", Gone=Gone)
    resolved = (copied_run / "resolved.toml").read_text()
    head, _, rest = resolved.partition("[dataset.chest]")
    tail = rest.partition("\n[")[2]
    (copied_run / "resolved.toml").write_text(f'{head}[dataset.chest]\nuse = "gone"\n\n[{tail}')
    text = evid("predict", copied_run, tmp_path / "scan.nii", "--out", tmp_path / "out").output
    assert "Data chest (gone): not here." in text
    assert "is not known, so no scan can be compared: the training cases of chest are not here." in text
    assert json.loads((tmp_path / "out" / "answer.json").read_text())["unlike"] == []
    assert not (copied_run / FILE).exists()


def test_an_excess_of_one_is_a_factor_of_two_or_200_hu_and_spacing_alone_refuses_none():
    middle = {"spacing along z in mm": 1.5, "size along z in mm": 300.0, "50 % quantile of HU but air": 30.0}
    known = TrainingScans({name: [value] * 20 for name, value in middle.items()})
    assert known.unlike(middle) == known.unlike({}) == []
    for name, value in middle.items():
        for excess in (0.2, 0.3, 0.7, 0.8):
            ends = (value + 200 * excess, value - 200 * excess)
            ends = ends if "HU" in name else (value * 2**excess, value / 2**excess)
            for end in ends:
                told = [(item["measure"], item["is_far"]) for item in known.unlike({**middle, name: end})]
                assert told == ([(name, excess > 0.75 and "spacing" not in name)] if excess > 0.25 else [])
    (unlike,) = known.unlike({**middle, "size along z in mm": 100.0})
    assert unlike["sentence"] == "its size along z in mm is 100, that of training scans 300 to 300"


def test_one_odd_scan_in_a_hundred_widens_no_range():
    figures = {"size along z in mm": [*np.linspace(280, 320, 99), 2000.0]}
    (high,) = (item["high"] for item in TrainingScans(figures).unlike({"size along z in mm": 1000.0}))
    assert high < 400


def test_measures_are_those_of_the_file(tmp_path):
    array = np.full((30, 20, 10), -1000, np.int16)
    array[..., :5] = 40
    array[..., 0] = 1000
    save_nifti(tmp_path / "scan.nii", array, (4.0, 1.5, 2.0))
    figures = figures_of(read(VolumeRef(path=str(tmp_path / "scan.nii"))))
    assert figures["spacing along z in mm"] == 4.0
    assert figures["size along z in mm"] == 120.0
    assert figures["size along x in mm"] == 20.0
    assert figures["50 % quantile of HU but air"] == 40.0
    assert figures["95 % quantile of HU but air"] == 1000.0
    arbitrary = figures_of(read(VolumeRef(path=str(tmp_path / "scan.nii"), intensity="arbitrary")))
    assert not any("HU" in name for name in arbitrary)


def test_a_thigh_is_no_chest(chests, real_data, tmp_path):
    thighs = sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz"))[:2]
    assert thighs
    for number, thigh in enumerate(thighs):
        with pytest.raises(DataError, match=r"is far outside of what the model .* training scans"):
            ask(chests, thigh, tmp_path / f"thigh-{number}", tilted="resample")
