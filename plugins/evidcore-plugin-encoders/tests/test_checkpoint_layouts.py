"""Converted encoders compute what the released code does, which is written out here in double precision."""

import argparse
import hashlib
import math
import tomllib

import pytest
import torch
from einops import rearrange
from evidcore_plugin_encoders.checkpoint_layouts import LAYOUTS
from evidcore_plugin_encoders.vit3d import ViT3D
from safetensors.torch import save_file
from torch.nn import functional

WIDTH, LAYERS, HEADS = 24, 2, 12
NAMES = {  # as published: first layer, positions, attention's last layer, the layers of the MLP
    "brgsa": ("patch_embed.proj", "pos_embed", "attn.proj", "mlp.fc1", "mlp.fc2"),
    "m3d-clip": ("patch_embedding.patch_embeddings.1", "patch_embedding.position_embeddings", "attn.out_proj",
                 "mlp.linear1", "mlp.linear2"),
}  # fmt: skip
PREFIXES = {"brgsa": "gloria.img_encoder.model.", "m3d-clip": "vision_encoder."}
BLOCKS = [f"blocks.{layer}" for layer in range(LAYERS)]


def drawn(name, patches):
    """Return random weights with the published names and shapes of a layout."""
    stem, positions, out, first, second = NAMES[name]
    filters, tokens = {"brgsa": ((1, 16, 16, 8), patches + 1), "m3d-clip": ((1024,), patches)}[name]
    layers = {stem: (WIDTH, *filters), "norm": (WIDTH,)}
    for at in BLOCKS:
        layers |= {
            f"{at}.norm1": (WIDTH,),
            f"{at}.attn.qkv": (3 * WIDTH, WIDTH),
            f"{at}.{out}": (WIDTH, WIDTH),
        }
        layers |= {f"{at}.norm2": (WIDTH,), f"{at}.{first}": (96, WIDTH), f"{at}.{second}": (WIDTH, 96)}
    shapes = {"cls_token": (1, 1, WIDTH), positions: (1, tokens, WIDTH)}
    for layer, shape in layers.items():
        shapes |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
    rng = torch.Generator().manual_seed(3)
    # what makes the tokens is small, so that the norms' eps shows
    scale = {key: 0.0005 if "embed" in key else 0.3 for key in shapes}
    weights = {key: scale[key] * torch.randn(shape, generator=rng) for key, shape in shapes.items()}
    return {key: weight for key, weight in weights.items() if name == "brgsa" or "qkv.bias" not in key}


def released(name, weights, volume):
    """Return a network's features (patch, width) in our order, of a volume (z, y, x) of -1..1."""
    stem, positions, out, first, second = NAMES[name]
    w = {key: weight.double() for key, weight in weights.items()}
    if name == "brgsa":  # x, y, z
        given, sides, eps = (volume.double().permute(2, 1, 0) - 0.4978) / 0.2449, (16, 16, 8), 1e-6
    else:  # slices from the top down, 0 to 1
        given, sides, eps = (volume.double().flip(0) + 1) / 2, (4, 16, 16), 1e-5

    def linear(values, at):
        return functional.linear(values, w[f"{at}.weight"].flatten(1), w.get(f"{at}.bias"))

    def normed(values, at, eps):
        return functional.layer_norm(values, (WIDTH,), w[f"{at}.weight"], w[f"{at}.bias"], eps)

    a, b, c = (count // side for count, side in zip(given.shape, sides, strict=True))
    cubes = rearrange(given, "(a p) (b q) (c r) -> (a b c) (p q r)", a=a, b=b, c=c)
    tokens = torch.cat([w["cls_token"][0], linear(cubes, stem)])
    tokens[-w[positions].shape[1] :] += w[positions][0]  # in brgsa the class token has a position too
    for at in BLOCKS:
        parts = linear(normed(tokens, f"{at}.norm1", eps), f"{at}.attn.qkv").chunk(3, dim=1)
        heads = zip(*(part.chunk(HEADS, dim=1) for part in parts), strict=True)
        seen = [(q @ k.T / (WIDTH / HEADS) ** 0.5).softmax(1) @ v for q, k, v in heads]
        tokens = tokens + linear(torch.cat(seen, dim=1), f"{at}.{out}")
        inner = functional.gelu(linear(normed(tokens, f"{at}.norm2", eps), f"{at}.{first}"))
        tokens = tokens + linear(inner, f"{at}.{second}")
    features = normed(tokens, "norm", 1e-5)[1:].reshape(a, b, c, WIDTH)
    return (features.permute(2, 1, 0, 3) if name == "brgsa" else features.flip(0)).reshape(-1, WIDTH)


def whole(name, patches):
    """Return a checkpoint in which the encoder is a part of a larger model."""
    part = {f"{PREFIXES[name]}{key}": weight for key, weight in drawn(name, patches).items()}
    return part | {"text.weight": torch.zeros(2)}


PUBLISHED_SIZE = pytest.param(None, marks=pytest.mark.slow, id="published-size")
WRONG = [{"axes": [1, 2, 0]}, {"axes": [0, 2, 1]}, {"reversed": [1]}, {"reversed": [0, 2]}]
WRONG += [{"mean": 0}, {"spread": 1}, {"encoder": {"heads": 8}}, {"encoder": {"norm_eps": 3e-6}}]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [PUBLISHED_SIZE, {}, *WRONG])
def test_features_are_the_released_ones_and_a_wrong_table_shows(name, wrong, evid, tmp_path, monkeypatch):
    layout = LAYOUTS[name]
    grid_zyx = {"brgsa": (14, 14, 14), "m3d-clip": (8, 16, 16)}[name] if wrong is None else (2, 3, 4)
    size_zyx = [count * patch for count, patch in zip(grid_zyx, layout["encoder"]["patch_zyx"], strict=True)]
    if wrong is not None:
        options = layout["encoder"] | {"size_zyx": size_zyx} | wrong.get("encoder", {})
        monkeypatch.setitem(LAYOUTS, name, {**layout, **wrong, "encoder": options})
    patches = math.prod(grid_zyx)
    file, out = tmp_path / "model.safetensors", tmp_path / "encoder"
    save_file(whole(name, patches), file)
    printed = tomllib.loads(evid("convert", "encoder", file, "--as", name, "--out", out).output)
    table = printed["model"]["encoder"]
    assert table.pop("use") == "vit3d"
    encoder = ViT3D(**table).eval()
    encoder.load_pretrained()
    volume = torch.rand(size_zyx, generator=torch.Generator().manual_seed(5)) * 2 - 1
    with torch.no_grad():
        features = encoder(volume[None, None]).features[0]
    difference = (features - released(name, drawn(name, patches), volume)).abs().max()
    assert (difference < 1e-5) == (not wrong), f"{difference:.2g}"


RIGHT = drawn("brgsa", 14**3)
LESS = {key: RIGHT[key] for key in RIGHT if key != "norm.bias"} | {"decoder": torch.zeros(2)}
EXECUTED = {"state_dict": RIGHT, "hyper_parameters": argparse.Namespace()}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (LESS, "'brgsa': norm.bias is missing; decoder has no place. Name a file of BrgSA"),
        (whole("m3d-clip", 8), "Type --as m3d-clip."),
        ({"fc.bias": torch.zeros(2)}, "holds 0 encoders of layout 'brgsa'; its names are fc.bias …"),
        (RIGHT | {f"ema.{key}": RIGHT[key] for key in RIGHT}, "holds 2 encoders of layout 'brgsa'"),
        (drawn("brgsa", 8), "pos_embed is [1, 9, 24], which does not fit patches of [8, 16, 16] in"),
        (RIGHT | {"norm.bias": torch.zeros(7)}, "norm.bias (7, the network has 24)"),
        ([1], "holds a list. Name a file with a state dict."),
        (EXECUTED, "cannot be read as tensors alone (UnpicklingError): it is damaged, or holds objects"),
    ],
)
def test_another_file_is_refused(given, says, evid, tmp_path):
    file, out = tmp_path / "model.pth", tmp_path / "out"
    torch.save(given, file)
    text = evid("convert", "encoder", file, "--as", "brgsa", "--out", out, exit_code=2).stderr
    assert f"{file}: " in text
    assert says in text
    assert "weights_only" not in text, "torch's own advice is to read it unsafely"
    assert not out.exists()


def test_the_source_is_written_and_weights_are_never_overwritten(evid, tmp_path):
    file, out = tmp_path / "vit.bin", tmp_path / "m3d"
    words = ("convert", "encoder", file, "--out", out, "--as")
    assert f"{file}: there is no such file." in evid(*words, "m3d-clip", exit_code=2).stderr
    torch.save({"model": drawn("m3d-clip", 8 * 16 * 16)}, file)
    refused = evid(*words, "ct-vit", exit_code=2).stderr
    assert "--as ct-vit: is no layout that is known. Type one of brgsa, m3d-clip, ctvit." in refused
    evid(*words, "m3d-clip")
    source = (out / "SOURCE.md").read_text(encoding="utf-8")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert f"from `vit.bin` (sha256 {sha256}), read as layout `m3d-clip`:\nM3D (github.com" in source
    assert f"{out / 'weights.safetensors'}: is there already." in evid(*words, "m3d-clip", exit_code=2).stderr
