"""`hf-slices` gives what each family's own class computes of a picture, at its patches."""

import pytest
import torch
from evidcore_plugin_encoders.slice_encoders import HfSlices
from evidcore_testing import check_encoder
from transformers import AutoConfig, AutoModel, CLIPConfig, SiglipConfig, ViTImageProcessor

from evidcore.errors import RecipeError, RunError

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
VIT = SMALL | {"image_size": 32, "patch_size": 8}
WITH_TEXT = {"siglip_vision_model": SiglipConfig, "clip_vision_model": CLIPConfig}
FAMILIES = {  # tokens that are no patches
    "dinov2": 1, "dinov2_with_registers": 5, "dinov3_vit": 3, "siglip_vision_model": 0,
    "clip_vision_model": 1, "vit": 1, "deit": 2, "ijepa": 0,
}  # fmt: skip
MEAN, SPREAD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]


def config_of(family):
    return VIT | ({"num_register_tokens": 2} if family == "dinov3_vit" else {})


def published(folder, family, config):
    """Write a model of random weights with its image processor and its family's text part."""
    torch.manual_seed(1)
    if family in WITH_TEXT:
        shape = WITH_TEXT[family](vision_config=config, text_config=SMALL | {"vocab_size": 64})
    else:
        shape = AutoConfig.for_model(family, **config)
    model = AutoModel.from_config(shape).eval()
    model.save_pretrained(folder)
    ViTImageProcessor(image_mean=MEAN, image_std=SPREAD).save_pretrained(folder)
    return getattr(model, "vision_model", model)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_features_are_those_of_the_familys_own_class(family, tmp_path):
    model = published(tmp_path / "own", family, config_of(family))
    encoder = HfSlices(tmp_path, model=family, config=config_of(family), pretrained="own", slices=2)
    encoder.load_pretrained()
    slices = torch.rand(3, 3, *encoder.input.size_zyx[1:])
    scaled = (slices - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SPREAD)[:, None, None]
    expected = model(pixel_values=scaled).last_hidden_state
    assert expected.shape[1] == FAMILIES[family] + 16
    expected = expected[:, FAMILIES[family] :].flatten(0, 1)
    found = encoder.eval()((slices * 2 - 1).transpose(0, 1)[None]).features[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", [*FAMILIES, "convnext"])
def test_families_keep_the_contract_at_another_size_and_with_one_window(family):
    torch.manual_seed(0)
    config = {} if family == "convnext" else config_of(family)
    window, size = ((-160.0, 240.0),), 64 if family == "convnext" else 48
    encoder = HfSlices(model=family, config=config, size=size, slices=2, windows=window)
    side = 2 if family == "convnext" else 6
    assert encoder.grid((1, size, size)) == (1, side, side)
    check_encoder(encoder, depths=(1,))


def test_weights_of_another_configuration_are_refused_with_what_to_write(tmp_path):
    published(tmp_path / "own", "vit", VIT | {"layer_norm_eps": 1e-3})
    for model in ("vit", "dinov2"):
        encoder = HfSlices(tmp_path, model=model, config=VIT, pretrained="own")
        with pytest.raises(RunError, match=rf"own' cannot be loaded into '{model}': its conf") as caught:
            encoder.load_pretrained()
        assert 'another. Write model = "vit" and config = { hidden_size = 32, ' in str(caught.value)
        assert ", layer_norm_eps = 0.001, " in str(caught.value)
    missing = HfSlices(model="vit", config=VIT, pretrained="a/b@0123").missing_weights()
    assert missing == "weights of a/b are not here. `hf download a/b --revision 0123` gets them."


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "dinov22"}, r"transformers has no type 'dinov22'\. Did you mean 'dinov2'"),
        ({"model": "bert"}, r"'bert' takes more than the pixels of a picture\. Name a vision part"),
        (
            {"windows": ((0.0, 1.0),) * 2},
            r"2 windows, and the model takes 3 channels\. Name one window, or as",
        ),
    ],
)
def test_what_is_no_model_of_slices_is_refused(options, says):
    with pytest.raises(RecipeError, match=says):
        HfSlices(**{"model": "vit", "config": SMALL, **options})
