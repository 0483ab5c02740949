"""Every sign lies where its words say and has the HU of its tissue."""

import itertools
import tomllib
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_phantoms.anatomy import SIZE_ZYX, SPACING_MM_ZYX, healthy, level, smooth_field
from evidcore_plugin_phantoms.chest import TABLES, PhantomChest
from evidcore_plugin_phantoms.signs import SIGNS, index_of
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

CASES = 40

# mean HU of the voxels that show a sign, where a sign is of one tissue
TISSUE_HU = TABLE["tissue_hu"]


SIDED = set(TABLES["sided"])
CROWDED = PhantomChest(Path(), seed=5, prevalence=0.35)


@pytest.fixture(scope="module")
def phantoms():
    return [CROWDED.draw("train", number) for number in range(CASES)]


def shown_by(phantom):
    return [item for item in phantom.known.findings if item.state == "present"]


def showing(phantoms, name):
    result = [(phantom, phantom.arrays[name]) for phantom in phantoms if name in phantom.arrays]
    assert len(result) >= 5, f"only {len(result)} phantoms show {name}"
    return result


def body_centre(phantom):
    """Return the middle of everything that is not air around the patient, by brute force."""
    inside = phantom.hu > -300
    return [(where.min() + where.max()) / 2 for where in np.nonzero(inside)]


def test_a_phantom_shows_each_labelled_finding_and_no_other(phantoms):
    drawn_by_the_anatomy = {"cardiomegaly", "peribronchial thickening"}
    assert set(SIGNS) | drawn_by_the_anatomy == set(CT_RATE_FINDINGS)
    for phantom in phantoms:
        assert [item.name for item in shown_by(phantom)] == list(phantom.arrays)
        assert all(mask.shape == SIZE_ZYX and mask.dtype == bool for mask in phantom.arrays.values())
        assert all(mask.sum() >= 10 for mask in phantom.arrays.values())
        assert all((item.side in {"left", "right"}) == (item.name in SIDED) for item in shown_by(phantom))
        assert sum(mask.astype(int) for mask in phantom.arrays.values()).max() <= 1  # one sign a voxel


@pytest.mark.slow
@pytest.mark.parametrize("name", CT_RATE_FINDINGS)
def test_a_twin_differs_in_the_voxels_of_one_finding(phantoms, name):
    """Bit for bit elsewhere, but for what changes too little to be marked and what lies on a large heart."""
    for number, phantom in enumerate(phantoms):
        twin = CROWDED.draw("train", number, without=name)
        if name not in phantom.arrays:
            assert np.array_equal(twin.hu, phantom.hu)
            continue
        own = phantom.arrays[name]
        outside = np.abs(phantom.hu.astype(int) - twin.hu)[~own]
        assert list(twin.arrays) == [other for other in phantom.arrays if other != name]
        assert (twin.hu != phantom.hu)[own].mean() > 0.5
        if name == "cardiomegaly":  # calcifications and fluid lie nearer to a small heart
            others = {"coronary artery wall calcification", "pericardial effusion"} & phantom.arrays.keys()
            assert (outside > 0).sum() < 500 or others
        elif name == "peribronchial thickening":  # thin walls take its place, under other signs too
            assert (outside > 0).sum() < own.sum()
        else:
            assert (outside > 30).sum() < 0.02 * own.sum()


def test_other_signs_keep_their_places_in_a_twin(phantoms):
    """One that a stroke of the missing sign had covered shows more; none moves."""
    compared = 0
    for number, phantom in enumerate(phantoms[:12]):
        for name in set(phantom.arrays) - {"cardiomegaly", "mosaic attenuation pattern"}:
            twin = CROWDED.draw("train", number, without=name)
            for other, mask in twin.arrays.items():
                elsewhere = mask & ~phantom.arrays[other] & ~phantom.arrays[name]
                assert elsewhere.sum() <= 0.02 * mask.sum(), (name, other)
                compared += 1
    assert compared > 200


@pytest.mark.parametrize("name", sorted(SIDED))
def test_a_sided_sign_lies_on_its_side(phantoms, name):
    for phantom, mask in showing(phantoms, name):
        (item,) = [item for item in shown_by(phantom) if item.name == name]
        x = np.nonzero(mask)[2]
        middle = body_centre(phantom)[2]
        is_left = item.side == "left"  # x grows to the patient's left
        assert (x > middle).mean() == pytest.approx(1.0 if is_left else 0.0, abs=0.05), item


@pytest.mark.parametrize("name", sorted(TISSUE_HU))
def test_a_sign_has_the_hu_of_its_tissue(phantoms, name):
    low, high = TISSUE_HU[name]
    for phantom, mask in showing(phantoms, name):
        assert low <= phantom.hu[mask].mean() <= high


def test_every_sign_stands_out_from_the_tissue_around_it(phantoms):
    for name in set(CT_RATE_FINDINGS) - {"cardiomegaly"}:  # that one is a size
        for phantom, mask in showing(phantoms, name):
            z, y, x = (slice(max(0, at.min() - 2), at.max() + 3) for at in np.nonzero(mask))
            inside, around = phantom.hu[z, y, x][mask[z, y, x]], phantom.hu[z, y, x][~mask[z, y, x]]
            spread = np.abs(np.percentile(inside, [10, 90])[:, None] - np.percentile(around, [10, 50, 90]))
            assert spread.max() > 5 * 22, (name, spread)  # five times the strongest noise


def test_air_and_fluid_layer_as_in_a_supine_patient(phantoms):
    for phantom, mask in showing(phantoms, "pleural effusion"):
        _, y, _ = np.nonzero(mask)
        assert y.mean() > body_centre(phantom)[1] + 3  # y grows to posterior
    for phantom, mask in showing(phantoms, "hiatal hernia"):
        _, y, _ = np.nonzero(mask)
        gas = mask & (phantom.hu < -700)
        assert gas.any()
        assert np.nonzero(gas)[1].mean() < y.mean()


UPPER = ("emphysema", "pulmonary fibrotic sequela", "lymphadenopathy")
LOWER = ("atelectasis", "interlobular septal thickening", "hiatal hernia", "cardiomegaly")


@pytest.mark.parametrize("name", UPPER + LOWER)
def test_a_sign_lies_in_its_half_of_the_chest(phantoms, name):
    for _, mask in showing(phantoms, name):
        z = np.nonzero(mask)[0]  # z grows to superior
        assert z.mean() > 15 if name in UPPER else z.mean() < 17


def test_a_size_in_mm_is_the_sign_s_width(phantoms):
    step_mm = SPACING_MM_ZYX[1]
    for phantom, mask in showing(phantoms, "lung nodule"):
        (size_mm,) = (item.size_mm for item in shown_by(phantom) if item.name == "lung nodule")
        widest = max(np.ptp(np.nonzero(mask)[axis]) + 1 for axis in (1, 2)) * step_mm
        assert size_mm - 2 * step_mm <= widest <= size_mm + step_mm
        assert size_mm <= 30
    items = (item for phantom in phantoms for item in shown_by(phantom))
    assert all(10 <= item.size_mm <= 40 for item in items if item.name == "lymphadenopathy")


def test_a_large_heart_is_wider_than_half_the_chest_and_a_normal_one_is_not():
    for index, seed in itertools.product((2, None), range(12)):
        body = healthy(np.random.default_rng(seed), large_heart=index, thick_airways=None)
        columns = np.flatnonzero((body.air | (body.heart.level < 1)).any((0, 1)))
        ratio = 2 * body.heart.radii[2] / (columns[-1] - columns[0] + 1)
        assert (ratio > 0.5) == (index is not None), (seed, ratio)


def test_an_ellipsoid_is_where_a_loop_finds_it():
    centre, radii = (10.0, 20.5, 30.0), (2.0, 3.0, 4.0)
    result = level(centre, radii) < 1
    for z, y, x in [(10, 20, 30), (11, 22, 31), (12, 20, 30), (10, 23, 30), (10, 20, 34), (8, 20, 30)]:
        slow = sum(((at - c) / r) ** 2 for at, c, r in zip((z, y, x), centre, radii, strict=True)) < 1
        assert result[z, y, x] == slow


def test_a_smooth_field_is_the_linear_interpolation_of_its_cells():
    from scipy.interpolate import RegularGridInterpolator

    field = smooth_field(np.random.default_rng(8), (4, 6, 5))
    coarse = np.random.default_rng(8).standard_normal((4, 6, 5), dtype=np.float32)
    axes = [np.linspace(0, size - 1, count) for size, count in zip(SIZE_ZYX, coarse.shape, strict=True)]
    where = np.stack(np.meshgrid(*(np.arange(size) for size in SIZE_ZYX), indexing="ij"), axis=-1)
    assert np.allclose(field, RegularGridInterpolator(axes, coarse)(where), atol=1e-4)


def test_the_pen_marks_only_what_it_changes():
    body = healthy(np.random.default_rng(0), large_heart=None, thick_airways=None)
    body.hu[0, 0, :3] = 40, 0, 0
    region = np.zeros(SIZE_ZYX, bool)
    region[0, 0, :2] = True
    body.draw(index_of("lung nodule"), region, 50.0)
    assert body.visible(index_of("lung nodule")).nonzero()[2].tolist() == [1]
    assert body.hu[0, 0, :3].tolist() == [50, 50, 0]
