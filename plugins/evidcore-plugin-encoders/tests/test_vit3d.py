import itertools
import math
import re

import pytest
import torch
from evidcore_plugin_encoders.vit3d import ViT3D, halvings
from evidcore_testing.checks_model import check_encoder
from safetensors.torch import save_file

from evidcore.errors import DataError, RecipeError

ODD = {"patch_zyx": (4, 6, 8), "size_zyx": (8, 24, 48)}
TINY = {"size_zyx": (8, 16, 16), "patch_zyx": (4, 8, 8), "width": 12, "layers": 1, "heads": 2}


STEMS = [("patch", 0), ("convolution", 0), ("patch", 4), ("convolution", 4)]  # with channels of fine maps


@pytest.fixture(params=STEMS)
def tiny(request):
    torch.manual_seed(0)
    return ViT3D(**TINY, stem=request.param[0], fine_channels=request.param[1]).eval()


def volumes(count=2, size=(8, 16, 16), seed=0):
    return torch.rand((count, 3, *size), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_it_keeps_the_contract_of_an_encoder(tiny):
    check_encoder(tiny)
    check_encoder(ViT3D())


def test_the_paper_s_encoder_fits_the_meta_device():
    with torch.device("meta"):
        sizes = {"size_zyx": (112, 224, 224), "patch_zyx": (8, 16, 16), "width": 768, "heads": 12}
        encoder = ViT3D(**sizes, layers=12, stem="patch", windows=((-1000.0, 1000.0),))
        patches = encoder(torch.zeros(1, 1, 112, 224, 224))
    assert patches.grid_zyx == (14, 14, 14)
    assert patches.features.shape == (1, 2744, 768)
    weights = sum(weight.numel() for weight in encoder.parameters())
    layer = 4 * 768 * 768 + 4 * 768 + 2 * 4 * 768 * 768 + 5 * 768 + 4 * 768  # attention, MLP, two norms
    assert weights == 12 * layer + (8 * 16 * 16 + 1) * 768 + 2744 * 768 + 2 * 768


def test_centres_are_where_a_loop_finds_them():
    encoder = ViT3D(**TINY, spacing_mm_zyx=(3.0, 1.5, 1.5))
    centres = encoder(volumes()).centres_mm
    for centre, (z, y, x) in zip(centres, itertools.product((-0.5, 0.5), repeat=3), strict=True):
        assert centre.tolist() == pytest.approx([z * 4 * 3.0, y * 8 * 1.5, x * 8 * 1.5])


def test_every_weight_gets_a_gradient(tiny):
    tiny.train()
    tiny(volumes()).features.square().sum().backward()
    silent = [
        name
        for name, weight in tiny.named_parameters()
        if weight.grad is None or not torch.isfinite(weight.grad).all() or not weight.grad.abs().sum() > 0
    ]
    assert not silent


def test_another_size_interpolates_the_positions(tiny):
    assert tiny.grid((16, 16, 24)) == (4, 2, 3)
    patches = tiny(volumes(size=(16, 16, 24)))
    assert patches.features.shape == (2, 24, 12)
    assert patches.centres_mm.shape == (24, 3)
    assert patches.centres_mm.mean(0).tolist() == pytest.approx([0, 0, 0])


@pytest.mark.parametrize(("stem", "fine_channels"), STEMS)
def test_with_patches_one_slice_high_it_encodes_each_slice_alone(stem, fine_channels):
    torch.manual_seed(0)
    size = TINY | {"size_zyx": (4, 16, 16), "patch_zyx": (1, 8, 8)}
    encoder = ViT3D(**size, stem=stem, fine_channels=fine_channels).eval()
    assert encoder.input.any_depth
    check_encoder(encoder, depths=(1, 7))
    whole = volumes(size=(4, 16, 16))
    apart = [encoder(whole[:, :, z : z + 1]).features for z in range(4)]
    assert torch.allclose(encoder(whole).features, torch.cat(apart, dim=1), atol=1e-6)
    features, fine = encoder.maps(whole)
    assert torch.equal(features, encoder(whole).features)
    assert fine.shape == (2, fine_channels, 4, 16, 16)
    of_third = encoder.maps(whole[:, :, 2:3])[1]
    assert torch.allclose(fine[:, :, 2:3], of_third, atol=1e-6)


def test_fine_maps_see_a_voxel_where_it_is():
    torch.manual_seed(0)
    encoder = ViT3D(**TINY, fine_channels=4).eval()
    volume = volumes(count=1)
    other = volume.clone()
    other[0, :, 5, 3, 9] += 1
    changed = (encoder.maps(volume)[1] - encoder.maps(other)[1]).abs().amax((0, 1)) > 0
    z, y, x = changed.nonzero().T
    assert z.min() >= 2
    assert (y.max(), x.min()) == (7, 5)  # four voxels to each side: 5, 3 and 3 wide
    assert changed[5, 3, 9]


@pytest.mark.parametrize(
    ("patch", "strides"),
    [
        ((4, 8, 8), [(2, 2, 2), (1, 2, 2), (2, 2, 2)]),
        ((8, 16, 16), [(2, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2)]),
        ((1, 2, 4), [(1, 2, 2), (1, 1, 2)]),
        ((1, 1, 1), [(1, 1, 1)]),
    ],
)
def test_halvings_multiply_to_the_patch(patch, strides):
    assert halvings(patch) == strides
    assert tuple(map(math.prod, zip(*strides, strict=True))) == patch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size_zyx": (9, 16, 16)}, r"must be a multiple of patch_zyx, got \(9, 16, 16\) and \(4, 8, 8\)"),
        ({"heads": 5}, "width must be a multiple of heads, got 12 and 5"),
        ({"spacing_mm_zyx": (1.0, 2.0)}, r"spacing_mm_zyx must be empty or hold z, y, x, got \(1.0, 2.0\)"),
        (ODD | {"stem": "convolution"}, r"patch_zyx must be powers of two, got \(4, 6, 8\)"),
    ],
)
def test_impossible_options_are_refused_with_their_values(options, message):
    with pytest.raises(RecipeError, match=message):
        ViT3D(**(TINY | options))


def test_part_of_a_patch_is_refused(tiny):
    for size in ((8, 16, 20), (0, 16, 16)):
        with pytest.raises(ValueError, match=rf"of the patch \(4, 8, 8\), got {re.escape(str(size))}"):
            tiny.grid(size)


def test_a_class_token_passes_through_the_layers_and_is_dropped():
    torch.manual_seed(0)
    plain, marked = ViT3D(**TINY).eval(), ViT3D(**TINY, class_token=True).eval()
    marked.load_state_dict({**marked.state_dict(), **plain.state_dict()})
    given = volumes()
    assert marked(given).features.shape == plain(given).features.shape
    assert not torch.allclose(marked(given).features, plain(given).features)  # patches have looked at it
    check_encoder(marked)


def test_named_weights_are_read_from_a_folder_that_starts_at_the_recipe(tmp_path):
    torch.manual_seed(1)
    source = ViT3D(**TINY)
    (tmp_path / "weights").mkdir()
    save_file(source.state_dict(), tmp_path / "weights" / "weights.safetensors")
    encoder = ViT3D(tmp_path, **TINY, pretrained="weights")
    assert encoder.missing_weights() == ""
    encoder.load_pretrained()
    for name, weight in encoder.state_dict().items():
        assert torch.equal(weight, source.state_dict()[name]), name


def test_missing_weights_are_named(tmp_path):
    encoder = ViT3D(tmp_path, **TINY, pretrained="none")
    place = tmp_path / "none" / "weights.safetensors"
    assert encoder.missing_weights().startswith(f"{place}: there is no such file")
    with pytest.raises(DataError, match=rf"model.encoder.pretrained: {place}: there is no such file"):
        encoder.load_pretrained()


def test_weights_of_another_shape_are_refused_with_both_shapes(tmp_path):
    other = ViT3D(**{**TINY, "width": 24}, class_token=True)
    save_file(other.state_dict(), tmp_path / "weights.safetensors")
    encoder = ViT3D(tmp_path, **TINY, pretrained=".")
    with pytest.raises(DataError, match=r"network: class_token \(1 x 1 x 24, .*Give the"):
        encoder.load_pretrained()
