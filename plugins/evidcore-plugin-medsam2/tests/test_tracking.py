import numpy as np
import pytest
import torch
from evidcore_plugin_medsam2.network import Network
from evidcore_plugin_medsam2.pixels import pixels, to_model, to_slice
from evidcore_plugin_medsam2.tracking import Target, Tracker
from seeded import SMALL_PX, seeded_model, small_config
from stock import StockSession
from torch.nn import functional as F

from evidcore.api import Box
from evidcore.contracts import BoxPrompt, MaskPrompt, PointPrompt

DEPTH, SHAPE = 9, (SMALL_PX, SMALL_PX)
MIDDLE = 4


def slices(depth=DEPTH, size=SMALL_PX):
    """A blob that wanders through a textured field."""
    z, y, x = np.meshgrid(np.arange(depth), np.arange(size), np.arange(size), indexing="ij")
    near = ((x - 60 - 2 * z) / 14) ** 2 + ((y - 70) / 10) ** 2 < 1
    shown = 60 + 40 * np.sin(x / 9) * np.cos(y / 13) + 3 * z + 90 * near
    return np.clip(shown, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def model():
    return seeded_model(small_config())


@pytest.fixture(scope="module")
def seen():
    return torch.stack([pixels(item, SMALL_PX) for item in slices()])


def tracker(model, seen, shape_yx=SHAPE, propagate="box", rows_per_pass=1, dtype=torch.float32):
    network = Network(model, torch.device("cpu"), dtype)
    return Tracker(
        network, lambda places: network.encode(seen[list(places)]), shape_yx, propagate=propagate,
        rows_per_pass=rows_per_pass,
    )  # fmt: skip


def box(z, x0=46, x1=75, y0=60, y1=81):
    return BoxPrompt(box=Box(z=z, y0=y0, y1=y1, x0=x0, x1=x1))


def mask(z):
    shown = np.zeros(SHAPE, dtype=bool)
    shown[60:81, 46:75] = True
    return MaskPrompt(z=z, mask=shown)


def whole(prompt, depth=DEPTH):
    return Target(prompt=prompt, start=0, stop=depth)


def agree(found, wanted, share=0.9999):
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert np.abs(wanted).max() > 1  # a field of zeros would agree with anything
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()
    assert ((found > 0) == (wanted > 0)).mean() >= share
    assert 0.001 < (wanted > 0).mean() < 0.999


@pytest.mark.slow
@pytest.mark.parametrize("key", [0, MIDDLE, DEPTH - 1])
@pytest.mark.parametrize("prompt", [box, lambda z: PointPrompt(z=z, y=70, x=60)], ids=["box", "point"])
def test_boxes_and_points_are_tracked_as_by_the_stock_session(model, seen, prompt, key):
    (result,) = tracker(model, seen).track([whole(prompt(key))])
    agree(result, StockSession(model, seen, SHAPE).track(prompt(key)))


def mended(stock, prompt):
    """Track a mask prompt in the stock session with its two deviations from SAM 2.1 overwritten."""
    model, session = stock.model, stock.session
    result = {}
    for is_reversed in (False, True):
        stock.start(prompt)
        held = session.output_dict_per_obj[0]["cond_frame_outputs"][prompt.z]
        features, _ = model._prepare_vision_features(session, prompt.z, 1)
        full = F.interpolate(held["pred_masks"], SHAPE, mode="bilinear", align_corners=False)
        held["maskmem_features"], held["maskmem_pos_enc"] = model._encode_new_memory(
            features[-1], full, held["object_score_logits"], True
        )
        maps = [
            flat.permute(1, 2, 0).unflatten(2, tuple(size))
            for flat, size in zip(features, model.backbone_feature_sizes, strict=True)
        ]
        shown = torch.from_numpy(prompt.mask).float()[None, None]
        held["object_pointer"] = model._single_frame_forward(
            input_masks=model.mask_downsample(shown), image_embeddings=maps, multimask_output=False
        ).object_pointer
        result |= stock.follow(prompt.z, is_reversed)
    return np.stack([result[z] for z in sorted(result)])


@pytest.mark.slow
@pytest.mark.parametrize("key", [0, MIDDLE, DEPTH - 1])
def test_masks_are_tracked_as_by_a_stock_session_that_is_mended(model, seen, key):
    (result,) = tracker(model, seen).track([whole(mask(key))])
    with torch.inference_mode():
        stock = StockSession(model, seen, SHAPE)
        agree(result, mended(stock, mask(key)))
        as_shipped = stock.track(mask(key))
    off = np.abs(result.numpy() - as_shipped)
    assert off[key].max() < 1e-4  # the prompted slice is the same
    assert np.delete(off, key, axis=0).max() > 20 * np.abs(result.numpy() - mended(stock, mask(key))).max()


def test_the_papers_way_tracks_the_mask_that_the_box_gives(model, seen):
    (logits,) = tracker(model, seen).track([whole(box(MIDDLE))])
    given = to_slice(logits[MIDDLE][None], SHAPE)[0].numpy()
    (wanted,) = tracker(model, seen).track([whole(MaskPrompt(z=MIDDLE, mask=given))])
    (result,) = tracker(model, seen, propagate="mask").track([whole(box(MIDDLE))])
    assert torch.equal(result, wanted)
    assert not torch.equal(result, logits)


def test_memories_and_pointers_reach_back_as_far_as_in_the_stock_session(model):
    depth = 20  # 6 memories, 15 pointers
    seen = torch.stack([pixels(item, SMALL_PX) for item in slices(depth)])
    (result,) = tracker(model, seen).track([whole(box(0), depth)])
    agree(result, StockSession(model, seen, SHAPE).track(box(0)))


def test_objects_that_pass_together_are_found_as_alone(model, seen):
    targets = [
        whole(box(MIDDLE)),
        whole(PointPrompt(z=7, y=70, x=74)),
        Target(prompt=mask(2), start=1, stop=6),
        whole(box(0)),
        whole(box(DEPTH - 1, x0=20, x1=90)),
        Target(prompt=box(3), start=3, stop=4),
    ]
    alone = tracker(model, seen, propagate="mask").track(targets)
    together = tracker(model, seen, propagate="mask", rows_per_pass=5).track(targets)
    for item, other, target in zip(alone, together, targets, strict=True):
        assert len(item) == target.stop - target.start
        assert (item - other).abs().max() < 5e-3 * item.abs().max()  # memories are bfloat16 and round
        assert ((item > 0) == (other > 0)).float().mean() > 0.9999


def test_on_the_cpu_an_object_is_the_same_bits_whatever_passes_before(model, seen):
    made = tracker(model, seen)
    (alone,) = made.track([whole(box(MIDDLE))])
    _, after = made.track([whole(box(0)), whole(box(MIDDLE))])
    assert torch.equal(alone, after)


def test_a_window_is_a_volume_of_its_own(model, seen):
    (result,) = tracker(model, seen).track([Target(prompt=box(MIDDLE), start=2, stop=7)])
    (wanted,) = tracker(model, seen[2:7]).track([whole(box(MIDDLE - 2), 5)])
    assert torch.equal(result, wanted)


def test_slices_of_another_size_are_boxed_and_masked_on_their_own_grid(model, seen):
    shape = (96, 200)
    prompt = BoxPrompt(box=Box(z=MIDDLE, y0=40, y1=60, x0=70, x1=120))
    (result,) = tracker(model, seen, shape).track([whole(prompt)])
    agree(result, StockSession(model, seen, shape).track(prompt))
    assert to_slice(result, shape).shape == (DEPTH, *shape)


def test_autocast_moves_few_voxels(model, seen):
    (exact,) = tracker(model, seen).track([whole(box(MIDDLE))])
    (mixed,) = tracker(model, seen, dtype=torch.bfloat16).track([whole(box(MIDDLE))])
    assert not torch.equal(exact, mixed)
    item, other = exact > 0, mixed > 0
    dice = 2 * (item & other).sum() / (item.sum() + other.sum())
    assert dice > 0.95


def test_a_mask_in_the_models_pixels_holds_those_that_are_half_covered():
    shown = np.zeros((1, 64, 32), dtype=bool)
    shown[0, 20:40, 8:16] = True
    result = to_model(torch.from_numpy(shown), 128)[0].numpy()
    wanted = np.kron(shown[0], np.ones((2, 4), dtype=bool))  # each voxel is 2 x 4 pixels
    assert (result != wanted).sum() <= 8  # corners are rounded
    assert torch.equal(to_model(torch.ones(1, 128, 128) > 0, 128), torch.ones(1, 128, 128) > 0)


@pytest.mark.parametrize(("dtype", "rounds"), [(torch.float32, False), (torch.bfloat16, True)])
def test_float32_is_not_rounded_further_on_a_gpu(model, dtype, rounds):
    network = Network(model, torch.device("cpu"), dtype)
    with network.computing():
        assert torch.backends.cudnn.allow_tf32 == rounds
    assert torch.backends.cudnn.allow_tf32
