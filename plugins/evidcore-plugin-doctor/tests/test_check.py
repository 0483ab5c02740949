"""Each fault is planted once, in its own patient; one run must find them all, and nothing else."""

import re
import tomllib
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from evidcore_plugin_doctor.fault import CHECKS
from scipy import ndimage

from evidcore.api import DataError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

LONG = (
    "There is a spiculated nodule of {size} mm in the {lobe} lobe that touches the pleura. The trachea is "
    "open. The heart is of normal size and the aorta measures {aorta} mm. No pleural fluid is seen on either "
    "side. In the liver there is a cyst of {cyst} mm near the dome, unchanged against the scan of last year."
)


LABELS = {"spleen": 1, "kidney_right": 2, "kidney_left": 3, "liver": 5, "stomach": 6}  # of TotalSegmentator


def report(size: int, lobe: str, aorta: int, cyst: int) -> str:
    return LONG.format(size=size, lobe=lobe, aorta=aorta, cyst=cyst)


def plant(home: Any, tools: Any) -> None:
    """Fill a folder with one fault a case."""
    torso, ellipsoid, organs = tools.torso, tools.ellipsoid, tools.ORGANS
    home.add("healthy", torso(0))
    home.add("healthy-ras", torso(1), axes="RAS")
    home.add("mirrored", torso(2)[:, :, ::-1])
    home.add("back-to-front", torso(3)[:, ::-1])
    home.add("upside-down", torso(4)[::-1])
    home.add("transposed", np.ascontiguousarray(torso(5).transpose(2, 1, 0)), spacing_mm=(5.0, 5.5, 6.0))
    home.add("twice-rescaled", np.maximum(torso(6) - 1024, -2048).astype(np.int16))
    home.add("blank", np.zeros_like(torso(10)))
    cut = torso(11)
    cut[ndimage.binary_dilation(cut < -700, iterations=2) & ~ellipsoid(*organs["lung_left"])] = 0
    home.add("background-cut", cut)
    path = home.add("truncated", torso(12))
    path.write_bytes(path.read_bytes()[:-1000])
    broken = torso(13).astype(np.float32)
    broken[5, 6, 7] = np.nan
    home.add("not-a-number", broken)
    home.add("metres", torso(14), spacing_mm=(0.006, 0.0055, 0.005))
    home.add("missing")
    masked = torso(17)
    whole = {name: ellipsoid(*at) for name, at in organs.items()}
    masks = {
        "liver": whole["liver"], "kidney_left": whole["kidney_left"], "right kidney": whole["kidney_right"],
        "other": home.mask("m-grid", np.ones((5, 5, 5)), (7.0, 7.0, 7.0)), "thin": np.zeros(masked.shape),
        "air": ellipsoid((0, -170, 0), (50, 20, 50)), "gone": "m-gone.nii.gz",
        "never": home.mask("m-never", whole["liver"]) + "#7",
    }  # fmt: skip
    home.add("masked", masked, masks=masks)
    home.add("masked-too", torso(18), masks="never=m-never.nii.gz#7")
    masks = {name: whole[name] for name in ("liver", "heart")}
    masks |= {"kidney_left": whole["kidney_right"], "kidney_right": whole["kidney_left"]}
    home.add("sides-swapped", torso(19), masks=masks)
    home.add("lesion-said", torso(20), masks={"nodule": np.zeros(masked.shape)}, nodule="1")
    home.add("first-half", torso(21), patient="p-shared", Sex="M")
    home.add("second-half", torso(22), patient="p-shared", split="test", Sex="F")
    tools.save_nifti(home.folder / "mirrored-new.nii.gz", torso(38), tools.SPACING_MM)
    home.add("misfiled", volume="mirrored-new.nii.gz", report="There is no nodule.", nodule="1")
    home.add("original", torso(23))
    home.add("same-file", patient="p-other")
    home.rows[-1]["volume"] = "original.nii.gz"
    home.add("same-voxels", torso(23), patient="p-third", split="test", axes="RPS")
    home.add("cropped", torso(0)[4:50, 8:60, 10:70], split="validation")
    zoomed = ndimage.zoom(torso(24).astype(np.float32), (1.5, 0.8, 0.8), order=1)
    home.add("wide", torso(24))
    steps = tuple(step * n / m for step, n, m in zip((6.0, 5.5, 5.0), tools.SHAPE, zoomed.shape, strict=True))
    noise = np.random.default_rng(1).normal(0, 20, zoomed.shape)
    home.add("resampled", (zoomed + noise).astype(np.int16), spacing_mm=steps)
    home.add("reconstruction", (zoomed - noise).astype(np.int16), spacing_mm=steps, patient="p-wide")
    home.add("told", torso(25), report=report(14, "right upper", 31, 9))
    home.add("told-again", torso(26), report="  " + report(14, "right upper", 31, 9).upper(), split="test")
    home.add("told-nearly", torso(27), report=report(14, "right upper", 31, 9) + " No other finding.")
    home.add("told-otherwise", torso(28), report="No nodule. " + report(7, "left lower", 38, 22))
    home.add("bad-cell", torso(29), nodule="perhaps")
    home.add("twin", torso(30))
    home.add("twin", torso(31), patient="p-twin-too", split="validation")
    home.add("nowhere", torso(32), split="training")
    home.add("spelt", torso(33), patient="Mu\u0308ller")
    home.add("spelt-otherwise", torso(34), patient="M\u00fcller", split="test")
    home.add("case-Id", torso(35), patient="035")
    home.add("case-id", torso(36), patient="35.0", split="validation")
    home.add("swapped", torso(37)[[*range(10), 40, *range(11, 40), 10, *range(41, 62)]])
    object_ = ellipsoid((-60, 30, 70), (40, 25, 30))
    shown = np.where(ellipsoid((0, 0, 0), (1e5, 110, 160)), 20, -1000) + 250 * object_
    shown = (shown + np.random.default_rng(42).normal(0, 8, tools.SHAPE)).astype(np.int16)
    masks = {"flipped": object_[:, :, ::-1], "full": np.ones(tools.SHAPE)}
    masks |= {
        "exchanged": object_.transpose(0, 2, 1),
        "gaps": object_ & (np.arange(62) % 3 == 0)[:, None, None],
    }
    home.add("masks-too", shown, masks=masks)


FOUND = TABLE["found"]


@pytest.fixture(scope="module")
def planted(tmp_path_factory, request):
    tools = request.getfixturevalue("tools")
    home = tools.Home(tmp_path_factory.mktemp("planted"))
    plant(home, tools)
    return home.check(processes=2, findings=["nodule"])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "check_name", "severity", "text"), FOUND, ids=lambda item: str(item)[:24])
def test_a_planted_fault_is_found(planted, case, check_name, severity, text):
    faults, _ = planted
    here = [fault for fault in faults if fault.check == check_name and fault.case == case]
    assert [fault for fault in here if re.search(text, fault.text) and fault.severity == severity], here


@pytest.mark.slow
def test_nothing_but_the_planted_faults_is_found(planted):
    faults, summary = planted
    for fault in faults:
        texts = [text for case, name, _, text in FOUND if (case, name) == (fault.case, fault.check)]
        assert any(re.search(text, fault.text) for text in texts), fault.line()
    assert summary.relatives == 1  # another reconstruction of a patient is counted, and no fault


def test_every_check_is_tested():
    assert {name for _, name, _, _ in FOUND} == set(CHECKS)


def test_a_clean_set_has_no_fault_and_is_counted(home, tools):
    body = tools.ellipsoid(*tools.ORGANS["liver"])
    for seed, split in enumerate(("train", "train", "validation", "test")):
        text = report(seed + 3, "left", 30 + seed, 7)
        home.add(f"c{seed}", tools.torso(seed), split=split, masks={"liver": body}, report=text)
    faults, summary = home.check()
    assert faults == []
    assert summary.cases == {"train": 2, "validation": 1, "test": 1}
    assert (summary.patients, summary.volumes, summary.masks, summary.reports) == (4, 4, 4, 4)
    assert (summary.errors, summary.warnings, summary.relatives) == ({}, {}, 0)


@pytest.mark.slow
def test_one_process_finds_what_two_find(home, tools):
    home.add("a", tools.torso(0)[:, ::-1])
    home.add("b", tools.torso(1))
    home.add("c")
    ours, theirs = home.check(processes=1)[0], home.check(processes=2)[0]
    assert [fault.line() for fault in ours] == [fault.line() for fault in theirs]
    assert len(ours) == 2


def test_labels_of_a_file_are_read_at_once_and_one_fault_of_them_is_told_in_one_line(home, tools):
    labels = np.zeros(tools.SHAPE, np.uint8)
    for number, index in enumerate(tools.ORGANS.values(), 1):
        labels[tools.ellipsoid(*index)] = number
    home.mask("labels", labels)
    masks = {name: f"labels.nii.gz#{number}" for number, name in enumerate(tools.ORGANS, 1)}
    home.add("sound", tools.torso(0), masks=masks)
    home.mask("other", np.ones((5, 5, 5)), (7.0, 7.0, 7.0))
    home.add("a", tools.torso(1), masks="liver=other.nii.gz#1;spleen=other.nii.gz#2")
    (fault,), _ = home.check()
    assert fault.text.startswith("'liver', 'spleen': the mask lies on another grid")


@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
def test_a_number_that_the_file_itself_gives_to_another_label_is_told(real_data, home, ending):
    data = real_data / "totalsegmentator"
    path = home.folder / f"organs{ending}"
    nibabel.save(nibabel.load(data / "example_seg.nii.gz"), path)
    masks = {name.replace("_", " "): f"{path}#{label}" for name, label in LABELS.items()}
    home.add("ct", volume=str(data / "example_ct_sm.nii.gz"), masks=masks)
    assert home.check()[0] == []
    home.rows[-1]["masks"] = f"spleen={path}#1;kidney right={path}#3;liver={path}#5;stomach={path}"
    (fault,) = (fault for fault in home.check()[0] if fault.part == "labels")
    assert fault.text.startswith("'kidney right': is label 3 by the table, label 2 by the file's own list")


def test_masks_against_an_axis_and_the_anatomy_make_one_fault(home, tools):
    turned = tools.torso(2)[:, :, ::-1]
    names = ("liver", "kidney_left", "kidney_right")
    masks = {name: tools.ellipsoid(*tools.ORGANS[name])[:, :, ::-1] for name in names}
    home.add("a", turned, masks=masks)
    (fault,), _ = home.check()
    assert fault.check == "orientation"
    assert "the liver lies on the left" in fault.text
    assert "by its masks, kidney left" in fault.text


def test_masks_of_the_smaller_of_two_legs_and_of_a_lung_cut_open_are_no_fault(home, tools):
    legs = np.full(tools.SHAPE, -1000, np.int16)
    left, right = (tools.ellipsoid((0, 0, side), (1e5, 60, size)) for side, size in ((70, 40), (-70, 60)))
    legs[left | right] = 40
    legs += np.random.default_rng(0).normal(0, 8, tools.SHAPE).astype(np.int16)
    home.add("legs", legs, masks={"tumour": left})
    lung = tools.ellipsoid(*tools.ORGANS["lung_left"])
    opened = (slice(20, 50), slice(20, 50), slice(40, 52))
    home.add("lung", tools.torso(2)[opened], masks={"left lung": lung[opened]})
    assert home.check()[0] == []


def test_a_set_that_lists_nothing_is_refused(home):
    with pytest.raises(DataError, match="dataset 'test': lists no case in any split"):
        home.check()


def test_faults_of_tables_come_from_the_set_and_files_from_its_cases(home, tools):
    home.add("a", tools.torso(0), split="trian")
    home.rows.append({"id": "b", "volume": "a.nii.gz", "patient": "", "split": "train"})
    home.rows.append({"id": "", "volume": "gone.nii.gz", "patient": "p", "split": "train"})
    faults, _ = home.check()
    lines = [fault.line() for fault in faults]
    assert [line.partition("line ")[2][:8] for line in lines[:3]] == ["2: case ", "3: case ", "4: colum"]
    assert "Did you mean 'train'?" in lines[0]
    assert lines[3].startswith("error   file: case 'line 4', ")
    assert len(lines) == 4


@pytest.mark.slow
def test_the_real_scans_raise_exactly_what_is_documented(home, real_data):
    """The set's README names the traps: a crop under another name, and a phantom of 5 x 4 x 4 voxels."""
    scans, whole = real_data / "ibsi_validation", real_data / "totalsegmentator"
    for folder in sorted(scans.glob("STS_*")):
        mask = folder / "CT_mask.nii.gz"
        home.add(folder.name, volume=str(folder / "CT_image.nii.gz"), masks=f"tumour={mask}")
    home.add("whole", volume=str(whole / "example_ct.nii.gz"))
    masks = {name: f"{whole / 'example_seg.nii.gz'}#{label}" for name, label in LABELS.items()}
    home.add("top", volume=str(whole / "example_ct_sm.nii.gz"), split="test", masks=masks)
    faults, summary = home.check(processes=2)
    result = [(fault.case, fault.check, fault.severity) for fault in faults]
    assert result == [("top", "near-duplicate", "error")]
    assert "shows what case 'whole' shows" in faults[0].text
    assert (summary.volumes, summary.masks) == (18, 21)


@pytest.mark.slow
def test_the_real_scans_of_other_kinds_raise_exactly_what_is_documented(home, real_data):
    for folder in sorted((real_data / "ibsi_validation").glob("STS_*")):
        for kind in ("PET", "MR_T1"):
            if (folder / f"{kind}_image.nii.gz").exists():
                image, mask = (str(folder / f"{kind}_{what}.nii.gz") for what in ("image", "mask"))
                home.add(f"{folder.name}-{kind}", volume=image, patient=folder.name, masks={"tumour": mask})
    for image in sorted((real_data / "msd_hippocampus/images").glob("*.nii.gz")):
        label = real_data / "msd_hippocampus/labels" / image.name
        home.add(image.name, volume=str(image), masks=f"anterior={label}#1;posterior={label}#2")
    home.add("mr", volume=str(real_data / "totalsegmentator/example_mr_sm.nii.gz"))
    home.add("digital", volume=str(real_data / "ibsi_digital_phantom/phantom.nii.gz"))
    faults, _ = home.check(processes=2, intensity="arbitrary")
    assert [(fault.case, fault.check) for fault in faults] == [("digital", "spacing")]
    assert "the scan spans 10 x 8 x 8 mm" in faults[0].text or "8 x 8 x 10 mm" in faults[0].text


def test_a_table_in_which_no_split_is_known_is_checked_with_many_processes(home, tools):
    home.add("a", split="trian")
    home.add("b", split="val")
    faults, summary = home.check(processes=2)
    assert [fault.check for fault in faults] == ["table", "table"]
    assert "'trian'" in faults[0].text
    assert summary.volumes == 0
