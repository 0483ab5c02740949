"""Answers about scans from outside: what is written, where the evidence lies, and what is refused."""

import dataclasses
import gzip
import hashlib
import json
import shutil

import nibabel as nib
import numpy as np
import pytest
import torch
from evidcore_plugin_dicom.phantom import write_series
from evidcore_plugin_lab.predict import Inquiry, predict_scan
from evidcore_plugin_pages.jinja import NOTICE

from evidcore.api import Answer, Case, Crop, DataError, Prompt, Task, TextPart, VisualPart, VolumeRef, read
from evidcore.case import Box, Evidence, MaskRef
from evidcore.errors import ContractError, RunError
from evidcore.model import assemble
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import start

OPTIONS = ("emphysema", "lung nodule", "consolidation")
SHAPE_XYZ = (20, 26, 16)  # along right-left, front-back and feet-head, whatever the file's order
CUBE_XYZ = (slice(5, 8), slice(11, 16), slice(4, 7))
AXES = ("RAS", "LPS", "LAI", "PSR", "SAL", "IRP")


@pytest.fixture(scope="session")
def chest(small_run, tmp_path_factory):
    """A phantom, as a file that someone has."""
    case = Assembly(load(small_run / "resolved.toml")).split("chest", "train")[0]
    path = tmp_path_factory.mktemp("scan") / "chest.nii"
    shutil.copyfile(case.volumes[0].path, path)
    return path


def predict(run, scan, out, *, unlike=True, **asked):
    """Ask; most scans here are made by hand and nothing like a chest."""
    return predict_scan(run, Inquiry(scan=str(scan), unlike=unlike, **asked), out)


def policy_of(run):
    model, processor = assemble.load(run / "checkpoints" / "03-sft")
    return VLMPolicy(model, processor, seed=17)


def question(scan, *, blank=False):
    """The prompt as it must be, written by hand."""
    options = "".join(f"\n{letter}) {name}" for letter, name in zip("ABC", OPTIONS, strict=True))
    ref = VolumeRef(path=str(scan))
    text = TextPart(text=f"Which finding is present?{options}\nThink, then answer.")
    parts = (VisualPart(crop=Crop(volume=ref, blank=blank)), text)
    return Prompt(id="by hand", case=Case(id="x", patient=None, volumes=(ref,)), task="choice", parts=parts)


def test_a_report_is_what_the_model_writes_greedily(small_run, chest, tmp_path):
    result = predict(small_run, chest, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "answer.json").read_text())
    assert record == result.record
    prompt = question(chest)
    parts = (prompt.parts[0], TextPart(text="Write the report."))
    prompt = dataclasses.replace(prompt, task="report", parts=parts)
    (text,) = policy_of(small_run).generate([prompt], max_new_tokens=24)
    assert text.strip()
    assert record["completion"] == text
    assert record["prompt"] == "<image>Write the report."
    assert (tmp_path / "out" / "report.txt").read_text() == record["report"] + "\n"
    assert set(record["findings"]) == {"words"}
    assert record["model"]["stage"] == "03-sft"
    weights = (small_run / "checkpoints" / "03-sft" / "model.safetensors").read_bytes()
    assert record["model"]["sha256"] == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert record["evidence"] is None
    assert not (tmp_path / "out" / "mask.nii.gz").exists()
    volume = read(VolumeRef(path=str(chest)))
    assert record["scan"]["shape_zyx"] == list(volume.shape_zyx)
    assert record["scan"]["voxel_to_mm_zyx"] == volume.affine.tolist()
    assert record["data"]["chest"]["fingerprint"] in (small_run / "lock.toml").read_text()


def test_options_carry_their_likelihood_with_and_without_the_scan(small_run, chest, tmp_path):
    rows = predict(small_run, chest, tmp_path / "out", options=OPTIONS).record["options"]
    policy = policy_of(small_run)
    letters = [f"<answer>{letter}</answer>" for letter in "ABC"]
    verdicts = []
    for right in "ABC":
        states = ["present" if letter == right else "absent" for letter in "ABC"]
        said = [f"{x} {name} {state}." for x, name, state in zip("ABC", OPTIONS, states, strict=True)]
        verdicts.append(f"<think>{' '.join(said)}</think><answer>{right}</answer>")
    for blank in (False, True):
        prompt = question(chest, blank=blank)
        sides = [row["blank"] if blank else row for row in rows]
        (bare,) = policy.log_likelihoods([prompt], [letters])
        (whole,) = policy.log_likelihoods([prompt], [verdicts])
        assert [side["log_likelihood"] for side in sides] == pytest.approx(bare, abs=1e-3)
        assert [side["verdict_log_likelihood"] for side in sides] == pytest.approx(whole, abs=1e-3)
        shares = torch.tensor(whole, dtype=torch.float64).softmax(0).tolist()
        assert [side["share"] for side in sides] == pytest.approx(shares, abs=1e-3)
    assert [(row["letter"], row["option"]) for row in rows] == list(zip("ABC", OPTIONS, strict=True))
    assert rows[0]["log_likelihood"] != rows[0]["blank"]["log_likelihood"]


def test_the_answer_to_a_volume_of_air_stands_beside_it(small_run, chest, tmp_path):
    record = predict(small_run, chest, tmp_path / "out", options=(*OPTIONS[:2], "gout")).record
    assert record["options_not_trained"] == ["gout"]
    on_scan, on_air = (
        max(record["options"], key=share)["letter"]
        for share in (lambda row: row["share"], lambda row: row["blank"]["share"])
    )
    assert record["blank"]["same_likeliest_option"] == (on_scan == on_air)
    assert record["blank"]["same_completion"] == (record["blank"]["completion"] == record["completion"])


class Pointing(Task):
    """Points at the brightest voxels, whatever the model writes: nothing here can learn to."""

    shift = 0
    what = "boxes"
    times = 1

    def prompts(self, case, view, seed):
        text = TextPart(text="Where is the cube?")
        parts = (*view.render(case), text)
        return [Prompt(id=f"{case.id}:cube", case=case, task="pointing", parts=parts)] * self.times

    def parse(self, prompt, completion):
        array = read(prompt.case.volumes[0]).array
        z, y, x = np.where(array > 900)
        edges = {"y0": y.min(), "y1": y.max() + 1, "x0": x.min(), "x1": x.max() + 1 + self.shift}
        slices = range(z.min(), z.max() + 1)
        boxes = tuple(Box(z=int(place), **{k: int(v) for k, v in edges.items()}) for place in slices)
        if self.what == "slice":
            return Answer(text=completion, evidence=Evidence(slice=boxes[1].z))
        if self.what == "mask":
            path = f"{prompt.case.volumes[0].path}.npz"
            np.savez(path, cube=array > 900)
            return Answer(text=completion, evidence=Evidence(mask=MaskRef(path=path, key="cube")))
        return Answer(text=completion, evidence=Evidence(slice=boxes[1].z, boxes=boxes))

    def gold(self, prompt):
        return "Here.", ()


@pytest.fixture
def pointing_run(copied_run, offered):
    kind = type("Pointing", (Pointing,), {})
    offered("pointing-pack", "[evidcore.task]\npointing = pointing_pack:Pointing\n", Pointing=kind)
    resolved = copied_run / "resolved.toml"
    resolved.write_text(resolved.read_text() + '\n[task.pointing]\nuse = "pointing"\n')
    return copied_run, kind


def planted(path, axes):
    """Write a cube of 1000 HU in soft tissue; return where it is, in the file's own order."""
    array = np.full(SHAPE_XYZ, -1000, np.int16)
    array[2:-2, 2:-2] = 40
    array[CUBE_XYZ] = 1000
    affine = np.diag([2.0, 1.5, 4.0, 1.0])
    affine[:3, 3] = (-31.0, 12.0, 250.0)
    image = nib.Nifti1Image(array, affine)
    turn = nib.orientations.ornt_transform(*map(nib.orientations.axcodes2ornt, ("RAS", axes)))
    image = image.as_reoriented(turn)
    assert "".join(nib.aff2axcodes(image.affine)) == axes
    nib.save(image, path)
    return np.asarray(image.dataobj) == 1000, image.affine


@pytest.mark.slow
@pytest.mark.parametrize("axes", AXES)
def test_a_planted_cube_comes_back_on_the_original_grid(pointing_run, tmp_path, axes):
    run, _ = pointing_run
    cube, affine = planted(tmp_path / "scan.nii.gz", axes)
    record = predict(run, tmp_path / "scan.nii.gz", tmp_path / "out", task="pointing").record
    mask = nib.load(tmp_path / "out" / "mask.nii.gz")
    np.testing.assert_array_equal(np.asarray(mask.dataobj) > 0, cube)
    np.testing.assert_allclose(mask.affine, affine, atol=1e-4)
    evidence = record["evidence"]
    np.testing.assert_allclose(evidence["file_voxel_to_mm_ras"], affine, atol=1e-4)
    assert evidence["mask"]["voxels"] == cube.sum() == 45
    assert evidence["mask"]["volume_ml"] == pytest.approx(45 * 2 * 1.5 * 4 / 1000)
    # the slices' boxes together are the cube, in the file's own indices
    starts = np.array([box["in_file"]["start_ijk"] for box in evidence["boxes"]]).min(axis=0)
    stops = np.array([box["in_file"]["stop_ijk"] for box in evidence["boxes"]]).max(axis=0)
    places = np.argwhere(cube)
    np.testing.assert_array_equal(starts, places.min(axis=0))
    np.testing.assert_array_equal(stops, places.max(axis=0) + 1)
    # the cube's outer corners in mm, from NIfTI's affine, x and y turned to LPS
    corners = nib.affines.apply_affine(affine, np.array([starts, stops]) - 0.5) * [-1, -1, 1]
    ends = np.array([[box["from_mm_zyx"], box["to_mm_zyx"]] for box in evidence["boxes"]])
    np.testing.assert_allclose(ends.min(axis=(0, 1)), corners.min(axis=0)[::-1], atol=1e-3)
    np.testing.assert_allclose(ends.max(axis=(0, 1)), corners.max(axis=0)[::-1], atol=1e-3)
    # the key slice is the cube's middle one, on the file's axis that runs from feet to head
    axis = next(number for number, letter in enumerate(axes) if letter in "SI")
    middle = (places[:, axis].min() + places[:, axis].max()) // 2
    assert evidence["slice_in_file"] == {"axis": "ijk"[axis], "index": middle}


@pytest.mark.parametrize("what", ["slice", "mask"])
def test_a_slice_alone_has_no_mask_and_a_mask_has_a_key_slice(pointing_run, tmp_path, what):
    run, kind = pointing_run
    kind.what = what
    cube, _ = planted(tmp_path / "scan.nii.gz", "LPS")
    evidence = predict(run, tmp_path / "scan.nii.gz", tmp_path / "out", task="pointing").record["evidence"]
    assert evidence["boxes"] == []
    assert evidence["slice"] in (4, 5, 6)
    assert evidence["slice_in_file"] == {"axis": "k", "index": evidence["slice"]}
    assert evidence["slice_mm"] == 250 + 4 * evidence["slice"]
    if what == "slice":
        assert evidence["mask"] is None
        assert not (tmp_path / "out" / "mask.nii.gz").exists()
    else:
        mask = np.asarray(nib.load(tmp_path / "out" / "mask.nii.gz").dataobj) > 0
        np.testing.assert_array_equal(mask, cube)
        assert '<span class="key s0">mask</span>' in (tmp_path / "out" / "index.html").read_text()


def test_evidence_outside_the_volume_is_the_tasks_fault(pointing_run, tmp_path):
    run, kind = pointing_run
    planted(tmp_path / "scan.nii.gz", "RAS")
    kind.shift = 50
    said = r"'pointing' from pointing-pack 1\.0: .* x1=65\), outside .* 16x26x20"
    with pytest.raises(ContractError, match=said):
        predict(run, tmp_path / "scan.nii.gz", tmp_path / "out", task="pointing")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_the_page_shows_the_key_slice_with_its_boxes_and_needs_no_network(pointing_run, tmp_path):
    run, _ = pointing_run
    planted(tmp_path / "scan.nii.gz", "RAS")
    predict(run, tmp_path / "scan.nii.gz", tmp_path / "out", task="pointing")
    page = (tmp_path / "out" / "index.html").read_text()
    body = page[page.index("<body>") :]
    assert body.index(NOTICE) < body.index("<h1>")
    assert "slice 5 of 16" in body
    assert "Key slice 5 of 16." in body
    assert body.count("<summary>Scan, model, data, software</summary>") == 1
    # RAS: x runs to the right there and to the left here, 20 voxels wide; y to the front there, 26 high
    assert '<path d="M12 10H15M12 15H15M12 10V15M15 10V15" class="s0">' in body
    assert '<span class="key s0">boxes</span>' in body
    assert ">mask</span>" not in body  # it is the boxes, filled
    assert "http://" not in body.replace("http://www.w3.org", "")
    assert "https://" not in body


def test_no_name_in_a_header_comes_out(pointing_run, tmp_path):
    run, _ = pointing_run
    _, affine = planted(tmp_path / "scan.nii.gz", "RAS")
    image = nib.load(tmp_path / "scan.nii.gz")
    array = np.asarray(image.dataobj)
    header = image.header.copy()
    for field in ("descrip", "db_name", "aux_file", "intent_name"):
        header[field] = b"DOE^JANE"
    named = nib.Nifti1Image(array, affine, header)
    named.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"DOE^JANE 1950"))
    nib.save(named, tmp_path / "named.nii.gz")
    assert b"DOE^JANE" in gzip.decompress((tmp_path / "named.nii.gz").read_bytes())
    predict(run, tmp_path / "named.nii.gz", tmp_path / "out", task="pointing")
    for path in (tmp_path / "out").iterdir():
        content = path.read_bytes()
        content = gzip.decompress(content) if path.name.endswith(".gz") else content
        assert b"DOE^JANE" not in content, path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"task": "chioce"}, r"no task 'chioce'\. Did you mean 'choice'\? Its tasks: choice, report"),
        ({"task": "choice"}, r"--task choice: task 'choice' from evidcore 0\.1\.0 asks nothing .* --option"),
        ({"question": "Is it there?"}, r"--question 'Is it there\?' has no options.*--option at least twice"),
        ({"options": ("gout",)}, r"2 to 8 options, got 1: \['gout'\]"),
        ({"options": tuple("abcdefghi")}, r"2 to 8 options, got 9"),
        ({"options": ("gout", "gout")}, r"--option: 'gout' stands there twice"),
        ({"options": ("gout", " ")}, r"--option: ' ' is empty"),
        ({"task": "report", "options": OPTIONS}, r"task 'report' .* takes no options, got \['emphysema'"),
    ],
)  # fmt: skip
def test_a_question_without_use_is_refused(small_run, chest, tmp_path, asked, said):
    with pytest.raises(RunError, match=said):
        predict(small_run, chest, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_a_task_that_asks_several_things_is_refused(pointing_run, chest, tmp_path):
    run, kind = pointing_run
    kind.times = 2
    with pytest.raises(RunError, match=r"--task pointing: .*pointing-pack 1\.0 asks 2 questions"):
        predict(run, chest, tmp_path / "out", task="pointing")


def test_scans_that_cannot_be_used_are_named_with_a_remedy(small_run, tmp_path):
    with pytest.raises(DataError, match=r"none\.nii: there is no such file"):
        predict(small_run, tmp_path / "none.nii", tmp_path / "out")
    mr = leaning(tmp_path / "mr.nii", np.arange(512, dtype=np.int16).reshape(8, 8, 8))
    # also where it is resampled into air
    assert read(VolumeRef(path=str(mr), tilted="resample")).array.min() == -1000
    said = r"mr\.nii: the values run from 0 to 511, so this is no CT in HU.*windows = \[\]"
    with pytest.raises(DataError, match=said):
        predict(small_run, mr, tmp_path / "out", tilted="resample")
    assert not (tmp_path / "out").exists()


def leaning(path, array, degrees=20.0):
    """Write an array whose axes are turned about the patient's left-right axis."""
    angle = np.radians(degrees)
    affine = np.diag([2.0, 2.0, 2.0, 1.0])
    affine[1:3, 1:3] = 2 * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


@pytest.fixture
def two_series(tmp_path):
    """A folder that holds the series 1.2.3 and 1.2.4."""
    array = np.full((8, 8, 8), -1000, np.int16)
    folder = write_series(tmp_path / "series", array)
    for file in write_series(tmp_path / "other", array + 1, series="1.2.4").iterdir():
        shutil.move(file, folder / f"other-{file.name}")
    return folder


def test_a_refused_scan_names_the_flag_that_mends_it(small_run, two_series, tmp_path):
    scan = leaning(tmp_path / "lean.nii", np.full((8, 8, 8), -1000, np.int16))
    with pytest.raises(DataError, match=r"oblique, 20\.0° off .* Add --tilted resample to have it"):
        predict(small_run, scan, tmp_path / "out")
    with pytest.raises(DataError, match=r"holds 2 series: .* Name one with --series UID, or put each"):
        predict(small_run, two_series, tmp_path / "out")
    with pytest.raises(DataError, match=r"holds no series '1\.2\.9'.* Correct --series\."):
        predict(small_run, two_series, tmp_path / "out", series="1.2.9")


def test_the_record_says_which_series_was_read_and_how(small_run, two_series, tmp_path):
    results = [predict(small_run, two_series, tmp_path / uid, series=uid) for uid in ("1.2.3", "1.2.4")]
    first, second = (result.record["scan"] for result in results)
    assert (first["series"], second["series"]) == ("1.2.3", "1.2.4")
    assert first["fingerprint"] != second["fingerprint"]
    assert (first["tilted"], first["resampled"]) == ("refuse", False)
    scan = leaning(tmp_path / "lean.nii", np.full((8, 8, 8), -1000, np.int16))
    result = predict(small_run, scan, tmp_path / "lean", tilted="resample").record["scan"]
    assert (result["series"], result["tilted"], result["resampled"]) == (None, "resample", True)


def test_nothing_is_overwritten(small_run, chest, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match=r"the folder is not empty \('mine\.txt' is in it\)"):
        predict(small_run, chest, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_unfinished_run_names_the_stage_and_the_command(copied_run, chest, tmp_path):
    (copied_run / "checkpoints" / "03-sft").unlink()
    with pytest.raises(RunError, match=rf"03-sft has not finished\. `evid resume {copied_run}`"):
        predict(copied_run, chest, tmp_path / "out")


def test_a_recipe_that_trains_nothing_has_no_model(small_run, chest, tmp_path):
    data = '[{ dataset = "chest", task = "report" }]'
    fit = f'[[stage]]\nkind = "fit"\ncomponent = "model.language"\ndata = {data}\n'
    path = tmp_path / "bare.toml"
    path.write_text((small_run / "recipe.toml").read_text().partition("[[stage]]")[0] + fit)
    folder = start(load(path), tmp_path / "runs")
    (folder.path / "checkpoints" / "01-fit-language").mkdir()
    with pytest.raises(RunError, match=r"trains no model that could answer: it has no sft and no grpo stage"):
        predict(folder.path, chest, tmp_path / "out")


def test_questions_reach_the_task_as_typed(small_run, chest, tmp_path):
    asked = {"question": "What does the chest show?", "options": OPTIONS[:2]}
    record = predict(small_run, chest, tmp_path / "out", **asked).record
    options = "A) emphysema\nB) lung nodule"
    assert record["prompt"] == f"<image>What does the chest show?\n{options}\nThink, then answer."
    assert record["task"] == "choice"
