"""Every organ and lesion of an abdominal phantom lies where its name says and has the HU of its tissue."""

import dataclasses
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from evidcore_plugin_doctor.organs import _TABLES, contradictions
from evidcore_plugin_doctor.organs import organ as organ_of
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_plugin_phantoms.abdomen.lesions import FEWEST_VOXELS, FINDINGS, KINDS
from evidcore_plugin_phantoms.abdomen.scene import FIELD_MM_ZYX, ORGANS, Grid, label_of
from evidcore_plugin_phantoms.phantoms import affine
from scipy import ndimage
from scipy.spatial.distance import pdist

from evidcore.data import Geometry, Volume
from evidcore.data.body import outline

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

CROWDED = PhantomAbdomen(Path(), seed=5, prevalence=0.45)
CASES = 10
SPACING = (7.5, 3.0, 3.0)

# median HU of an organ's own tissue, without its lesions
TISSUE_HU = TABLE["tissue_hu"]
# and of a lesion, or its difference from the organ around it, as docs/reference/phantom_abdomen.md says
LESION_HU = TABLE["lesion_hu"]
DIFFERENCE_HU = TABLE["difference_hu"]
# least and most ml of an adult's, from outside the code
ADULT_ML = {"liver": (700, 2200), "spleen": (80, 400), "left kidney": (80, 260), "right kidney": (80, 260)}


def draw(dataset, split, number, **options):
    """Return a phantom as its arrays and what was measured on them, by name."""
    drawn = dataset.draw(split, number, **options)
    known = drawn.known
    return SimpleNamespace(hu=drawn.hu, facts=known.facts, indication=known.indication, **drawn.arrays)


@pytest.fixture(scope="module")
def phantoms():
    return [draw(CROWDED, "train", number) for number in range(CASES)]


def inner(region):
    """Return a region without its edge in the slice, which the blur mixes with its surroundings."""
    return ndimage.binary_erosion(region, np.ones((1, 3, 3)))


def lesions(phantoms):
    for phantom in phantoms:
        for index, lesion in enumerate(phantom.facts.lesions, start=1):
            yield phantom, lesion, phantom.lesions == index


def scan(phantom):
    geometry = Geometry(shape_zyx=phantom.hu.shape, affine=affine(phantom.hu.shape, SPACING))
    return Volume(array=phantom.hu, geometry=geometry, intensity="hu")


def test_every_finding_and_every_tissue_is_tried(phantoms):
    assert set(LESION_HU) | set(DIFFERENCE_HU) == set(FINDINGS)
    assert set(TISSUE_HU) | {"table"} == set(ORGANS)
    assert {lesion.finding for _, lesion, _ in lesions(phantoms)} == set(FINDINGS)


@pytest.mark.parametrize("organ", sorted(TISSUE_HU))
def test_an_organ_has_the_hu_of_its_tissue(phantoms, organ):
    low, high = TISSUE_HU[organ]
    for phantom in phantoms:
        own = (phantom.organs == label_of(organ)) & (phantom.lesions == 0)
        core = own if organ == "ribs" else inner(own)  # ribs are all edge
        assert low <= np.median(phantom.hu[core & (phantom.hu > -500)]) <= high


def test_every_voxel_of_the_body_belongs_to_an_organ_and_no_other_voxel_does(phantoms):
    """The outline is found in the HU alone, by code that knows nothing of the phantom."""
    for phantom in phantoms:
        body = ndimage.binary_fill_holes(outline(scan(phantom)))
        held = (phantom.organs > 0) & (phantom.organs != label_of("table"))
        assert (body ^ held).sum() < 0.01 * held.sum()


def test_the_table_lies_behind_the_body_which_stays_clear_of_the_grid_s_sides(phantoms):
    for phantom in phantoms:
        table = phantom.organs == label_of("table")
        body = (phantom.organs > 0) & ~table
        assert np.nonzero(table)[1].min() > np.nonzero(body)[1].max() + 1  # y grows to posterior
        assert np.median(phantom.hu[table]) > -400
        assert not body[:, [0, -1]].any()
        assert not body[:, :, [0, -1]].any()


@pytest.mark.parametrize("organ", [name for name in ORGANS if TISSUE_HU.get(name) and name != "bowel"][:10])
def test_an_organ_is_there_in_one_piece_and_as_large_as_an_adult_s(phantoms, organ):
    low, high = ADULT_ML.get(organ, (0, np.inf))
    for phantom in phantoms:
        pieces, count = ndimage.label(phantom.organs == label_of(organ), np.ones((3, 3, 3)))
        assert count >= 1
        sizes = np.bincount(pieces.reshape(-1))[1:]
        assert sizes.max() >= 0.97 * sizes.sum()
        ml = sizes.sum() * np.prod(SPACING) / 1000
        assert low <= ml <= high
        assert phantom.facts.organs_ml[organ] == pytest.approx(ml)


def test_organs_lie_to_each_other_as_the_check_of_real_data_demands(phantoms):
    """The second opinion on every side: x grows to the patient's left, so the liver has the smaller x."""
    compared = {organ_of(organ) for organ in ORGANS} & {
        name for pairs in _TABLES["farther"].values() for pair in pairs for name in pair
    }
    assert compared >= {"liver", "spleen", "kidney left", "kidney right", "stomach", "bladder", "spine"}
    for phantom in phantoms:
        places = dict(zip(ORGANS, map(tuple, places_mm(phantom, *ORGANS)), strict=True))
        assert not list(contradictions(places, phantom.facts.organs_ml))
        assert places["left kidney"][2] > places["spine"][2] > places["right kidney"][2]
        mirrored = {organ: (z, y, -x) for organ, (z, y, x) in places.items()}
        ((axis, _),) = contradictions(mirrored, phantom.facts.organs_ml)
        assert axis == "x"


def test_a_lesion_lies_whole_inside_its_organ(phantoms):
    for phantom, lesion, region in lesions(phantoms):
        assert region.sum() >= FEWEST_VOXELS
        assert (phantom.organs[region] == label_of(lesion.organ)).all()
        wanted = KINDS[lesion.finding].organ
        assert lesion.organ.endswith(wanted)
        assert (phantom.findings[region] == FINDINGS.index(lesion.finding) + 1).all()
    for phantom in phantoms:  # label maps hold nothing else, and lesions do not touch each other
        assert np.array_equal(phantom.lesions > 0, phantom.findings > 0)
        _, count = ndimage.label(phantom.lesions > 0, np.ones((3, 3, 3)))
        assert phantom.lesions.max() == count == len(phantom.facts.lesions)


def test_a_lesion_has_the_hu_of_its_tissue(phantoms):
    measured = set()
    for phantom, lesion, region in lesions(phantoms):
        core = inner(region)
        if core.sum() < FEWEST_VOXELS:
            continue
        hu = phantom.hu[core].mean()
        low, high = LESION_HU.get(lesion.finding) or DIFFERENCE_HU[lesion.finding]
        if lesion.finding in DIFFERENCE_HU:
            organ = inner((phantom.organs == label_of(lesion.organ)) & (phantom.lesions == 0))
            hu -= phantom.hu[organ].mean()
        error_hu = 3.5 * 22 / np.sqrt(core.sum()) + 2  # noise, and what the blur carries over
        assert low - error_hu <= hu <= high + error_hu, lesion
        measured.add(lesion.finding)
    assert measured >= set(FINDINGS) - {"gallstone"}


MOVED = {"scan_shift_mm": 30.0, "in_plane_shift_mm": 15.0, "size_spread": 0.2, "mirrored": 0.5}


@pytest.mark.parametrize("options", [{}, MOVED], ids=["usual", "moved and mirrored"])
def test_what_is_known_of_a_lesion_is_measured_on_its_mask(options):
    phantoms = [draw(dataclasses.replace(CROWDED, **options), "train", number) for number in range(6)]
    middle = np.array([(size - 1) / 2 for size in CROWDED.size_zyx])
    for _, lesion, region in lesions(phantoms):
        at = np.argwhere(region)
        assert lesion.volume_ml == pytest.approx(len(at) * 7.5 * 3 * 3 / 1000)
        assert lesion.centre_mm == pytest.approx(tuple((at.mean(0) - middle) * SPACING), abs=2e-3)
        slices = [at[at[:, 0] == z][:, 1:] * 3.0 for z in np.unique(at[:, 0])]
        widest = max(pdist(plane).max() if len(plane) > 1 else 0 for plane in slices)  # every pair of voxels
        assert lesion.size_mm == pytest.approx(widest + 3.0)
        assert lesion.side in {lesion.organ.split()[0], None if "kidney" not in lesion.organ else ""}
        low, high = KINDS[lesion.finding].diameter_mm
        assert 0.45 * low <= lesion.size_mm <= high + 9  # cut by the organ's edge; bent, and a voxel wide


def test_gas_rises_and_stones_sink(phantoms):
    for phantom in phantoms:
        stomach = phantom.organs == label_of("stomach")
        gas = stomach & (phantom.hu < -700)
        assert gas.any()
        assert np.nonzero(gas)[1].mean() < np.nonzero(stomach & ~gas)[1].mean() - 3  # y grows to posterior
    below = [
        np.nonzero(region)[1].mean() - np.nonzero(phantom.organs == label_of("gallbladder"))[1].mean()
        for phantom, lesion, region in lesions(phantoms)
        if lesion.finding == "gallstone"
    ]
    assert len(below) > 5
    assert min(below) > -2  # one that lies on another
    assert np.mean(below) > 0.5


@pytest.mark.slow
def test_a_twin_differs_in_the_lesions_of_one_finding_and_in_their_blur(phantoms):
    blurred = ndimage.generate_binary_structure(2, 2)[None]  # the scanner blurs by a voxel in the slice
    for number, phantom in enumerate(phantoms):
        for finding in {lesion.finding for lesion in phantom.facts.lesions}:
            twin = draw(CROWDED, "train", number, without=finding)
            own = phantom.findings == FINDINGS.index(finding) + 1
            changed = twin.hu != phantom.hu
            assert changed[own].mean() > 0.99
            assert not changed[~ndimage.binary_dilation(own, blurred)].any()
            assert np.array_equal(twin.organs, phantom.organs)
            assert np.array_equal(twin.findings, np.where(own, 0, phantom.findings))
            kept = [lesion for lesion in phantom.facts.lesions if lesion.finding != finding]
            assert list(twin.facts.lesions) == kept


def test_noise_grows_with_subtlety_and_nothing_else_changes():
    clean, *noisy = (
        draw(dataclasses.replace(CROWDED, subtlety=subtlety), "train", 0) for subtlety in (1e-6, 1, 4)
    )
    tissue = np.abs(clean.hu.astype(float)) < 300  # far from the ends of the scale
    noise_hu = {}
    for subtlety, phantom in zip((1, 4), noisy, strict=True):
        assert np.array_equal(phantom.organs, clean.organs)
        assert phantom.facts == clean.facts
        noise_hu[subtlety] = (phantom.hu.astype(float) - clean.hu)[tissue].std()
    assert 12 <= noise_hu[1] <= 22.1
    assert noise_hu[4] == pytest.approx(4 * noise_hu[1], rel=0.03)


def places_mm(phantom, *organs):
    """Return the organs' centroids in mm of the scan, shape (organ, 3)."""
    return np.array([np.argwhere(phantom.organs == label_of(organ)).mean(0) * SPACING for organ in organs])


@pytest.mark.parametrize(("option", "along"), [("scan_shift_mm", [0]), ("in_plane_shift_mm", [1, 2])])
def test_patients_lie_elsewhere_and_their_table_with_them(option, along):
    """Organs move by as much as the scan did, all alike to a voxel, and no other way."""
    moved_mm, reach = [], {"scan_shift_mm": 45.0, "in_plane_shift_mm": 12.0}[option]
    for number in range(6):
        still = draw(CROWDED, "train", number)
        moved = draw(dataclasses.replace(CROWDED, **{option: reach}), "train", number)
        assert moved.indication == still.indication
        organs = ("left kidney", "right kidney", "pancreas")  # whole in either
        each = np.subtract(*(places_mm(item, *organs) for item in (moved, still)))
        assert np.ptp(each, axis=0).max() < 10
        assert np.abs(np.delete(each, along, axis=1)).max() < 4
        if 1 in along:
            table = np.subtract(*(places_mm(item, "table")[0] for item in (moved, still)))
            assert table[1] == pytest.approx(each[:, 1].mean(), abs=3.5)
        moved_mm.append(each.mean(0)[along])
    assert np.abs(moved_mm).max() < reach + 5
    assert np.ptp(moved_mm, axis=0).min() > reach / 2


def test_a_patient_of_another_size_is_so_in_every_organ():
    ratios = []
    for number in range(6):
        usual = draw(CROWDED, "train", number).facts.organs_ml
        other = draw(dataclasses.replace(CROWDED, size_spread=0.15), "train", number).facts.organs_ml
        organs = ("left kidney", "right kidney", "gallbladder", "pancreas")
        ratio = np.cbrt([other[organ] / usual[organ] for organ in organs])
        assert ratio == pytest.approx(ratio.mean(), rel=0.05)
        ratios.append(ratio.mean())
    assert 1 / 1.17 < min(ratios) < 0.99
    assert 1.05 < max(ratios) < 1.17


def test_a_mirrored_patient_has_the_liver_on_the_left_and_names_follow():
    for number in range(3):
        quiet = dataclasses.replace(CROWDED, subtlety=1e-6)
        usual = draw(quiet, "train", number)
        mirrored = draw(dataclasses.replace(quiet, mirrored=1.0), "train", number)
        assert np.abs(mirrored.hu[..., ::-1].astype(int) - usual.hu).max() <= 1
        assert np.array_equal(mirrored.lesions[..., ::-1], usual.lesions)
        assert np.array_equal(mirrored.findings[..., ::-1], usual.findings)
        images = {"liver": "liver", "left kidney": "right kidney", "right kidney": "left kidney"}
        for organ, image in images.items():
            own = mirrored.organs[..., ::-1] == label_of(organ)
            assert np.array_equal(own, usual.organs == label_of(image))
        assert {mirrored.indication[-4:], usual.indication[-4:]} == {"left", "ight"}


def test_a_finer_grid_shows_the_same_patient():
    coarse = draw(CROWDED, "train", 1)
    fine = draw(dataclasses.replace(CROWDED, size_zyx=(60, 144, 192)), "train", 1)
    assert [lesion.mask for lesion in fine.facts.lesions] == [lesion.mask for lesion in coarse.facts.lesions]
    for organ in ("liver", "spleen", "left kidney", "right kidney", "bladder"):
        assert fine.facts.organs_ml[organ] == pytest.approx(coarse.facts.organs_ml[organ], rel=0.06)
    for item, other in zip(fine.facts.lesions, coarse.facts.lesions, strict=True):
        assert item.organ == other.organ
        assert item.size_mm == pytest.approx(other.size_mm, abs=9)


def test_the_grid_is_what_a_loop_says():
    grid = Grid((40, 96, 128))
    assert grid.spacing_mm_zyx == pytest.approx(SPACING)
    z, y, x = grid.axes_mm
    assert float(z[0, 0, 0]) == pytest.approx(-FIELD_MM_ZYX[0] / 2 + 3.75)
    assert float(x[0, 0, -1]) == pytest.approx(FIELD_MM_ZYX[2] / 2 - 1.5)
    box = grid.box((0.0, 10.0, -20.0), (20.0, 12.0, 7.0))
    inside = (np.abs(z) <= 20) & (np.abs(y - 10) <= 12) & (np.abs(x + 20) <= 7)
    result = np.zeros(grid.size_zyx, bool)
    result[box] = True
    assert np.array_equal(result, inside)
