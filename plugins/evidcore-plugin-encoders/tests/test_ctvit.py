"""`ctvit` computes what CT-CLIP's released code does, which is written out here in double precision."""

import itertools
import tomllib

import pytest
import torch
from evidcore_plugin_encoders.checkpoint_layouts import LAYOUTS
from evidcore_plugin_encoders.ctvit import CTViT
from evidcore_testing import check_encoder
from torch.nn import functional

from evidcore.errors import RecipeError

WIDTH, HEADS, HEAD, CODES, LAYERS = 24, 3, 4, 60, {"spatial": 2, "temporal": 1}
VOXELS, INNER = 18, 64  # of a patch; of the feed-forward, int(4 * 2 / 3 * WIDTH)
SIZE, PATCH = (8, 12, 15), (2, 3, 3)
SMALL = {
    "size_zyx": SIZE, "patch_zyx": PATCH, "width": WIDTH, "spatial_layers": 2, "temporal_layers": 1,
    "heads": HEADS, "head_width": HEAD, "codes": CODES,
}  # fmt: skip
VOLUME = torch.rand(SIZE, generator=torch.Generator().manual_seed(5)) * 2 - 1
TURNS = {  # of our z, y, x into slabs, rows and columns of the network; and axes that are reversed
    "released": ((0, 2, 1), []),
    "rows are y": ((0, 1, 2), []),
    **{f"{axis} reversed": ((0, 2, 1), [number]) for number, axis in enumerate("zyx")},
}


def drawn():
    """Return random weights with the names and shapes of a CT-CLIP checkpoint's image encoder."""
    shapes = {
        "to_patch_emb.1.weight": (VOXELS,), "to_patch_emb.1.bias": (VOXELS,),
        "to_patch_emb.2.weight": (WIDTH, VOXELS), "to_patch_emb.2.bias": (WIDTH,),
        "to_patch_emb.3.weight": (WIDTH,), "to_patch_emb.3.bias": (WIDTH,),
        "to_patch_emb_first_frame.2.bias": (WIDTH,), "to_pixels.0.bias": (VOXELS,),
        "vq._codebook.embed": (1, CODES, WIDTH), "vq._codebook.initted": (1,),
        "vq._codebook.cluster_size": (1, CODES),
    }  # fmt: skip
    for at, into, out in (("0.0", 2, WIDTH), ("1.0", WIDTH, WIDTH), ("2", WIDTH, HEADS)):
        at = f"spatial_rel_pos_bias.net.{at}"
        shapes |= {f"{at}.weight": (out, into), f"{at}.bias": (out,)}
    for part, layers in LAYERS.items():
        shapes |= {f"enc_{part}_transformer.norm_out.{end}": (WIDTH,) for end in ("gamma", "beta")}
        for layer in range(layers):
            shapes |= {
                f"enc_{part}_transformer.layers.{layer}.{name}": shape
                for name, shape in {
                    "0.dsconv.weight": (WIDTH, 1, 3, 3, 3), "0.dsconv.bias": (WIDTH,),
                    "1.norm.gamma": (WIDTH,), "1.norm.beta": (WIDTH,), "1.context_norm.gamma": (WIDTH,),
                    "1.null_kv": (HEADS, 0, HEAD), "1.q_scale": (HEAD,), "1.k_scale": (HEAD,),
                    "1.to_q.weight": (HEADS * HEAD, WIDTH), "1.to_kv.weight": (2 * HEADS * HEAD, WIDTH),
                    "1.to_out.weight": (WIDTH, HEADS * HEAD), "3.0.weight": (WIDTH,), "3.0.bias": (WIDTH,),
                    "3.1.weight": (2 * INNER, WIDTH), "3.4.weight": (WIDTH, INNER),
                }.items()
            }  # fmt: skip
    rng = torch.Generator().manual_seed(3)
    # what is added is small, or all tokens point the same way: one vector of the codebook is nearest to all
    scale = {name: 0.03 if name.endswith(("bias", "beta")) else 0.3 for name in shapes}
    return {name: scale[name] * torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def released(weights, volume, quantised, turn):
    """Return the network's features (patch, width) in our order, of a volume (z, y, x) of -1..1."""
    order, reverse = TURNS[turn]
    w = {name: weight.double() for name, weight in weights.items()}
    given = volume.double().flip(reverse).permute(order)
    grid = slabs, rows, columns = [count // side for count, side in zip(given.shape, PATCH, strict=True)]

    def normed(values, at, scale="weight", shift="bias"):
        return functional.layer_norm(values, values.shape[-1:], w[f"{at}.{scale}"], w[f"{at}.{shift}"])

    def of_unit_length(values):
        return values / values.norm(dim=-1, keepdim=True)

    def convolved(maps, at):  # (slab, row, column, width); along slabs it sees itself and two before
        padded = functional.pad(maps.permute(3, 0, 1, 2), (1, 1, 1, 1, 2, 0))
        seen = functional.conv3d(padded, w[f"{at}.weight"], w[f"{at}.bias"], groups=WIDTH)
        return seen.permute(1, 2, 3, 0)

    def attended(tokens, at, bias):  # in each row of (row, token, width)
        query = normed(tokens, f"{at}.norm", "gamma", "beta") @ w[f"{at}.to_q.weight"].T
        key, value = (tokens @ w[f"{at}.to_kv.weight"].T).chunk(2, -1)
        seen = []
        for q, k, v, apart in zip(*(part.split(HEAD, -1) for part in (query, key, value)), bias, strict=True):
            q, k = of_unit_length(q) * w[f"{at}.q_scale"], of_unit_length(k) * w[f"{at}.k_scale"]
            seen.append((8 * q @ k.mT + apart).softmax(-1) @ v)
        return torch.cat(seen, -1) @ w[f"{at}.to_out.weight"].T

    def transformed(tokens, part, bias):
        for layer in range(LAYERS[part]):
            at = f"enc_{part}_transformer.layers.{layer}"
            # the tokens of the temporal transformer lie as place, slab, and are read as slab, place
            tokens = tokens + convolved(tokens.reshape(*grid, WIDTH), f"{at}.0.dsconv").reshape(tokens.shape)
            tokens = tokens + attended(tokens, f"{at}.1", bias)
            values, gate = (normed(tokens, f"{at}.3.0") @ w[f"{at}.3.1.weight"].T).chunk(2, -1)
            tokens = tokens + (functional.gelu(gate) * values) @ w[f"{at}.3.4.weight"].T
        return normed(tokens, f"enc_{part}_transformer.norm_out", "gamma", "beta")

    cubes = given.unfold(0, 2, 2).unfold(1, 3, 3).unfold(2, 3, 3).reshape(slabs, rows * columns, -1)
    tokens = normed(cubes, "to_patch_emb.1") @ w["to_patch_emb.2.weight"].T + w["to_patch_emb.2.bias"]
    places = torch.tensor([*itertools.product(range(rows), range(columns))]).double()
    bias = places[:, None] - places[None]
    bias = bias.sign() * (bias.abs() + 1).log()
    for at in ("net.0.0", "net.1.0", "net.2"):
        bias = bias @ w[f"spatial_rel_pos_bias.{at}.weight"].T + w[f"spatial_rel_pos_bias.{at}.bias"]
        bias = bias if at == "net.2" else torch.where(bias > 0, bias, 0.1 * bias)
    tokens = transformed(normed(tokens, "to_patch_emb.3"), "spatial", bias.permute(2, 0, 1))
    tokens = transformed(tokens.transpose(0, 1), "temporal", [0] * HEADS).transpose(0, 1)
    if quantised:
        codebook = w["vq._codebook.embed"][0]
        tokens = codebook[(of_unit_length(tokens) @ of_unit_length(codebook).T).argmax(-1)]
    back = [order.index(axis) for axis in range(3)]
    return tokens.reshape(*grid, WIDTH).permute(*back, 3).flip(reverse).reshape(-1, WIDTH)


@pytest.fixture
def converted(evid, tmp_path, monkeypatch):
    """Return what converts a checkpoint by the command and gives the encoder of what is printed."""
    monkeypatch.setitem(LAYOUTS, "ctvit", LAYOUTS["ctvit"] | {"encoder": SMALL})

    def convert(weights, **options):
        file, out = tmp_path / "CT-CLIP_v2.pt", tmp_path / "encoder"
        whole = {f"visual_transformer.{name}": weight for name, weight in weights.items()}
        torch.save(whole | {"text_transformer.weight": torch.zeros(2)}, file)
        printed = evid("convert", "encoder", file, "--as", "ctvit", "--out", out).output
        table = tomllib.loads(printed)["model"]["encoder"] | options
        assert table.pop("use") == "ctvit"
        encoder = CTViT(**table).eval()
        encoder.load_pretrained()
        return encoder

    return convert


@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("turn", TURNS)
@torch.no_grad()
def test_features_are_the_released_ones_and_another_turn_shows(turn, quantised, converted):
    features = converted(drawn(), quantised=quantised)(VOLUME[None, None]).features[0]
    difference = (features - released(drawn(), VOLUME, quantised, turn)).abs().max()
    assert (difference < 1e-5) == (turn == "released"), f"{difference:.2g}"


def test_a_network_with_null_keys_is_refused(converted):
    name = "enc_spatial_transformer.layers.0.1.null_kv"
    with pytest.raises(AssertionError, match=rf"'ctvit': {name} has no place\. Name a file of CT-CLIP"):
        converted(drawn() | {name: torch.ones(HEADS, 4, HEAD)})


@pytest.mark.parametrize("quantised", [True, False])
def test_it_keeps_the_contract_of_an_encoder(quantised):
    torch.manual_seed(0)
    check_encoder(CTViT(**SMALL, quantised=quantised))


def test_the_published_shape_fits_the_meta_device_and_other_sizes_are_refused():
    with torch.device("meta"):
        encoder = CTViT()
    assert encoder.grid((240, 480, 480)) == (24, 24, 24)
    layer = 28 * 512 + 4 * 512 * 256 + 2 * 32 + 4 * 512 + 3 * 512 * 1365
    distances, patches = 3 * 512 + 513 * 512 + 513 * 8, 2 * 4000 + 4001 * 512 + 2 * 512
    weights = sum(weight.numel() for weight in encoder.parameters())
    assert weights == 8 * layer + 2 * 2 * 512 + distances + patches
    with pytest.raises(RecipeError, match=r"size_zyx must be a multiple of .* got \(240, 480, 470\) and"):
        CTViT(size_zyx=(240, 480, 470))
