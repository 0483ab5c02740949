"""Segmenter `region-growing` on phantoms whose objects are known."""

import numpy as np
import pytest
import SimpleITK as sitk
from evidcore_plugin_segmenters import growth
from evidcore_plugin_segmenters.region_growing import RegionGrowing
from evidcore_plugin_segmenters.regions import moved, tight_box
from evidcore_testing import check_segmenter, prompts_from, volume_case
from evidcore_testing.data import save_nifti
from scipy import ndimage

from evidcore.api import Box, VolumeRef, read, read_mask
from evidcore.contracts import BoxPrompt, MaskPrompt, MaskRequest, PointPrompt
from evidcore.data.masks import dice

SHAPE, SPACING = (24, 64, 64), (5.0, 3.0, 3.0)
GROWTH = growth.Growth(drift_mm=5.0, reach=0.5, least_overlap=0.15)


def ellipsoid(centre, radii, shape=SHAPE):
    z, y, x = np.ogrid[tuple(slice(count) for count in shape)]
    places = zip((z, y, x), centre, radii, strict=True)
    return sum(((place - middle) / radius) ** 2 for place, middle, radius in places) <= 1


def write(path, array):
    return VolumeRef(path=str(save_nifti(path, array, SPACING)))


def abdomen(path, seed):
    """A body with a liver, a lesion in it, a kidney and a spleen, in HU with noise; and their masks."""
    rng = np.random.default_rng(seed)
    shift = rng.normal(0, 1.0, 4)
    hu = np.full(SHAPE, -1000.0)
    hu[ellipsoid((12, 32, 32), (60, 27, 30))] = -90
    hu[ellipsoid((12, 32, 32), (60, 24, 27))] = 30
    organs = {
        "liver": (ellipsoid((12, 28 + shift[0], 20), (7, 14, 12)), 105),
        "lesion": (ellipsoid((12, 27, 17 + shift[1]), (2.5, 4, 4)), 60),
        "kidney": (ellipsoid((10, 42 + shift[2], 42), (6, 6, 5)), 165),
        "spleen": (ellipsoid((13, 30, 48 + shift[3]), (5, 9, 6)), 125),
    }
    for inside, value in organs.values():
        hu[inside] = value
    hu += rng.normal(0, 15.0, SHAPE)
    return write(path, hu.round().astype(np.int16)), {name: inside for name, (inside, _) in organs.items()}


@pytest.fixture(scope="module")
def bodies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bodies")
    return [abdomen(folder / f"{seed}.nii", seed) for seed in range(4)]


def oracle(truth):
    z = int(truth.sum(axis=(1, 2)).argmax())
    return tight_box(truth[z], z)


def test_it_keeps_the_contract_of_a_segmenter(tmp_path):
    case = volume_case(tmp_path)
    truth = read_mask(case.masks["lung nodule"], like=read(case.volumes[0]))
    check_segmenter(RegionGrowing(), case.volumes[0], prompts_from(truth), truth=truth)


def test_oracle_boxes_give_the_organs_and_boxes_that_are_off_lose_them(bodies):
    exact, off = [], []
    for seed, (ref, organs) in enumerate(bodies):
        session, rng = RegionGrowing().session(ref), np.random.default_rng(seed)
        for truth in organs.values():
            box = oracle(truth)
            exact.append(dice(session.mask([BoxPrompt(box=box)]), truth))
            away = moved(box, (0.5 * rng.choice((-1, 1), 2)).tolist(), SHAPE[1:])
            off.append(dice(session.mask([BoxPrompt(box=away)]), truth))
    assert np.mean(exact) >= 0.80
    assert np.mean(exact) - np.mean(off) >= 0.10


def test_points_and_masks_find_organs_too(bodies):
    from_points, from_masks = [], []
    for ref, organs in bodies:
        session = RegionGrowing().session(ref)
        for name in ("spleen", "lesion"):
            truth = organs[name]
            box = oracle(truth)
            point = PointPrompt(z=box.z, y=(box.y0 + box.y1) // 2, x=(box.x0 + box.x1) // 2)
            from_points.append(dice(session.mask([point]), truth))
            result = session.mask([MaskPrompt(z=box.z, mask=truth[box.z])])
            assert np.array_equal(result[box.z], truth[box.z])
            from_masks.append(dice(result, truth))
    assert np.median(from_points) >= 0.75
    assert np.mean(from_masks) >= 0.80


def test_a_window_cuts_what_the_whole_would_be(bodies):
    ref, organs = bodies[0]
    prompt = BoxPrompt(box=oracle(organs["liver"]))
    whole = RegionGrowing().session(ref).mask([prompt])
    inside = slice(prompt.z - 2, prompt.z + 3)
    part = RegionGrowing().session(ref).mask([prompt], (inside.start, inside.stop))
    assert np.array_equal(part[inside], whole[inside])


def test_a_prompt_is_grown_once_and_a_slice_smoothed_once(bodies, monkeypatch):
    ref, organs = bodies[0]
    counts = {"smooth": 0, "in_box": 0}

    def counted(name, do):
        def call(*arguments):
            counts[name] += 1
            return do(*arguments)

        return call

    monkeypatch.setattr("evidcore_plugin_segmenters.region_growing.smooth", counted("smooth", growth.smooth))
    monkeypatch.setattr("evidcore_plugin_segmenters.region_growing.in_box", counted("in_box", growth.in_box))
    segmenter = RegionGrowing()
    prompt = BoxPrompt(box=oracle(organs["kidney"]))
    first = segmenter.session(ref).masks([MaskRequest(prompts=(prompt,))] * 8)
    smoothed = counts["smooth"]
    again = segmenter.session(ref).mask([prompt])
    assert counts == {"smooth": smoothed, "in_box": 1}
    assert smoothed <= SHAPE[0]
    assert all(np.array_equal(mask, again) for mask in first)


def test_only_the_last_volumes_are_kept(bodies):
    segmenter = RegionGrowing()
    kept = [segmenter.session(ref) for ref, _ in bodies[:3]]
    assert segmenter.session(bodies[2][0]) is kept[2]
    assert segmenter.session(bodies[0][0]) is not kept[0]


def test_a_changed_file_is_another_volume(tmp_path):
    ref = write(tmp_path / "a.nii", np.zeros(SHAPE, dtype=np.int16) + np.arange(64, dtype=np.int16))
    segmenter = RegionGrowing()
    before = segmenter.session(ref)
    write(tmp_path / "a.nii", np.ones(SHAPE, dtype=np.int16) + np.arange(64, dtype=np.int16))
    assert segmenter.session(ref) is not before


def plane_with(value=100.0, noise=0.0):
    rng = np.random.default_rng(0)
    plane = rng.normal(0, noise, (40, 40)) if noise else np.zeros((40, 40))
    plane[10:20, 12:26] += value
    return plane.astype(np.float32)


def test_connected_thresholds_are_those_of_a_second_library():
    rng = np.random.default_rng(3)
    plane = ndimage.gaussian_filter(rng.normal(0, 1, (50, 60)), 2).astype(np.float32)
    model = growth.Model(-0.1, 0.15)
    seeds = np.zeros(plane.shape, dtype=np.bool_)
    seeds[20:24, 20:30] = True
    places = [(int(x), int(y)) for y, x in np.argwhere(seeds & model.holds(plane))]
    image = sitk.GetImageFromArray(plane)
    wanted = sitk.GetArrayFromImage(sitk.ConnectedThreshold(image, places, model.low, model.high)) > 0
    assert wanted.sum() > len(places)
    assert np.array_equal(growth.connected(model.holds(plane), seeds), wanted)
    assert not growth.connected(growth.Model(5.0, 6.0).holds(plane), seeds).any()


def test_diffusion_lowers_noise_and_keeps_edges_and_nothing_moves_without_noise():
    plane = plane_with(noise=10.0)
    smoothed = growth.smooth(plane, 5)
    assert smoothed[25:, :10].std() < 0.7 * plane[25:, :10].std()
    assert smoothed[10:20, 12:26].mean() - smoothed[25:, :10].mean() == pytest.approx(100, abs=6)
    assert np.array_equal(growth.smooth(plane, 0), plane)
    assert np.array_equal(growth.smooth(plane_with(), 5), plane_with())


def test_a_mask_stays_in_its_box():
    box = Box(z=0, y0=8, y1=15, x0=8, x1=20)
    region, _ = growth.in_box(plane_with(noise=5.0), box)
    outside = region.copy()
    outside[box.y0 : box.y1, box.x0 : box.x1] = False
    assert region.any()
    assert not outside.any()


def test_a_box_of_one_voxel_and_a_flat_slice_give_a_region():
    for plane in (plane_with(), plane_with(noise=5.0), np.zeros((40, 40), dtype=np.float32)):
        for box in (Box(z=0, y0=0, y1=1, x0=39, x1=40), Box(z=0, y0=12, y1=13, x0=14, x1=15)):
            assert growth.in_box(plane, box)[0].sum() == 1
        assert growth.around_point(plane, 12, 14)[0][12, 14]


def test_a_point_s_region_is_the_stable_one():
    region, _ = growth.around_point(plane_with(noise=5.0), 15, 18)
    assert dice(region, plane_with() > 0) > 0.97


def test_growth_ends_where_little_is_left_and_stays_near():
    plane, before = plane_with(), np.zeros((40, 40), dtype=np.bool_)
    model, everywhere = growth.Model(50.0, 150.0), Box(z=0, y0=0, y1=40, x0=0, x1=40)
    before[30:36, 30:36] = True
    assert growth.grow(plane, before, model, everywhere, (1.0, 1.0), GROWTH) is None
    before[:] = False
    before[13:16, 13:16] = True
    near = growth.grow(plane, before, model, everywhere, (1.0, 1.0), GROWTH)
    reach = ndimage.distance_transform_edt(~before) <= GROWTH.drift_mm
    assert near.any()
    assert not (near & ~(reach & (plane > 50))).any()
    held = growth.grow(plane, before, model, growth.leash(0, before, 0.0), (1.0, 1.0), GROWTH)
    assert np.array_equal(held, before)
