import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from evidcore_plugin_encoders import objectives
from evidcore_plugin_encoders.encoder_fit import EncoderFit, encode, fit_encoder, side_accuracy
from evidcore_plugin_encoders.encoder_targets import Targets, finding_names, read_targets
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_plugin_views.views import Drr, Montage, Video
from evidcore_testing import volume_case

from evidcore.api import Crop, DataError, Finding, VisualPart, prepare, read, read_mask
from evidcore.contracts import FitData

GRID = (8, 8, 8)
SMALL = {"size_zyx": (16, 32, 32), "patch_zyx": (4, 8, 8), "width": 12, "layers": 1, "heads": 2}
OPTIONS = {"steps": 4, "learning_rate": 3e-3, "cases_per_step": 4, "shift_voxels": 1}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    counts = {"train_cases": 16, "validation_cases": 12, "test_cases": 0}
    return PhantomChest(tmp_path_factory.mktemp("cache"), **counts, prevalence=0.4)


@pytest.fixture(scope="module")
def train(dataset):
    return list(dataset.cases("train"))


@pytest.fixture(scope="module")
def validation(dataset):
    return list(dataset.cases("validation"))


def encoder(**options):
    torch.manual_seed(0)
    return ViT3D(**(SMALL | options))


def fit(train, validation, folder, *, supervision=("labels",), structures=(), seed=3, model=None, **changes):
    log = []
    model = model or encoder()
    options = EncoderFit(supervision=supervision, structures=structures, **(OPTIONS | changes))
    fit_encoder(model, FitData(train, validation, folder, seed, log.append), options)
    return model, log


def targets(names=("a",), cases=2, **changed):
    findings = len(names)
    facts = {
        "volumes": torch.zeros(cases, 1, 8, 8, 8, dtype=torch.uint8),
        "findings": torch.zeros(cases, findings, dtype=torch.int8),
        "sides": torch.zeros(cases, 2, findings, dtype=torch.int8),
        "patches": torch.zeros(cases, findings, 512, dtype=torch.uint8),
        "voxels": torch.zeros(cases, findings, 0, 0, 0, dtype=torch.uint8),
        "unmasked": torch.zeros(cases, findings, dtype=torch.bool),
        "reports": ("x",) * cases,
        "names": tuple(names),
    }
    return Targets(**(facts | changed))


def test_targets_say_what_the_cases_say(train):
    names = finding_names(train)
    known = read_targets(train, encoder(), names, masks=True)
    for row, case in enumerate(train):
        for index, name in enumerate(names):
            (finding,) = [item for item in case.findings if item.name == name]
            is_present = finding.state == "present"
            assert known.findings[row, index] == is_present
            sides = {"right": (1, 0), "left": (0, 1), None: (-1, -1)}
            expected = sides[finding.side] if is_present else (0, 0)
            assert tuple(known.sides[row, :, index].tolist()) == expected
        pixels = known.batch(torch.tensor([row]), torch.device("cpu")).pixels()[0]
        exact = prepare(Crop(volume=case.volumes[0]), encoder().input)
        assert (pixels - exact).abs().max() <= 1.01 / 255  # half a step of 2/255


def test_patch_shares_are_what_a_loop_counts(train):
    names = finding_names(train)
    known = read_targets(train[:4], encoder(), names, masks=True)
    for row, case in enumerate(train[:4]):
        for name, ref in case.masks.items():
            mask = read_mask(ref, read(case.volumes[0]))
            for index in range(64):
                z, y, x = index // 16, index // 4 % 4, index % 4
                share = mask[8 * z : 8 * z + 8, 16 * y : 16 * y + 16, 16 * x : 16 * x + 16].mean()
                assert known.patches[row, names.index(name), index] == math.ceil(share * 255)


def test_structures_are_asked_for_by_patch_where_a_case_has_their_mask(train):
    masked = next(case for case in train if "cardiomegaly" in case.masks)
    heart = masked.masks["cardiomegaly"]
    cases = [dataclasses.replace(masked, masks={"heart": heart}), dataclasses.replace(masked, masks={})]
    names = finding_names(train)
    plain = read_targets([masked], encoder(), names, masks=True)
    known = read_targets(cases, encoder(), names, masks=True, structures=("heart",))
    assert known.names == (*names, "heart")
    assert torch.equal(known.patches[0, -1], plain.patches[0, names.index("cardiomegaly")])
    assert known.findings[:, -1].tolist() == [1, -1]
    assert known.unmasked[:, -1].tolist() == [False, True]
    assert torch.equal(known.findings[0, :-1], plain.findings[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"supervision": ("masks",), "structures": ("hart",)}, "of which no case has a mask.* Masks there"),
        ({"supervision": ("masks",), "structures": ("cardiomegaly",)}, "is a finding and is asked for any"),
        ({"structures": ("heart",)}, r'asked for by supervision = \["masks"\]'),
        ({"supervision": ("voxels",)}, "asks maps at full resolution, and this encoder makes none"),
        ({"supervision": ()}, "name at least one of contrastive, labels, zones, masks"),
        ({"cases_per_step": 17}, "16 training cases, but a step takes cases_per_step = 17"),
    ],
)
def test_what_cannot_be_trained_towards_is_refused(train, validation, tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        fit(train, validation, tmp_path, **changes)


def test_a_case_without_a_volume_is_named(train):
    with pytest.raises(DataError, match="case hollow: has no volume"):
        read_targets([dataclasses.replace(train[5], id="hollow", volumes=())], encoder(), (), masks=False)


def test_a_declared_spacing_moves_masks_like_volumes(train):
    """A mask that is drawn into the volume itself shows in the same patches."""
    spaced = ViT3D(**(SMALL | {"size_zyx": (16, 48, 48)}), spacing_mm_zyx=(20.0, 8.0, 8.0))
    case = next(case for case in train if "cardiomegaly" in case.masks)
    known = read_targets([case], spaced, ("cardiomegaly",), masks=True)
    share = known.patches[0, 0].reshape(spaced.grid(spaced.input.size_zyx)).float() / 255
    mask = read_mask(case.masks["cardiomegaly"], read(case.volumes[0]))
    for axis, spacing, patch_mm in ((0, 10.0, 80.0), (1, 5.5, 64.0), (2, 5.5, 64.0)):
        centre_mm = (np.nonzero(mask)[axis].mean() - (mask.shape[axis] - 1) / 2) * spacing
        others = tuple(other for other in range(3) if other != axis)
        mass = share.sum(others)
        found_mm = ((torch.arange(len(mass)) - (len(mass) - 1) / 2) * patch_mm * mass).sum() / mass.sum()
        assert float(found_mm) == pytest.approx(centre_mm, abs=3.0)


def test_pooling_is_the_maximum_and_mean_of_each_zone():
    features = torch.randn(2, 512, 3)
    result = objectives.pooled(features, GRID, heights=4, halves=2)
    cube = features.view(2, 8, 8, 8, 3)
    for zone in range(8):
        height, half = divmod(zone, 2)
        inside = cube[:, 2 * height : 2 * height + 2, :, 4 * half : 4 * half + 4].reshape(2, -1, 3)
        expected = torch.cat([inside.amax(1), inside.mean(1)], dim=1)
        assert torch.allclose(result[:, zone], expected, atol=1e-6)


def test_what_is_unknown_costs_nothing():
    logits = torch.tensor([[0.3, -5.0], [2.0, 7.0]])
    states = torch.tensor([[1, -1], [0, -1]])
    by_hand = (math.log(1 + math.exp(-0.3)) + math.log(1 + math.exp(2.0))) / 2
    assert objectives.known_entropy(logits, states).item() == pytest.approx(by_hand)
    assert objectives.known_entropy(logits, torch.full((2, 2), -1)).item() == 0


def test_the_mask_loss_is_what_the_hand_computes():
    head = objectives.Masks(4, GRID, 1)
    torch.nn.init.zeros_(head.linear.weight)
    torch.nn.init.constant_(head.linear.bias, 0.5)
    patches = torch.zeros(1, 1, 512, dtype=torch.uint8)
    patches[0, 0, 7:10] = torch.tensor([200, 100, 2])  # the last one is a trace
    missed, invented = math.log(1 + math.exp(-0.5)), math.log(1 + math.exp(0.5))
    verdict = math.log(1 + math.exp(-(0.5 - 2.0)))  # the best patch says 0.5, the threshold is 2
    present = targets(cases=1, patches=patches, findings=torch.ones(1, 1, dtype=torch.int8))
    loss = head(torch.randn(1, 512, 4), present)
    assert loss.item() == pytest.approx(2 * missed / (2 + 5) + invented + verdict)


def test_a_small_sign_counts_in_its_best_patch():
    head = objectives.Masks(4, GRID, 1)
    patches = torch.zeros(1, 1, 512, dtype=torch.uint8)
    patches[0, 0, 7] = 3  # below the share from which a patch counts, but there is no better one
    untold = torch.full((1, 1), -1)
    with_sign = head(torch.zeros(1, 512, 4), targets(cases=1, patches=patches, findings=untold)).item()
    assert with_sign == pytest.approx(math.log(1 + math.exp(3)) / 6 + math.log(1 + math.exp(-3)), rel=1e-4)


def test_zones_ask_where_the_mask_lies():
    head = objectives.Zones(2, GRID, 1)
    features = torch.zeros(1, 512, 2)
    cube = features.view(1, 8, 8, 8, 2)
    cube[:, 6:, :, 4:] = 5.0  # cranial, left
    patches = torch.zeros(1, 1, 8, 8, 8, dtype=torch.uint8)
    patches[0, 0, 7, 3, 6] = 255
    asked = []
    head.ask.forward = lambda zones: asked.append(zones) or torch.zeros(1, 8, 1)  # look at what is asked
    head(features, targets(cases=1, patches=patches.view(1, 1, 512)))
    assert asked[0][0, :, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 5]


def test_a_present_finding_without_a_mask_is_no_evidence_of_absence():
    unmasked = targets(cases=1, unmasked=torch.ones(1, 1, dtype=torch.bool), findings=torch.full((1, 1), -1))
    for head in (objectives.Masks(4, GRID, 1), objectives.Zones(4, GRID, 1).eval()):
        assert head(torch.randn(1, 512, 4), unmasked).item() == 0


def test_sides_are_learned_only_where_they_are_told():
    torch.manual_seed(0)
    head = objectives.Labels(4, GRID, 1).eval()
    features = torch.randn(3, 512, 4)
    findings = torch.ones(3, 1, dtype=torch.int8)
    untold = head(features, targets(cases=3, findings=findings, sides=torch.full((3, 2, 1), -1))).item()
    told = head(features, targets(cases=3, findings=findings)).item()
    assert told > untold
    anywhere = head.anywhere(objectives.pooled(features, GRID))[:, 0]
    assert untold == pytest.approx(objectives.known_entropy(anywhere, findings).item())


def test_without_any_difference_the_contrastive_loss_is_that_of_guessing():
    head = objectives.Contrastive(4, GRID, 1).eval()
    features = torch.randn(1, 512, 4).expand(5, -1, -1)
    loss = head(features, targets(cases=5, reports=("There is a nodule.",) * 5))
    assert loss.item() == pytest.approx(math.log(5), abs=1e-5)


def test_the_text_tower_reads_sentences_not_their_order():
    head = objectives.Contrastive(4, GRID, 1)
    texts = ["No nodule. Emphysema is seen.", "Emphysema is seen. No nodule.", "No emphysema. A nodule."]
    item, two, other = head._texts(texts, torch.device("cpu"))
    assert torch.allclose(item, two, atol=1e-5)
    assert not torch.allclose(item, other, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["contrastive", "labels", "zones", "masks", "voxels"])
def test_each_objective_is_learned(train, validation, tmp_path, objective):
    options = {"steps": 21, "cases_per_step": 6, "shift_voxels": 0}  # the same six cases in each step
    fine = {"fine_channels": 12} if objective == "voxels" else {}
    options |= {"supervision": (objective,), "model": encoder(**fine)}
    model, log = fit(train[:6], validation, tmp_path, **options)
    assert log[-1]["loss"] < 0.9 * log[0]["loss"]
    learned = {name for name in log[0] if not name.endswith("_s")}
    assert learned == {"step", "loss", "learning_rate", f"loss_{objective}"}
    assert not model.training


def test_voxels_is_the_cross_entropy_over_the_voxels_of_the_cases_that_show_a_finding():
    head = objectives.Voxels(width=2, grid=(1, 1, 1), findings=2).double()
    features = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[3.0, 1.0], [0.0, 5.0]]], dtype=torch.double)
    shares = torch.tensor([[[255, 0], [0, 0]], [[10, 30], [0, 0]]], dtype=torch.uint8)
    known = SimpleNamespace(voxels=shares[:, :, None, None])
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    item, two = (torch.tensor([1.0, -2.0]).log_softmax(0), torch.tensor([2.0, -5.0]).log_softmax(0))
    by_hand = -(item[0] + 0.25 * two[0] + 0.75 * two[1]) / 2
    assert torch.allclose(head(features, known), by_hand.double())


def test_voxels_say_what_patches_say_and_move_with_the_pixels(train):
    cases = [case for case in train if case.masks][:3]
    names, model = finding_names(cases), encoder()
    plain = read_targets(cases, model, names, masks=True)
    known = read_targets(cases, model, names, masks=True, voxels=True)
    assert torch.equal(known.patches, plain.patches)
    assert known.voxels.shape == (len(cases), len(names), 16, 32, 32)
    stay = known.shifted((0, 0), (4, 4, 4))
    assert torch.equal(stay.volumes, known.volumes)
    assert ((stay.patches > 0) == (known.patches > 0)).all()
    assert (stay.patches.int() - known.patches.int()).abs().max() <= 1  # shares of voxels are rounded up
    moved = known.shifted((8, -8), (4, 4, 4))  # by a whole patch
    for item, two in ((moved.volumes, known.volumes), (moved.voxels, known.voxels)):
        assert torch.equal(item, two.roll((8, -8), (-2, -1)))
    patches = stay.patches.reshape(len(cases), len(names), 4, 4, 4)
    assert torch.equal(moved.patches, patches.roll((1, -1), (-2, -1)).flatten(2))
    assert torch.equal(plain.shifted((8, -8), (4, 4, 4)).patches, plain.patches)
    some = read_targets(cases, model, names[:-1], masks=True, voxels=True, structures=names[-1:])
    assert torch.equal(some.voxels, known.voxels[:, :-1])
    moved_some = some.shifted((8, -8), (4, 4, 4)).patches
    assert torch.equal(moved_some, torch.cat([moved.patches[:, :-1], some.patches[:, -1:]], dim=1))


def test_the_probe_of_patches_tells_a_side_that_pixels_show_and_no_other(train):
    model = ViT3D(**(SMALL | {"layers": 0})).eval()
    known = read_targets(train, model, finding_names(train), masks=True)
    cases = len(known.reports)
    sides, patches = torch.full_like(known.sides, -1), torch.zeros_like(known.patches)
    shown = torch.full_like(known.volumes, 128)
    z, y, x = grid = model.grid(model.input.size_zyx)
    for row in range(cases):
        half = row % 2
        sides[row, :, 0] = torch.tensor([1 - half, half])
        place = torch.zeros(grid)
        place[row % z, row % y, half * (x - 1)] = 255
        patches[row, 0] = place.flatten().to(torch.uint8)
        sign = torch.nn.functional.interpolate(place[None, None], size=shown.shape[-3:])[0, 0] > 0
        shown[row, :, sign] = 255
    masked = dataclasses.replace(known, unmasked=torch.zeros_like(known.unmasked))
    bright = dataclasses.replace(masked, volumes=shown, sides=sides, patches=patches)
    dark = dataclasses.replace(bright, volumes=torch.full_like(shown, 128))
    name = known.names[0]
    assert side_accuracy(model, bright, bright)[name] == 1.0
    assert side_accuracy(model, dark, bright)[name] != 1.0
    nowhere = dataclasses.replace(bright, sides=torch.full_like(sides, -1))
    unmasked = dataclasses.replace(bright, patches=patches[:, :, :0])
    hidden = dataclasses.replace(bright, unmasked=torch.ones_like(known.unmasked))
    for learnt, held_out in ((bright, nowhere), (unmasked, bright), (hidden, bright)):
        assert set(side_accuracy(model, learnt, held_out).values()) == {None}


def test_encoding_leaves_the_callers_gradients_on(train):
    model = encoder().eval()
    known = read_targets(train, model, finding_names(train), masks=False)
    for _, features in encode(model, known, 2):
        assert torch.is_grad_enabled()
        assert not features.requires_grad


def test_masks_and_reports_are_demanded_only_by_objectives_that_need_them(train, validation, tmp_path):
    bare = [dataclasses.replace(case, masks={}) for case in train]
    mute = [*train[:6], dataclasses.replace(train[6], id="mute", report=None)]
    for cases, enough, lacking, message in (
        (bare, ("labels", "contrastive"), ("masks",), "none of the 16 cases has any"),
        (mute, ("labels",), ("labels", "contrastive"), "1 of 7 cases have none, the first is mute"),
    ):
        fit(cases, validation, tmp_path, supervision=enough)
        with pytest.raises(DataError, match=message):
            fit(cases, validation, tmp_path, supervision=lacking)


def test_uncertain_findings_teach_nothing(train):
    doubted = (Finding(name="emphysema", state="uncertain"),)
    case = dataclasses.replace(train[0], findings=doubted, masks={})
    assert read_targets([case], encoder(), ("emphysema",), masks=False).findings.tolist() == [[-1]]


def test_zones_need_a_grid_that_divides():
    with pytest.raises(ValueError, match=r"z divides by 4 and x by 2, got \(6, 8, 8\)"):
        objectives.Zones(4, (6, 8, 8), 1)


def picture_encoder(**options):
    return encoder(**({"size_zyx": (1, 32, 64), "patch_zyx": (1, 8, 8)} | options))


@pytest.mark.parametrize(
    ("view", "size", "sides_are_known"),
    [
        (Montage(rows=2, columns=3), (1, 32, 64), False),  # halves of a montage are no sides of the body
        (Montage(rows=3, columns=1), (1, 32, 64), True),
        (Drr(), (1, 32, 64), True),
        (Drr(directions=("side",)), (1, 32, 64), False),
        (Video(slices=5), (5, 32, 64), True),
    ],
)
def test_a_view_draws_what_an_encoder_is_trained_on(train, view, size, sides_are_known):
    model, names = picture_encoder(), finding_names(train)
    known = read_targets(train[:3], model, names, masks=False, view=view)
    assert known.size_zyx == size
    for row, case in enumerate(train[:3]):
        (part,) = (part for part in view.render(case) if isinstance(part, VisualPart))
        wanted = prepare(part.crop, model.input, size)
        assert (known.batch(torch.tensor([row]), torch.device("cpu")).pixels()[0] - wanted).abs().max() < 0.01
    whole = read_targets(train[:3], encoder(), names, masks=False)
    assert known.findings.equal(whole.findings)
    assert known.sides.equal(whole.sides if sides_are_known else torch.full_like(whole.sides, -1))


@pytest.mark.slow
def test_an_encoder_learns_from_what_a_view_shows(train, validation, tmp_path):
    view = Video(slices=4)
    given = {"steps": 60, "cases_per_step": 16}
    model, log = fit(train, validation, tmp_path, model=picture_encoder(), view=view, **given)
    assert log[-1]["loss"] < 0.8 * log[0]["loss"]
    again, _ = fit(train, validation, tmp_path / "again", model=picture_encoder(), view=view, **given)
    for item, other in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert item.equal(other)
    montage, _ = fit(train, validation, tmp_path / "m", model=picture_encoder(), view=Montage(), **given)
    assert not montage.positions.equal(model.positions)


def test_what_a_view_cannot_tell_is_refused(train, validation, tmp_path):
    with pytest.raises(DataError, match=rf"case {train[0].id}: the view shows 2 pictures, and what is known"):
        fit(train, validation, tmp_path, model=picture_encoder(), view=Drr(directions=("front", "side")))
    with pytest.raises(DataError, match=r"supervision = \['labels', 'masks'\] compares masks with whole"):
        fit(train, validation, tmp_path, supervision=("labels", "masks"), view=Montage())


def test_cases_that_a_view_shows_in_other_sizes_are_named(tmp_path):
    deep, flat = (volume_case(tmp_path, depth, size_zyx=(depth, 16, 16)) for depth in (16, 12))
    with pytest.raises(DataError, match=r"shows it in 12 x 32 x 64 voxels and case \S+ in 14 x 32 x 64; an"):
        read_targets([deep, flat], picture_encoder(), (), masks=False, view=Video(slices=14))
