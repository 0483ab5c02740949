import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from evidcore_plugin_phantoms.implant import planting
from evidcore_plugin_phantoms.implant.dataset import Implant
from evidcore_plugin_phantoms.implant.tissue import NoPlace, autocovariance, point_spread_mm
from evidcore_plugin_tables.folder import Folder
from evidcore_testing import check_dataset
from evidcore_testing.data import save_nifti
from scipy import ndimage

from evidcore.api import Case, DataError, VolumeRef, read, read_mask
from evidcore.data import Geometry, Volume
from evidcore.errors import RecipeError

SPACING = (3.0, 2.0, 2.0)
SIZE = (24, 100, 140)  # 72 x 200 x 280 mm
NODULE, HYPODENSE, STONE = (planting.KINDS[name] for name in ("lung nodule", "hypodense lesion", "stone"))


def chest(noise_hu=20.0, correlation_mm=2.0, blur_mm=0.0, spacing=SPACING, size=SIZE, seed=0) -> np.ndarray:
    """A body of 44 HU, 260 mm wide, with two lungs of -850 HU and correlated noise."""
    z, y, x = np.ogrid[: size[0], : size[1], : size[2]]
    mm = [(axis - (count - 1) / 2) * step for axis, count, step in zip((z, y, x), size, spacing, strict=True)]
    body = np.broadcast_to((mm[1] / 90) ** 2 + (mm[2] / 130) ** 2 < 1, size)
    lungs = np.zeros(size, bool)
    for side in (-1, 1):
        lungs |= np.broadcast_to((mm[1] / 60) ** 2 + ((mm[2] - side * 55) / 42) ** 2 < 1, size)
    hu = np.where(lungs, -850.0, np.where(body, 44.0, -1000.0))
    if blur_mm:
        hu = ndimage.gaussian_filter(hu, (0, blur_mm / spacing[1], blur_mm / spacing[2]))
    return hu + correlated(noise_hu, correlation_mm, size, spacing, seed)


def correlated(noise_hu, correlation_mm, size, spacing, seed) -> np.ndarray:
    white = np.random.default_rng(seed).standard_normal(size)
    smooth = ndimage.gaussian_filter(white, [0, correlation_mm / spacing[1], correlation_mm / spacing[2]])
    return noise_hu * smooth / smooth.std()


def in_memory(array: np.ndarray, spacing=SPACING) -> Volume:
    geometry = Geometry(shape_zyx=array.shape, affine=np.diag([*spacing, 1.0]))
    return Volume(array=array.astype(np.float32), geometry=geometry, intensity="hu")


def wish(kind, *size_mm, region=""):
    """A lesion of a kind, within a size where two are given, of one size where one is."""
    sized = dataclasses.replace(kind, size_mm=(size_mm[0], size_mm[-1])) if size_mm else kind
    return planting.LesionSpec(kind=sized, region=region)


def plant_all(array, *wishes, spacing=SPACING, contrast=1.0, seed=0, **regions):
    site = planting.Site(in_memory(array, spacing))
    site.plant(wishes, regions, contrast, np.random.default_rng(seed))
    return site


def planted(array, kind, size_mm, **options):
    made = plant_all(array, wish(kind, size_mm), **options)
    (lesion,) = made.lesions
    return made.array, made.masks[kind.name], lesion


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (5.0, 0.7, 0.7), (3.0, 3.0, 3.0)])
@pytest.mark.parametrize("seed", range(2))
def test_the_filled_shares_add_up_to_the_ellipsoid(spacing, seed):
    rng = np.random.default_rng(seed)
    shape = planting.draw(rng, np.array([50.0, 40.3, 41.7]), rng.uniform(6, 30))
    box = planting.box_around(shape, (200, 200, 200), spacing, 2.0)
    share = planting.filled(shape, box, spacing)
    assert share.sum() * np.prod(spacing) / 1000 == pytest.approx(shape.volume_ml, rel=5e-3)
    # the voxels that are more than half filled differ from it by what the edge leaves open
    edge = ((share > 0) & (share < 1)).sum() * np.prod(spacing) / 1000
    assert abs((share > 0.5).sum() * np.prod(spacing) / 1000 - shape.volume_ml) < 0.25 * edge


def test_the_filled_shares_of_a_ball_agree_with_a_brute_count():
    ball = planting.Ellipsoid(centre_mm=np.array([6.0, 5.5, 5.2]), radii_mm=np.full(3, 3.7), axes=np.eye(3))
    box = (slice(0, 4), slice(0, 11), slice(0, 11))
    share = planting.filled(ball, box, (3.0, 1.0, 1.0))
    count = 20
    offsets = (np.arange(count) + 0.5) / count - 0.5
    for z, y, x in [(1, 5, 5), (2, 6, 6), (1, 3, 4), (2, 2, 5), (3, 7, 5), (0, 0, 0)]:
        dz, dy, dx = np.meshgrid(offsets * 3, offsets, offsets, indexing="ij")
        away = (z * 3 + dz - 6.0) ** 2 + (y + dy - 5.5) ** 2 + (x + dx - 5.2) ** 2
        assert share[z, y, x] == pytest.approx((away <= 3.7**2).mean(), abs=0.03)


def test_an_ellipsoid_is_as_long_as_asked_and_turned_every_way():
    drawn = [planting.draw(np.random.default_rng(seed), np.zeros(3), 20.0) for seed in range(200)]
    for shape in drawn:
        assert 2 * shape.radii_mm.max() == 20.0
        assert shape.radii_mm.min() >= 7.5
        assert np.allclose(shape.axes @ shape.axes.T, np.eye(3))
    longest = np.array([shape.axes[:, 0] for shape in drawn])
    assert np.allclose(np.square(longest).mean(axis=0), 1 / 3, atol=0.09)  # 4 standard deviations


@pytest.mark.parametrize("contrast", [1.0, 0.4])
@pytest.mark.parametrize(("kind", "size_mm"), [(NODULE, 24.0), (HYPODENSE, 24.0), (STONE, 12.0)])
def test_without_noise_the_inside_has_the_asked_density_and_the_outside_is_untouched(kind, size_mm, contrast):
    clean = chest(noise_hu=0.0)
    array, mask, lesion = planted(clean, kind, size_mm, contrast=contrast)
    around = -850.0 if kind is NODULE else 44.0
    asked = [edge + around * kind.over_tissue for edge in kind.hu]
    assert lesion.surroundings_hu == pytest.approx(around)
    low, high = (around + contrast * (edge - around) for edge in asked)
    assert min(low, high) <= lesion.hu <= max(low, high)
    core = ndimage.binary_erosion(mask, iterations=2 if size_mm > 12 else 1)
    assert core.any()
    assert array[core] == pytest.approx(lesion.hu, abs=0.01)
    assert (array == clean.astype(np.float32))[~ndimage.binary_dilation(mask, iterations=5)].all()
    # nowhere beyond what is asked: no ringing
    assert array[mask].min() >= min(lesion.hu, around) - 0.01
    assert array[mask].max() <= max(lesion.hu, around) + 0.01


def test_with_noise_the_mean_is_the_asked_density_and_the_noise_that_of_the_surroundings():
    inside, inside_lags, outside_lags = [], [], []
    noisy = chest(noise_hu=20.0, correlation_mm=2.0)
    for seed in range(5):
        array, mask, lesion = planted(noisy, HYPODENSE, 30.0, seed=seed)
        core = ndimage.binary_erosion(mask, iterations=2)
        inside.append(array[core] - lesion.hu)
        inside_lags.append(lag_one(array - lesion.hu, core))
        assert lesion.noise_hu == pytest.approx(20.0, rel=0.15)
        shell = ndimage.binary_dilation(mask, iterations=9) & ~ndimage.binary_dilation(mask, iterations=4)
        shell &= np.abs(noisy - 44) < 100
        assert lesion.surroundings_hu == pytest.approx(noisy[shell].mean(), abs=4.0)
        outside_lags.append(lag_one(noisy - 44.0, shell))
    values = np.concatenate(inside)
    # Gaussian noise with a correlation length of 2 mm in 2 mm voxels: 4 pi (2/2)^2 voxels are one value
    error = 20.0 / np.sqrt(values.size / (4 * np.pi))
    assert abs(values.mean()) < 4 * error
    assert values.std() == pytest.approx(20.0, rel=0.15)
    assert np.mean(inside_lags) == pytest.approx(np.mean(outside_lags), abs=0.1)
    assert np.mean(outside_lags) == pytest.approx(np.exp(-1 / 4), abs=0.1)  # exp(-d^2 / 4 s^2)


def lag_one(noise, region):
    """Return the correlation of neighbours along x within a region."""
    both = region[..., 1:] & region[..., :-1]
    return (noise[..., 1:] * noise[..., :-1])[both].mean() / np.square(noise[region]).mean()


def test_the_noise_keeps_its_strength_across_the_edge():
    middle = np.zeros(SIZE, bool)
    middle[:, 25:75, 58:82] = True
    residual = []
    for seed in range(6):
        noisy, clean = (
            plant_all(chest(noise_hu), wish(HYPODENSE, 22.0, region="middle"), seed=seed, middle=middle)
            for noise_hu in (20.0, 0.0)
        )
        mask = noisy.masks[HYPODENSE.name]
        edge = ndimage.binary_dilation(mask) & ~ndimage.binary_erosion(mask)
        residual.append((noisy.array - clean.array)[edge])
    assert np.concatenate(residual).std() == pytest.approx(20.0, rel=0.15)


@pytest.mark.parametrize("blur_mm", [1.0, 1.6])
def test_the_edge_falls_monotonously_over_the_scans_own_point_spread(blur_mm):
    spacing, size = (3.0, 1.0, 1.0), (20, 200, 280)
    sharp = chest(noise_hu=0.0, blur_mm=blur_mm, spacing=spacing, size=size)
    array, _, lesion = planted(sharp, NODULE, 24.0, spacing=spacing)
    assert lesion.point_spread_mm == pytest.approx(blur_mm, rel=0.12)
    z, y, x = (round(at) for at in lesion.centre_zyx)
    line = array[z, y, x : x + 20]
    assert (np.diff(line) <= 1.0).all()  # HU, of 870; the lung's own blurred wall counts as a trace of noise
    steepest = np.abs(np.diff(line)).max()
    height = lesion.hu - lesion.surroundings_hu
    # a Gaussian edge over the voxel's own width: h erf(d / (2 sqrt(2) s)); an oblique edge is flatter
    assert steepest <= height * 1.1 / (np.sqrt(2 * np.pi) * blur_mm)
    inner = in_memory(np.full((6, 30, 30), 40.0))  # without skin, the assumed sharpness
    assert point_spread_mm(inner) == pytest.approx(1.2 / 2.3548, rel=1e-3)


def test_autocovariance_agrees_with_a_plain_count_over_pairs():
    values = correlated(10.0, 2.0, (4, 12, 12), SPACING, seed=3)
    tissue = np.random.default_rng(4).random(values.shape) < 0.8
    result = autocovariance(values, tissue, SPACING)
    sigma = 6.0 / np.array(SPACING)
    weight = ndimage.gaussian_filter(tissue.astype(float), sigma, mode="constant")
    noise = values - ndimage.gaussian_filter(np.where(tissue, values, 0), sigma, mode="constant") / weight
    noise -= noise[tissue].mean()
    centre = tuple(extent // 2 for extent in result.shape)
    assert result[centre] == pytest.approx(np.square(noise[tissue]).mean())
    both = np.argwhere(tissue[..., :-2] & tissue[..., 2:])
    pairs = [noise[z, y, x] * noise[z, y, x + 2] for z, y, x in both]
    assert result[centre[0], centre[1], centre[2] + 2] == pytest.approx(np.mean(pairs))
    with pytest.raises(NoPlace, match=r"^0 voxels of tissue, fewer than 200"):
        autocovariance(values, np.zeros(values.shape, bool), SPACING)


def test_lesions_lie_whole_in_their_tissue_and_apart():
    noisy = chest()
    clean = chest(noise_hu=0.0)
    for seed in range(3):
        made = plant_all(noisy, *map(wish, planting.KINDS.values()), seed=seed)
        assert not made.no_place
        for kind in planting.KINDS.values():
            below = clean[made.masks[kind.name]]
            assert (below == (-850.0 if kind.tissue == "lung" else 44.0)).all()
        for lesion in made.lesions:
            mask = made.masks[lesion.kind]
            low, high = planting.KINDS[lesion.kind].size_mm
            assert low <= lesion.size_mm <= high
            others = np.any([made.masks[name] for name in made.masks if name != lesion.kind], axis=0)
            away = ndimage.distance_transform_edt(~mask, sampling=SPACING)
            assert away[others].min() > 7  # 10 mm, less a voxel's diagonal
            centre = np.argwhere(mask).mean(axis=0)
            assert np.abs((centre - lesion.centre_zyx) * SPACING).max() < 1.5


def test_size_in_mm_does_not_depend_on_the_voxels():
    for spacing, size in (((3.0, 2.0, 2.0), SIZE), ((1.5, 1.0, 1.0), (48, 200, 280))):
        _, mask, lesion = planted(chest(0.0, spacing=spacing, size=size), HYPODENSE, 26.0, spacing=spacing)
        assert lesion.size_mm == 26.0
        assert mask.sum() * np.prod(spacing) / 1000 == pytest.approx(lesion.volume_ml, rel=0.06)


def test_vessels_belong_to_the_lung_and_airways_do_not():
    hu = chest(noise_hu=0.0)
    hu[:, 50:52, 94:96] = 30.0  # a vessel of 4 mm in the left lung
    right = slice(30, 56)
    hu[:, 38:62, right] = -1000.0  # an airway wider than the lung around it
    for seed in range(4):
        _, mask, lesion = planted(hu, NODULE, 20.0, seed=seed)
        assert lesion.side == "left" or not mask[:, 38:62, right].any()


def test_no_place_is_said_with_the_size():
    made = plant_all(chest(), wish(NODULE, 200.0, 220.0), wish(STONE, 6, 8))
    said = "no lung tissue holds a lung nodule of 200 mm with 2 mm around it"
    assert made.no_place == {"lung nodule": said}
    assert [lesion.kind for lesion in made.lesions] == ["stone"]


def test_a_named_mask_holds_the_lesion_whole():
    liver = np.zeros(SIZE, bool)
    liver[4:20, 60:95, 55:85] = True
    hu = chest()
    liver &= chest(noise_hu=0.0) == 44.0
    for seed in range(5):
        made = plant_all(hu, wish(HYPODENSE, 10, 14, region="liver"), seed=seed, liver=liver)
        assert not (made.masks["hypodense lesion"] & ~liver).any()
        assert made.lesions[0].region == "liver"


class Home:
    """Scans on disk with their table; c0 is an RAS file, c1 LPS, c2 has axes in another order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rows = ["id,volume,patient,split,report,nodule"]
        for number, (axes, split) in enumerate((("RAS", "train"), ("LPS", "train"), ("SPL", "test"))):
            self.write(f"c{number}.nii.gz", chest(seed=number).round().astype(np.int16), axes)
            left = np.zeros(SIZE, np.uint8)
            left[:, :, SIZE[2] // 2 :] = 1
            self.write(f"left{number}.nii.gz", left, axes)
            rows.append(f"c{number},c{number}.nii.gz,p{number},{split},Heart is normal.,{number % 2}")
        self.write("nothing.nii.gz", np.zeros(SIZE, np.uint8), "RAS")
        (folder / "cases.csv").write_text("\n".join(rows) + "\n")

    def write(self, name: str, array: np.ndarray, axes: str) -> None:
        save_nifti(self.folder / name, array, SPACING, axes)

    def dataset(self, source=None, **options) -> Implant:
        inner = Folder(self.folder, self.folder / "cache", **{"path": ".", **(source or {})})
        return Implant(self.folder / "cache", source=inner, **options)

    def cases(self, **options) -> list[Case]:
        return [case for split in ("train", "test") for case in self.dataset(**options).cases(split)]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Home:
    return Home(tmp_path_factory.mktemp("implant"))


def test_the_dataset_keeps_its_contract_and_every_kind_can_be_asked_for(home):
    assert get_args(planting.KindName) == tuple(planting.KINDS)
    check_dataset(home.dataset(prevalence=0.7), other=home.dataset(seed=18))


def test_a_case_tells_the_lesion_its_side_size_and_place(home):
    for case in home.cases(prevalence=1.0, kinds=("lung nodule",)):
        (finding,) = case.findings
        mask = read_mask(case.masks["lung nodule"], like=read(case.volumes[0]))
        x = np.argwhere(mask)[:, 2].mean()
        assert finding.side == ("left" if x > (SIZE[2] - 1) / 2 else "right")
        assert finding.state == "present"
        text = case.report.text
        assert case.report.spans == (finding.span,)
        assert finding.span.label == "abnormal"
        assert text[finding.span.start : finding.span.end] == text
        assert "lung nodule" in text.lower()
        assert f"of {finding.size_mm:.0f} mm" in text or f"measuring {finding.size_mm:.0f} mm" in text
        assert f"in the {finding.side} lung." in text


def test_the_mask_of_a_side_agrees_with_masks_of_the_source_in_files_of_any_axes(home):
    """The source's own masks are turned with its files: a lesion on the left lies in the left half."""
    options = {"prevalence": 1.0, "kinds": ("lung nodule",), "seed": 5}
    for number, split in enumerate(("train", "train", "test")):
        dataset = home.dataset({"masks": {"left half": f"left{number}.nii.gz"}}, **options)
        case = next(case for case in dataset.cases(split) if case.id == f"c{number}")
        volume = read(case.volumes[0])
        half = read_mask(case.masks["left half"], like=volume)
        lesion = read_mask(case.masks["lung nodule"], like=volume)
        (finding,) = (each for each in case.findings if each.name == "lung nodule")
        assert half[lesion].mean() == (1.0 if finding.side == "left" else 0.0)


def test_only_the_lesion_is_changed_and_never_the_source(home):
    before = {path: path.read_bytes() for path in home.folder.glob("c*.nii.gz")}
    for case in home.cases(prevalence=1.0, seed=2):
        source = read(VolumeRef(path=str(home.folder / f"{case.id}.nii.gz")))
        volume = read(case.volumes[0])
        assert Path(case.volumes[0].path).is_relative_to(home.folder / "cache" / "implant")
        assert volume.array.dtype == source.array.dtype
        assert volume.geometry.fits(source.geometry)
        masks = [read_mask(case.masks[name], like=volume) for name in case.present()]
        near = ndimage.binary_dilation(np.any(masks, axis=0), iterations=5)
        assert (volume.array == source.array)[~near].all()
        assert (volume.array != source.array)[np.any(masks, axis=0)].mean() > 0.9
    assert {path: path.read_bytes() for path in home.folder.glob("c*.nii.gz")} == before


def test_prevalence_decides_and_a_case_without_lesions_is_the_sources_scan(home):
    none = home.cases(prevalence=0.0)
    for case in none:
        assert case.volumes[0].path == str(home.folder / f"{case.id}.nii.gz")
        assert {finding.state for finding in case.findings} == {"absent"}
        assert len(case.report.spans) == 3
        assert {span.label for span in case.report.spans} == {"normal"}
        assert case.masks == {}
    counts = [len(case.present()) for case in home.cases(prevalence=0.5, copies=3)]
    assert len(counts) == 9
    assert 0 < sum(counts) < 27


def test_the_same_seed_plants_the_same_voxels_again(home, tmp_path):
    options = {"prevalence": 1.0, "kinds": ("stone",), "seed": 9}
    (first, *_) = home.cases(**options)
    other = Implant(tmp_path, source=home.dataset().source, **options)
    again = next(iter(other.cases("train")))
    assert again.volumes[0].path != first.volumes[0].path
    assert (read(again.volumes[0]).array == read(first.volumes[0]).array).all()
    assert again.report == first.report
    (third, *_) = home.cases(**{**options, "seed": 10})
    assert third.findings != first.findings


def test_a_scan_is_planted_once_and_again_when_its_file_changes(home, tmp_path):
    local = Home(tmp_path)
    options = {"prevalence": 1.0, "kinds": ("stone",)}
    entries = tmp_path / "cache" / "implant"
    local.cases(**options)
    made = {path: path.stat().st_mtime_ns for path in entries.glob("*/volume.nii.gz")}
    assert len(made) == 3
    local.cases(**options)
    assert {path: path.stat().st_mtime_ns for path in entries.glob("*/volume.nii.gz")} == made
    local.write("c0.nii.gz", chest(seed=99).round().astype(np.int16), "RAS")
    local.cases(**options)
    assert len(list(entries.glob("*/volume.nii.gz"))) == 4
    assert not [path for path in entries.glob(".*") if path.is_dir()]


def test_copies_of_a_scan_are_cases_of_one_patient(home):
    cases = home.cases(copies=2, prevalence=1.0, kinds=("stone",))
    assert [case.id for case in cases] == ["c0+0", "c0+1", "c1+0", "c1+1", "c2+0", "c2+1"]
    assert [case.patient for case in cases[:2]] == ["p0", "p0"]
    assert cases[0].findings != cases[1].findings
    listed = home.dataset(copies=2, prevalence=1.0, kinds=("stone",)).listed("train")
    assert list(listed) == cases[:4]  # with their lesions


def test_what_cannot_be_planted_is_listed_once_as_the_source_has_it(home):
    source = {"table": "some.csv"}
    lines = (home.folder / "cases.csv").read_text().splitlines()
    (home.folder / "some.csv").write_text(
        "\n".join([*lines[:2], "gone,gone.nii.gz,p9,train,,0", "bad,c0.nii.gz,p8,trian,,0"]) + "\n"
    )
    dataset = home.dataset(source=source, copies=2, prevalence=1.0, kinds=("stone",))
    *planted, bare = dataset.listed("train")
    assert [case.id for case in planted] == ["c0+0", "c0+1"]
    assert bare == list(dataset.source.listed("train"))[1]
    (message,) = dataset.unlisted()
    assert "case 'bad' has split 'trian'" in message


def test_where_there_is_no_place_the_case_is_negative_or_left_out_by_name(home):
    options = {"prevalence": 1.0, "kinds": ("stone",), "inside": {"stone": "spot"}}
    options["source"] = {"masks": {"spot": "nothing.nii.gz"}}
    (case, *_) = home.cases(**options)
    assert case.findings[0].state == "absent"
    assert "no spot holds a stone of 4 mm" in case.notes["implant"]["no_place"]["stone"]
    dataset = home.dataset(**options, no_place="leave-out")
    assert list(dataset.cases("train")) == []
    assert list(dataset.left_out["train"]) == ["c0", "c1"]
    assert "no spot holds a stone of 4 mm" in dataset.left_out["train"]["c1"]
    assert [case.id for case in dataset.listed("train")] == ["c0", "c1"]


def test_a_predicted_mask_holds_lesions_but_the_report_does_not_name_it(home):
    options = {"kinds": ("stone",), "prevalence": 1.0, "inside": {"stone": "left half"}}
    dataset = home.dataset({"masks": {"left half": "left0.nii.gz"}}, **options)
    known, (case, *_) = next(dataset.cases("train")), dataset.source.cases("train")
    predicted = {"left half": dataclasses.replace(case.masks["left half"], by="sam3")}
    dataset.source.cases = lambda split: [dataclasses.replace(case, masks={}, predicted=predicted)]
    (made,) = dataset.cases("train")
    assert made.masks == {"stone": known.masks["stone"]}
    assert known.report.text != made.report.text == known.report.text.replace("left half", "soft tissue")


def test_the_source_s_findings_stay_and_its_report_does_not(home):
    case = home.cases(source={"findings": ("nodule",)}, prevalence=1.0, kinds=("stone",))[1]
    assert [finding.name for finding in case.findings] == ["nodule", "stone"]
    assert case.state_of("nodule") == "present"
    assert "Heart" not in case.report.text


def test_zero_contrast_exchanges_noise_alone(home):
    case = home.cases(prevalence=1.0, kinds=("hypodense lesion",), contrast=0.0)[0]
    source, volume = read(VolumeRef(path=str(home.folder / "c0.nii.gz"))), read(case.volumes[0])
    mask = read_mask(case.masks["hypodense lesion"], like=volume)
    assert (volume.array != source.array)[mask].mean() > 0.9
    assert abs(volume.array[mask].mean() - source.array[mask].mean()) < 12  # noise of 20 HU, correlated
    assert volume.array[mask].std() == pytest.approx(20.0, rel=0.35)


def test_a_scan_without_its_only_lesion_is_the_source_s(home):
    dataset = home.dataset(prevalence=1.0, kinds=("stone",))
    for case, source in zip(dataset.cases("train"), dataset.source.cases("train"), strict=True):
        (ref,) = dataset.without(case, "stone")
        before, after = read(ref), read(case.volumes[0])
        assert np.array_equal(before.array, read(source.volumes[0]).array)
        assert before.array.dtype == after.array.dtype
        assert np.array_equal(before.affine, after.affine)
        changed = np.flatnonzero((before.array != after.array).any((1, 2)))
        assert 0 < len(changed) < SIZE[0]
        assert dataset.without(case, "stone") == (ref,)


def test_of_several_lesions_the_others_stay(home):
    kinds = ("lung nodule", "hypodense lesion", "stone")
    dataset = home.dataset(prevalence=1.0, kinds=kinds)
    (case, *_) = dataset.cases("train")
    (source, *_) = dataset.source.cases("train")
    base, all_of_them = read(source.volumes[0]).array, read(case.volumes[0]).array
    masks = {kind: read_mask(case.masks[kind], like=read(case.volumes[0])) for kind in kinds}
    for kind in kinds:
        left = read(dataset.without(case, kind)[0]).array
        assert np.array_equal(left[masks[kind]], base[masks[kind]])
        near = ndimage.distance_transform_edt(~masks[kind], SPACING) < 8
        assert np.array_equal(left[~near], all_of_them[~near])


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_where_lesions_overlap_the_other_is_drawn_as_if_it_were_alone(dtype):
    """Two strokes over one voxel each and one shared, by hand: 0.5 v + 10, then 0.25 v + 40."""
    geometry = Geometry(shape_zyx=(1, 1, 3), affine=np.eye(4))
    site = object.__new__(planting.Site)
    site.volume = Volume(array=np.full((1, 1, 3), 100, dtype), geometry=geometry, intensity="hu")
    site._strokes = {
        "first": planting.Stroke(at=np.array([0, 1]), kept=np.full(2, 0.5), added=np.full(2, 10.0)),
        "second": planting.Stroke(at=np.array([1, 2]), kept=np.full(2, 0.25), added=np.full(2, 40.0)),
    }
    at, hu = site.before("first")
    assert (at.tolist(), hu.tolist()) == ([0, 1], [100, 65])
    at, hu = site.before("second")
    assert (at.tolist(), hu.tolist()) == ([1, 2], [60, 100])
    assert hu.dtype == dtype


def test_what_the_patient_himself_has_cannot_be_removed(home):
    source = {"findings": ("nodule",)}
    dataset = home.dataset(source=source, prevalence=1.0, kinds=("stone",))
    (healthy, ill) = dataset.cases("train")
    assert dataset.without(ill, "nodule") is dataset.without(healthy, "broken leg") is None
    assert dataset.without(healthy, "nodule") == healthy.volumes
    both = dataclasses.replace(ill, notes={"implant": {**ill.notes["implant"], "own": ["stone"]}})
    assert dataset.without(both, "stone") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"source": {"intensity": "arbitrary"}},
      r"c0\.nii\.gz: lesions are planted in HU, .* 'arbitrary'.*'c0'"),
     ({"inside": {"stone": "liver"}}, r"no mask 'liver' to plant a stone in\. It has: none"),
     ({"source": {"masks": {"stone": "left0.nii.gz"}}}, "the source has a mask 'stone' already")],
)  # fmt: skip
def test_a_case_that_cannot_be_planted_into_is_refused(home, options, message):
    with pytest.raises(DataError, match=message):
        home.cases(**options)


def test_a_mask_for_a_kind_that_is_not_planted_and_a_case_with_two_volumes_are_refused(home):
    with pytest.raises(RecipeError, match="inside names 'fluid collection', but kinds are lung nodule"):
        home.dataset(inside={"fluid collection": "liver"})
    dataset = home.dataset()
    (case, *_) = dataset.source.cases("train")
    dataset.source.cases = lambda split: [dataclasses.replace(case, volumes=case.volumes * 2)]
    with pytest.raises(DataError, match=r"planted into one volume, the case has 2.*case 'c0'"):
        list(dataset.cases("train"))


@pytest.mark.slow
def test_lesions_of_real_ct_lie_where_and_as_they_should(real_data, tmp_path):
    scan = real_data / "totalsegmentator" / "example_ct_sm.nii.gz"
    (tmp_path / "cases.csv").write_text(f"id,volume,patient,split\na,{scan},p,test\n")
    masks = {"liver": f"{real_data / 'totalsegmentator' / 'example_seg.nii.gz'}#5"}
    source = Folder(tmp_path, tmp_path / "cache", path=".", masks=masks)
    inside = {"hypodense lesion": "liver"}
    dataset = Implant(tmp_path / "cache", source=source, prevalence=1.0, inside=inside, copies=8)
    before, cores, rims, planted = read(VolumeRef(path=str(scan))), [], [], []
    for case in dataset.cases("test"):
        after = read(case.volumes[0])
        lesion = read_mask(case.masks["hypodense lesion"], like=after)
        liver = read_mask(case.masks["liver"], like=after)
        finding = next(each for each in case.findings if each.name == "hypodense lesion")
        assert finding.side != "left"  # as the liver, whose middle has none
        assert liver[lesion].all()
        rim = ndimage.binary_dilation(lesion, iterations=3) & liver & ~ndimage.binary_dilation(lesion)
        facts = next(each for each in case.notes["implant"]["lesions"] if each["kind"] == finding.name)
        cores.extend(after.array[ndimage.binary_erosion(lesion)])
        rims.extend(before.array[rim])
        planted += [facts["hu"]] * (len(cores) - len(planted))
    core, rim = np.array(cores), np.array(rims)
    assert core.mean() == pytest.approx(np.mean(planted), abs=10)
    assert rim.mean() - core.mean() > 15
    assert 0.5 < core.std() / rim.std() < 1.6


def test_masks_of_a_grid_that_the_reference_corrects_are_carried_along(home):
    """The file states 3 x 2 x 2 mm, the reference 6 x 2 x 2: the written scan has the true spacing."""
    dataset = home.dataset({"masks": {"left half": "left0.nii.gz"}}, kinds=("stone",), prevalence=1.0)
    (case, *_) = dataset.source.cases("train")
    wrong = dataclasses.replace(case.volumes[0], spacing_mm_zyx=(6.0, 2.0, 2.0))
    dataset.source.cases = lambda split: [dataclasses.replace(case, volumes=(wrong,))]
    (made,) = dataset.cases("train")
    volume = read(made.volumes[0])
    assert volume.spacing_mm_zyx[0] == pytest.approx(6.0)
    assert read_mask(made.masks["left half"], like=volume).sum() == np.prod(SIZE) / 2
