"""What a run's training scans were like: measured once, compared with, and what is refused for it."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_lab.predict import Inquiry, describe_training, predict_scan
from evidcore_plugin_lab.predict.training_scans import FEATURES, FILE, TrainingScans, figures_of
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
    assert training["scans"]["validation_scans"] == 6


@pytest.mark.slow
def test_training_scans_are_measured_once_and_without_names(chests, copied_run):
    describe_training(chests.path)
    text = (chests.path / FILE).read_text()
    cases = Assembly(load(chests.path / "resolved.toml")).split("chest", "train")
    assert not any(case.id in text or Path(case.volumes[0].path).name in text for case in cases)
    table = json.loads(text)
    assert len(table["features"]) == len(table["patients"]) == 12
    # what lies there is used while it is of this model
    table["bound"] = 9.0
    (chests.path / FILE).write_text(json.dumps(table))
    assert describe_training(chests.path)["scans"]["bound"] == 9.0
    (chests.path / FILE).write_text(json.dumps({**table, "model": "another"}))
    assert describe_training(chests.path)["scans"]["bound"] < 9.0
    (chests.path / FILE).write_text("{")
    assert describe_training(chests.path)["scans"]["bound"] < 9.0


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


def made(count=40, seed=3, **more):
    """Training scans as numbers: one measure of each kind, features in 4 channels."""
    rng = np.random.default_rng(seed)
    figures = {
        "spacing along z in mm": rng.uniform(1, 2, count).tolist(),
        "50 % quantile of HU but air": rng.uniform(20, 40, count).tolist(),
    }
    features = rng.normal(size=(count, 4))
    return TrainingScans(model="m", patients=[*range(count)], figures=figures, features=features, **more)


def alike(count, seed):
    other = made(count, seed)
    rows = [{name: values[place] for name, values in other.figures.items()} for place in range(count)]
    return list(zip(rows, other.features, strict=True))


def test_at_most_one_scan_in_twenty_of_either_split_is_warned_of():
    validation = alike(60, 4)
    known = made().calibrated(validation)
    assert sum(bool(known.unlike(*item)) for item in validation) <= 3
    fresh = alike(400, 5)
    assert sum(bool(known.unlike(*item)) for item in fresh) <= 40  # none of these set the bound
    # few scans cannot tell what is usual: none of them is warned of
    few = alike(5, 6)
    assert not any(made(5).calibrated(few).unlike(*item) for item in few)


def test_an_excess_of_one_is_a_factor_of_two_200_hu_or_twice_the_distance():
    known = made()
    (low_mm, high_mm), (low_hu, high_hu) = known.ranges().values()
    middle = {"spacing along z in mm": 1.5, "50 % quantile of HU but air": 30.0}
    near = known.features[0]
    names = list(middle)

    def told(bound, figures=None, vector=near):
        unlike = dataclasses.replace(known, bound=bound).unlike({**middle, **(figures or {})}, vector)
        return [(item["measure"], item["is_far"]) for item in unlike]

    assert told(0.25) == []
    lengths, values = (2 * high_mm, low_mm / 2), (high_hu + 200, low_hu - 200)
    for name, value in [*((names[0], item) for item in lengths), *((names[1], item) for item in values)]:
        assert told(1.01, {name: value}) == []
        assert told(0.99, {name: value}) == [(name, False)]
        # resampled to what the encoder takes: spacing alone refuses no scan
        assert told(0.4, {name: value}) == [(name, name == names[1])]
    away = near + 100.0
    ((_, is_far),) = told(0.25, vector=away)
    assert is_far
    (unlike,) = dataclasses.replace(known, bound=0.25).unlike(middle, away)
    # by hand: channels in units of their spread, the nearest of all
    scale = np.maximum(known.features.std(axis=0), 0.1 * known.features.std(axis=0).mean())
    apart = np.linalg.norm((known.features[:, None] - known.features[None]) / scale, axis=-1)
    np.fill_diagonal(apart, np.inf)
    assert unlike["measure"] == FEATURES
    assert unlike["value"] == pytest.approx(np.linalg.norm((away - known.features) / scale, axis=-1).min())
    assert unlike["high"] == pytest.approx(np.quantile(apart.min(axis=1), 0.99))
    times = f"{unlike['value'] / unlike['high']:.1f} times as far"
    assert unlike["sentence"] == (
        f"its encoder features lie {times} from the nearest training scan as those of nearly all training "
        "scans"
    )


def test_scans_of_one_patient_are_no_neighbours_of_each_other():
    known = made(8)
    figures = {name: [*values, *values] for name, values in known.figures.items()}
    features = np.concatenate([known.features, known.features])
    twice = dataclasses.replace(known, patients=[*known.patients] * 2, figures=figures, features=features)
    far = known.features[0] + 100.0
    unlike = [item for scans in (known, twice) for item in scans.unlike({}, far)]
    first, second = (item for item in unlike if item["measure"] == FEATURES)
    assert second["high"] == pytest.approx(first["high"], rel=0.05)  # not 0


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


def test_what_is_kept_comes_back_as_it_was():
    known = made()
    again = TrainingScans.from_json(json.loads(json.dumps(known.to_json())))
    np.testing.assert_allclose(again.features, known.features, rtol=1e-4)
    assert again.ranges() == known.ranges()
    assert again.bound == known.bound


def test_a_thigh_is_no_chest(chests, real_data, tmp_path):
    thighs = sorted((real_data / "ibsi_validation").glob("STS_*/CT_image.nii.gz"))[:2]
    assert thighs
    for number, thigh in enumerate(thighs):
        with pytest.raises(DataError, match=r"is far outside .* its encoder features lie"):
            ask(chests, thigh, tmp_path / f"thigh-{number}", tilted="resample")
