"""What holds for the phantoms of every region: on disk, between splits and between options."""

import functools
from pathlib import Path

import nibabel
import numpy as np
import pytest
from evidcore_plugin_phantoms.cues import Cues
from evidcore_plugin_phantoms.phantoms import spread, write
from evidcore_testing.checks_dataset import check_dataset

from evidcore.api import read

GRIDS_XYZ = {
    "chest": ((64, 64, 32), (5.5, 5.5, 10.0)),
    "abdomen": ((64, 48, 24), (384 / 64, 288 / 48, 300 / 24)),
    "slices": ((512, 512, 2), (0.8, 0.8, 3.0)),
}
CHANGES = [{"train_cases": 7}, {"validation_cases": 6}, {"test_cases": 25}, {"seed": 18}]
PRIORS = [{"prior_strength": 0.1}, {"subtlety": 1.5}, {"prevalence": 0.3}]
CHANGES_OF_ONE = {
    "chest": [
        *PRIORS,
        {"questions_per_finding": 5},
        *({"cues": Cues(**{cue: 0.5})} for cue in ("header_cue", "device_cue", "table_cue", "company")),
        {"cues": Cues(cue_of="lung nodule")},
    ],
    "abdomen": [
        *PRIORS, {"queries_per_case": 5}, {"kinds": ("organ",)}, {"size_zyx": (24, 48, 66)},
        {"scan_shift_mm": 30.0}, {"in_plane_shift_mm": 10.0}, {"size_spread": 0.1}, {"mirrored": 0.5},
    ],
    "slices": [
        {"radius_px": (4.0, 4.5)}, {"annotated": False}, {"cut_px": (48, 512)}, {"cut_px": (512, 512)},
    ],
}  # fmt: skip
EVERY = pytest.mark.parametrize("region", CHANGES_OF_ONE, indirect=True)


@pytest.fixture(scope="module", params=["chest", "abdomen"])
def region(request):
    return request.param


@pytest.fixture(scope="module")
def phantoms(request, region):
    return request.getfixturevalue(region)


@pytest.fixture(scope="module")
def cases(phantoms):
    return list(phantoms().cases("test"))


def asked(cases):
    return [(case, each.text) for case in cases for each in (*case.questions, *case.queries)]


@pytest.mark.parametrize("name", ["phantom-chest", "phantom-abdomen", "phantom-slices"])
def test_it_keeps_the_contract_of_a_dataset(name, request):
    make = request.getfixturevalue(name.removeprefix("phantom-"))
    check_dataset(make(), other=make(seed=18))


@EVERY
def test_a_volume_lies_in_the_body_as_declared(region, phantoms, cases):
    image = nibabel.load(cases[0].volumes[0].path)
    shape, spacing_mm = GRIDS_XYZ[region]
    assert image.shape == shape
    assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")
    assert image.header.get_zooms() == pytest.approx(spacing_mm)
    assert image.get_data_dtype() == np.int16
    volume = read(cases[0].volumes[0])
    assert np.array_equal(volume.array, phantoms().draw("test", 0).hu)
    assert volume.spacing_mm_zyx == pytest.approx(spacing_mm[::-1])


def test_a_volume_without_a_finding_is_drawn_when_it_is_asked_for_and_kept(phantoms, tmp_path):
    dataset = type(phantoms())(tmp_path, **phantoms.keywords)
    case = next(case for case in dataset.cases("test") if case.present())
    finding, before = case.present()[0], set(tmp_path.rglob("*.nii"))
    assert dataset.without(case, "broken leg") is None
    (ref,) = dataset.without(case, finding)
    path, first = Path(ref.path), read(ref).array
    assert set(tmp_path.rglob("*.nii")) - before == {path}
    written = path.stat()
    assert dataset.without(case, finding) == (ref,)
    assert path.stat().st_mtime_ns == written.st_mtime_ns
    path.unlink()
    assert np.array_equal(read(dataset.without(case, finding)[0]).array, first)


@EVERY
def test_splits_and_seeds_share_no_patient_and_no_picture(phantoms):
    splits = ("train", "validation", "test")
    sets = [phantoms(), phantoms(seed=18)]
    drawn = [case for each in sets for split in splits for case in each.cases(split)]
    count = 2 * sum(phantoms.keywords[f"{split}_cases"] for split in splits)
    assert len({case.patient for case in drawn}) == len(drawn) == count
    assert len({read(case.volumes[0]).array.tobytes() for case in drawn}) == count


@EVERY
def test_more_cases_begin_with_the_same_ones(phantoms, cases):
    fewer = list(phantoms(test_cases=4).cases("test"))
    assert len(fewer) == 4
    for item, other in zip(cases, fewer, strict=False):
        assert (item.id, item.report, item.findings) == (other.id, other.report, other.findings)
        if not item.report:  # questions of the others are balanced over the split
            assert item.questions == other.questions
        assert item.notes == other.notes


def test_the_indication_is_told_only_where_it_says_something(phantoms, cases):
    assert all("indication" not in case.notes for case in cases)
    plain = {text for _, text in asked(cases)}
    assert len(plain) > 2
    assert not [text for text in plain if "Indication" in text]
    strong = asked(phantoms(prior_strength=1.0).cases("test"))
    assert strong
    for case, text in strong:
        assert text.startswith(f"Indication: {case.notes['indication']}. ")


@pytest.mark.parametrize(
    ("region", "changed"),
    [(region, changed) for region, more in CHANGES_OF_ONE.items() for changed in (*CHANGES, *more)],
    indirect=["region"],
)
def test_every_option_changes_the_fingerprint(phantoms, changed, tmp_path):
    elsewhere = type(phantoms())(tmp_path, **phantoms.keywords)
    assert phantoms().fingerprint() == elsewhere.fingerprint()
    assert phantoms(**changed).fingerprint() != elsewhere.fingerprint()


@EVERY
@pytest.mark.slow
def test_worker_processes_draw_the_same_bytes(phantoms, tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    for folder in (alone, shared):
        folder.mkdir()
    known = [write(phantoms(), "train", alone, number) for number in range(4)]
    assert spread(functools.partial(write, phantoms(), "train", shared), 4, workers=2) == known
    names = sorted(file.name for file in alone.iterdir())
    assert len(names) == 8
    assert names == sorted(file.name for file in shared.iterdir())
    for name in names:
        if name.endswith(".npz"):  # holds the time at which it was written
            item, other = np.load(alone / name), np.load(shared / name)
            assert item.files == other.files
            assert all(np.array_equal(item[key], other[key]) for key in item.files)
        else:
            assert (alone / name).read_bytes() == (shared / name).read_bytes()
