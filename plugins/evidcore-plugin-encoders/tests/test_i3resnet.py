"""`i3resnet` computes what is written out here by hand, from any known checkpoint."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from evidcore_plugin_encoders.i3resnet import I3ResNet
from evidcore_plugin_phantoms.chest import PhantomChest
from evidcore_testing import check_encoder
from safetensors.torch import save_file
from torch.nn import functional

from evidcore.api import Cache, Crop, DataError
from evidcore.errors import RecipeError
from evidcore.model.bank import FeatureBank

ASTRA = Path(__file__).parents[3] / "recipes" / "models" / "astra-i3resnet152"
WEIGHTS = "c5c0b4d0426893b9ca9685aedf901fd816b9fb3902ba31950521342c16b61d91"  # that `make astra` writes
SEEN = {  # of a phantom: mean and spread of features, and the means of three
    2: [0.16123, 0.21572, 0.22131, 0.18003, 0.19649],
    4: [0.34724, 0.503, 0.20822, 0.19026, 0.1352],
    "2+3": [0.20517, 0.30013, 0.52795, 0.40461, 0.09315],
}
SIZE = (32, 48, 64)
MERLIN, ASTRAS = "encode_image.i3_resnet.", "visual_encoder.model.encode_image.i3_resnet."
HUB = "stanfordmimi/Merlin@0123abc:merlin.pt"


def seeded(layer, **options):
    """Return a network whose every number, statistics too, is drawn."""
    torch.manual_seed(0)
    encoder = I3ResNet(**{"size_zyx": SIZE, "layer": layer, **options}).eval()
    for name, weight in encoder.body.state_dict().items():
        if name.endswith(("running_var", "bn1.weight", "bn2.weight", "downsample.1.weight")):
            weight.uniform_(0.5, 1.5)
        elif name.endswith("bn3.weight"):
            weight.uniform_(0.1, 0.3)  # or thirty-six blocks add up to large numbers
        elif name.endswith(("bias", "running_mean")):
            weight.normal_(0, 0.2)
    return encoder


def by_hand(weights, volume):
    """Return the maps of layers 1 to 4 in plain arithmetic; `volume` is z, y, x on -1..1, as are the maps."""

    def convolved(maps, name, norm, stride=1):
        weight = weights[f"{name}.weight"]
        maps = functional.conv3d(maps, weight, None, stride, [side // 2 for side in weight.shape[2:]])
        mean, variance, scale, shift = (
            weights[f"{norm}.{end}"][:, None, None, None]
            for end in ("running_mean", "running_var", "weight", "bias")
        )
        return (maps - mean) / torch.sqrt(variance + 1e-5) * scale + shift

    turned = np.swapaxes(volume.numpy()[:, ::-1, ::-1], 1, 2)  # z, x to the right, y to the front
    maps = torch.from_numpy(np.stack([(turned + 1) / 2] * 3)[None])
    maps = convolved(maps, "conv1", "bn1", (1, 2, 2)).clamp(min=0)
    maps = functional.max_pool3d(maps, 3, 2, 1)
    found = []
    for layer, blocks in enumerate((3, 8, 36, 3), 1):
        for block in range(blocks if f"layer{layer}.0.conv1.weight" in weights else 0):
            at, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            inner = convolved(maps, f"{at}.conv1", f"{at}.bn1").clamp(min=0)
            inner = convolved(inner, f"{at}.conv2", f"{at}.bn2", stride).clamp(min=0)
            inner = convolved(inner, f"{at}.conv3", f"{at}.bn3")
            if block == 0:
                maps = convolved(maps, f"{at}.downsample.0", f"{at}.downsample.1", stride)
            maps = (maps + inner).clamp(min=0)
        found.append(np.swapaxes(maps[0].numpy(), 2, 3)[:, :, ::-1, ::-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layer", [2, 4, "2+3"])
@torch.no_grad()
def test_features_are_those_of_the_arithmetic_written_out(layer):
    encoder = seeded(layer)
    volumes = torch.rand(2, 1, *SIZE) * 2 - 1
    patches = encoder(volumes)
    for volume, features in zip(volumes[:, 0], patches.features, strict=True):
        found = by_hand(encoder.body.state_dict(), volume)
        if layer == "2+3":
            fine = torch.from_numpy(found[1][:, :, ::-1, ::-1].copy())  # pooled along the network's axes
            pooled = functional.max_pool3d(fine, 3, 2, 1).numpy()[:, :, ::-1, ::-1]
            expected = np.concatenate([pooled, found[2]])
        else:
            expected = found[layer - 1]
        assert expected.shape[1:] == patches.grid_zyx == encoder.grid(SIZE)
        expected = torch.from_numpy(expected.reshape(encoder.width, -1).T.copy())
        torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-5 * float(expected.max()))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"layer": 4}, {"size_zyx": (33, 70, 47)}, {"precision": "bfloat16"}])
def test_it_keeps_the_contract_of_an_encoder(options):
    check_encoder(seeded(**{"layer": 2, "spacing_mm_zyx": (3.0, 1.5, 1.5), **options}))


@pytest.mark.slow
def test_a_patch_sees_most_of_what_lies_around_its_centre():
    encoder = seeded(2, size_zyx=(48, 96, 96))
    volume = torch.rand(1, 1, 48, 96, 96).requires_grad_()
    patches = encoder(volume)
    grid = np.array(patches.grid_zyx)
    number = int(np.ravel_multi_index(tuple(grid // 2), grid))
    patches.features[0, number].sum().backward()
    seen = volume.grad[0, 0].square()
    for axis, centre in enumerate(patches.centres_mm[number].tolist()):
        along = seen.sum([other for other in range(3) if other != axis])
        place = float(along @ torch.arange(len(along), dtype=torch.float32) / along.sum())
        assert abs(place - (len(along) - 1) / 2 - centre) < 1.5, "the middle of its cell is 3.5 voxels off"


@pytest.mark.parametrize("prefix", [ASTRAS, MERLIN, ""])
def test_weights_come_from_every_known_checkpoint(prefix, tmp_path, monkeypatch):
    whole = seeded(2).body.state_dict()
    names = ("classifier.bias", "contrastive_head.bias", "layer3.0.conv1.weight")
    given = {f"{prefix}{name}": weight for name, weight in whole.items()}
    given |= {f"{prefix}{name}": torch.zeros(3) for name in names}
    given |= {"encode_text.weight": torch.zeros(3)} if prefix else {}
    save_file(given, tmp_path / "weights.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    says = (
        "merlin.pt of stanfordmimi/Merlin is not here. `hf download stanfordmimi/Merlin merlin.pt --revision"
    )
    assert I3ResNet(layer=2, pretrained=HUB).missing_weights() == f"{says} 0123abc` gets it."
    file = tmp_path / "models--stanfordmimi--Merlin" / "snapshots" / "0123abc" / "merlin.pt"
    file.parent.mkdir(parents=True)
    torch.save(given, file)
    for pretrained in (".", HUB):
        encoder = I3ResNet(tmp_path, size_zyx=SIZE, layer=2, pretrained=pretrained)
        assert encoder.missing_weights() == ""
        encoder.load_pretrained()
        found = encoder.body.state_dict()
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], weight) for name, weight in whole.items())


def test_other_weights_are_refused_by_name(tmp_path):
    encoder, path = I3ResNet(tmp_path, layer=2, pretrained="."), tmp_path / "weights.safetensors"
    with pytest.raises(
        DataError, match=rf"{path}: there is no such file\. `make astra` writes it; the Hub's"
    ):
        encoder.load_pretrained()
    whole = encoder.body.state_dict()
    lacking = {name: weight for name, weight in whole.items() if name != "bn1.bias"}
    for given, says in (
        (lacking, r"bn1\.bias \(none, the network has 64\)"),
        (whole | {"fc.bias": torch.zeros(2)}, r"fc\.bias \(2, the network has none\)"),
        (whole | {"bn1.bias": torch.zeros(2)}, r"bn1\.bias \(2, the network has 64\)"),
    ):
        save_file({f"{MERLIN}{name}": weight for name, weight in given.items()}, path)
        with pytest.raises(DataError, match=rf"{path}: holds other weights than this network: {says}\. Name"):
            encoder.load_pretrained()
    path.write_bytes(b"cut short")
    with pytest.raises(DataError, match=rf"{path}: cannot be read as tensors alone \(SafetensorError\)"):
        encoder.load_pretrained()
    with pytest.raises(RecipeError, match=r"low below high; got \[200\.0, -1000\.0\]"):
        I3ResNet(layer=2, window=(200.0, -1000.0))


def test_a_lone_volume_is_encoded_once(cases, tmp_path):
    passed, features = [], {}
    for precision in ("float32", "bfloat16"):
        encoder = seeded(2, precision=precision).requires_grad_(False)
        encoder.register_forward_pre_hook(lambda module, given: passed.append(len(given[0])))
        for count in (1, 2):
            bank = FeatureBank(encoder.input, cache=Cache("features", tmp_path / f"{precision}{count}"))
            handles = [bank.handle(Crop(volume=case.volumes[0]), SIZE) for case in cases[:count]]
            [(_, patches)] = bank.patches(handles, encoder)
            features[precision, count] = patches.features[0]
        assert torch.equal(features[precision, 1], features[precision, 2])
    assert passed == [1, 2, 1, 2]
    pair = features["float32", 1], features["bfloat16", 1]
    assert 0 < (pair[0] - pair[1]).norm() / pair[0].norm() < 0.05


@pytest.mark.slow
@pytest.mark.skipif(not ASTRA.is_dir(), reason="Astra's weights are not here: `make astra` gets them")
def test_astras_own_weights_are_whole_and_see_as_they_did(tmp_path):
    with (ASTRA / "weights.safetensors").open("rb") as weights:
        assert hashlib.file_digest(weights, "sha256").hexdigest() == WEIGHTS
    volume = next(
        iter(PhantomChest(tmp_path, seed=17, train_cases=1, validation_cases=1, test_cases=1).cases("test"))
    ).volumes[0]
    for layer, expected in SEEN.items():
        encoder = I3ResNet(ASTRA.parent, size_zyx=(64, 96, 96), layer=layer, pretrained=ASTRA.name)
        encoder.load_pretrained()
        bank = FeatureBank(encoder.input)
        [(_, patches)] = bank.patches([bank.handle(Crop(volume=volume), (64, 96, 96))], encoder)
        features = patches.features[0]
        assert features.shape == (math.prod(encoder.grid((64, 96, 96))), encoder.width)
        found = [float(features.mean()), float(features.std()), *features.mean(0)[[0, 100, -1]].tolist()]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
