import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from evidcore_plugin_encoders.slice_encoders import FIT, TimmSlices
from evidcore_testing.checks_model import check_encoder
from evidcore_testing.data import volume_case
from safetensors.torch import load_file, save_file

from evidcore.contracts import FitData
from evidcore.errors import PluginError, RecipeError, RunError

# convolutions; a plain transformer with a class token; windows and channels last
BACKBONES = ["test_resnet", "test_vit", "swin_tiny_patch4_window7_224"]


def tiny(**options: object) -> TimmSlices:
    torch.manual_seed(0)
    return TimmSlices(**{"model": "test_resnet", "size": 64, "slices": 3} | options)


@pytest.fixture(scope="module")
def download(tmp_path_factory) -> Path:
    """Weights in the layout of a Hub download, with a mean and spread that are its own."""
    folder = tmp_path_factory.mktemp("download")
    torch.manual_seed(1)
    model = timm.create_model("test_resnet", num_classes=10)
    spread = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    layers = {"num_classes": 10, "first_conv": "conv1.0", "classifier": "fc"}
    pretrained = {"input_size": [3, 160, 160], **spread, **layers}
    settings = {"architecture": "test_resnet", "num_classes": 10, "pretrained_cfg": pretrained}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("model", BACKBONES)
def test_backbones_of_every_layout_keep_the_contract(model):
    check_encoder(tiny(model=model), depths=(1, 5))


def test_patches_are_those_of_each_slice_on_its_own():
    encoder = tiny().eval()
    volumes = torch.rand(2, 3, 4, 64, 64) * 2 - 1
    whole = encoder(volumes)
    assert whole.grid_zyx == (4, 2, 2)
    assert encoder.grid((2, 64, 128)) == (2, 2, 4)
    for number in range(2):
        for z in range(4):
            alone = encoder.body.forward_features(volumes[number, :, z][None])  # width first
            by_hand = alone[0].permute(1, 2, 0).reshape(4, -1)
            torch.testing.assert_close(whole.features[number, 4 * z : 4 * z + 4], by_hand)


def test_windows_are_channels_and_none_is_one():
    assert tiny(windows=((-160.0, 240.0),)).input.channels == 1
    encoder = tiny(windows=()).eval()
    assert encoder(torch.zeros(1, 1, 2, 64, 64)).features.shape == (1, 8, encoder.width)
    with pytest.raises(ValueError, match=r"low below high; got \[240, -160\]"):
        tiny(windows=((240.0, -160.0),))


def test_weights_come_from_a_folder_with_their_own_mean_and_spread(download):
    encoder = tiny(pretrained=str(download))
    with pytest.raises(RunError, match=r"the weights '.*download0' were named but never loaded"):
        encoder(torch.zeros(1, 3, 1, 64, 64))
    encoder.load_pretrained()
    torch.manual_seed(1)
    published = timm.create_model("test_resnet", num_classes=10).eval()
    slices = torch.rand(1, 3, 1, 64, 64)
    mean, std = torch.tensor([0.1, 0.2, 0.3])[:, None, None], torch.tensor([0.4, 0.5, 0.6])[:, None, None]
    expected = published.forward_features((slices[:, :, 0] - mean) / std)
    result = encoder.eval()(slices * 2 - 1).features
    torch.testing.assert_close(result[0], expected[0].permute(1, 2, 0).reshape(4, -1), rtol=1e-4, atol=1e-5)


def test_weights_for_three_colours_fit_another_number_of_windows(download):
    encoder = tiny(pretrained=str(download), windows=((-160.0, 240.0),))
    encoder.load_pretrained()
    np.testing.assert_allclose(encoder.mean.flatten(), [0.2], atol=1e-6)
    assert torch.isfinite(encoder(torch.zeros(1, 1, 1, 64, 64)).features).all()


def test_weights_that_were_read_back_are_not_loaded_again(download, tmp_path):
    encoder = tiny(pretrained=str(download))
    encoder.load_pretrained()
    back = tiny(pretrained=str(tmp_path / "moved-away"))
    back.load_state_dict(encoder.state_dict())
    volumes = torch.rand(1, 3, 2, 64, 64)
    torch.testing.assert_close(back.eval()(volumes).features, encoder.eval()(volumes).features)


def test_weights_of_another_backbone_are_refused(download):
    with pytest.raises(RunError) as caught:
        tiny(model="test_vit", pretrained=str(download)).load_pretrained()
    assert f"model.encoder.pretrained: '{download}' cannot be loaded into 'test_vit': " in str(caught.value)
    assert f"`hf download {download} --local-dir FOLDER` elsewhere, copy the folder here" in str(caught.value)


def test_a_fit_starts_from_the_named_weights(download, tmp_path):
    encoder = tiny(pretrained=str(download), size=32, slices=2)
    cases = [volume_case(tmp_path / "data", seed) for seed in range(4)]
    options = replace(FIT, steps=1, cases_per_step=4, learning_rate=1e-9)
    encoder.fit(FitData(cases, cases, tmp_path / "fit", 0, print), options=options)
    published = load_file(download / "model.safetensors")
    weight = dict(encoder.body.named_parameters())["conv1.0.weight"].detach()
    torch.testing.assert_close(weight, published["conv1.0.weight"])


def test_an_unknown_backbone_is_named_with_the_nearest():
    with pytest.raises(RecipeError, match=r"timm has no backbone 'resnet81'\. Did you mean 'resnet\w+'\?"):
        tiny(model="resnet81")


def test_without_timm_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(PluginError, match=r'pip install "evidcore-plugin-encoders\[timm\]"'):
        TimmSlices()
