import math

import pytest
import torch
from evidcore_plugin_med3d_r1.bridge import ResidualAlignment
from evidcore_testing.checks_model import check_bridge

from evidcore.api import Patches
from evidcore.builtin.projection import Projection


def patches(grid_zyx=(4, 4, 4), width=6, volumes=2, seed=0):
    count = math.prod(grid_zyx)
    draw = torch.Generator().manual_seed(seed)
    return Patches(torch.randn(volumes, count, width, generator=draw), grid_zyx, torch.zeros(count, 3))


def bridge(grid_zyx=(4, 4, 4), text_width=12, **options):
    torch.manual_seed(0)
    return ResidualAlignment(6, text_width, grid_zyx, **options)


@pytest.mark.parametrize("kind", [ResidualAlignment, Projection])
def test_the_papers_grid_of_2744_patches_becomes_343_tokens(kind):
    with torch.device("meta"):
        paper = kind(768, 2048, (14, 14, 14))
        shown = Patches(torch.empty(1, 2744, 768), (14, 14, 14), torch.empty(2744, 3))
        assert paper(shown).shape == (1, 343, 2048)
    assert paper.tokens((14, 14, 14)) == 343


def test_pooling_is_the_released_codes_strided_convolution():
    made = bridge((4, 2, 6), pool_zyx=(2, 2, 2)).projection.pooling
    conv = torch.nn.Conv3d(6, 12, kernel_size=2, stride=2)
    with torch.no_grad():
        conv.weight.copy_(made.linear.weight.reshape(12, 2, 2, 2, 6).permute(0, 4, 1, 2, 3))
        conv.bias.copy_(made.linear.bias)
    shown = patches((4, 2, 6))
    volume = shown.features.reshape(2, 4, 2, 6, 6).permute(0, 4, 1, 2, 3)
    wanted = conv(volume).flatten(2).transpose(1, 2)
    torch.testing.assert_close(made(shown.features, (4, 2, 6)), wanted)


def test_anchor_is_the_mean_embedding_and_scale_their_spread():
    made = bridge()
    embeddings = torch.randn(50, 12, generator=torch.Generator().manual_seed(1)) * 0.02 + 0.3
    made.set_anchor(embeddings)
    torch.testing.assert_close(made.anchor, sum(embeddings) / 50)
    values = embeddings.flatten().tolist()
    mean = sum(values) / 600
    by_hand = math.sqrt(sum((value - mean) ** 2 for value in values) / 599)
    assert made.scale.item() == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("gate", ["channel", "token"])
def test_mix_is_the_papers_formula_by_hand(gate):
    made = bridge(text_width=6, gate=gate)
    anchor = [0.5, -1.0, 2.0, 0.0, 0.25, 1.0]
    with torch.no_grad():
        made.anchor.copy_(torch.tensor(anchor))
    token = [1.0, 2.0, -0.5, 0.1, 0.0, -2.0]
    both = token + anchor
    w1, b1 = made.gate_hidden.weight.tolist(), made.gate_hidden.bias.tolist()
    w2, b2 = made.gate_out.weight.tolist(), made.gate_out.bias.tolist()
    hidden = [
        max(0.0, sum(w * v for w, v in zip(row, both, strict=True)) + b)
        for row, b in zip(w1, b1, strict=True)
    ]
    gates = [
        1 / (1 + math.exp(-(sum(w * h for w, h in zip(row, hidden, strict=True)) + b)))
        for row, b in zip(w2, b2, strict=True)
    ]
    gates = gates * 6 if gate == "token" else gates
    wanted = [g * t + (1 - g) * x for g, t, x in zip(gates, anchor, token, strict=True)]
    assert made.mix(torch.tensor([[token]])).flatten().tolist() == pytest.approx(wanted, rel=1e-5)


def test_gate_starts_where_the_recipe_says():
    made = bridge(gate_start=0.2)
    assert torch.sigmoid(made.gate_out.bias).tolist() == pytest.approx([0.2] * 12)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("spread", [0.02, 1.0])
def test_tokens_leave_with_the_spread_of_the_text_embeddings(norm, spread):
    made = bridge(text_width=48, norm=norm)
    made.set_anchor(spread * torch.randn(200, 48, generator=torch.Generator().manual_seed(4)))
    out = made(patches(volumes=8))
    assert 0.3 * spread < out.std().item() < 1.5 * spread


OPTIONS = [{}, {"norm": False}, {"position_embedding": False}, {"scaled": False}, {"pooling": "max"}]


@pytest.mark.parametrize("grid", [(4, 4, 4), (3, 5, 2)])
@pytest.mark.parametrize("options", [*OPTIONS, {"layers": 1, "pool_zyx": (1, 2, 2)}])
@pytest.mark.parametrize("gate", ["channel", "token"])
def test_where_the_gate_is_0_it_is_the_projection_bridge_of_the_same_options(grid, options, gate):
    made = bridge(gate=gate, **options)
    plain = Projection(6, 12, (4, 4, 4), **options)
    missing = plain.load_state_dict(made.state_dict(), strict=False)
    assert missing.missing_keys == []
    embeddings = 0.02 * torch.randn(40, 12, generator=torch.Generator().manual_seed(2))
    made.set_anchor(embeddings)
    plain.set_anchor(embeddings)
    with torch.no_grad():
        made.gate_out.weight.zero_()
        made.gate_out.bias.fill_(-200.0)
    assert torch.equal(made(patches(grid)), plain(patches(grid)))


def test_both_bridges_have_the_same_options_but_for_the_gate():
    gate = {"gate": "channel", "gate_start": 0.5}
    assert ResidualAlignment.__init__.__kwdefaults__ == Projection.__init__.__kwdefaults__ | gate


def test_unscaled_the_anchor_counts_as_it_is_and_tokens_leave_with_a_spread_of_1():
    made = bridge(text_width=48, scaled=False)
    embeddings = 0.02 * torch.randn(200, 48, generator=torch.Generator().manual_seed(4)) + 0.3
    made.set_anchor(embeddings)
    assert made.scale.item() == 1.0
    torch.testing.assert_close(made.anchor, embeddings.mean(dim=0))
    assert made(patches(volumes=8)).std().item() == pytest.approx(1.0, rel=0.05)
    plain = Projection(6, 48, (4, 4, 4), scaled=False)
    plain.set_anchor(embeddings)
    assert plain.scale.item() == 1.0


def test_gradient_reaches_every_weight():
    made = bridge()
    made.set_anchor(torch.randn(40, 12, generator=torch.Generator().manual_seed(2)))
    out = made(patches())
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
    assert [name for name, item in made.named_parameters() if item.grad is None or not item.grad.any()] == []


@pytest.mark.parametrize("options", [*OPTIONS, {"gate": "token"}])
def test_it_keeps_the_contract_of_a_bridge(options):
    grid = (4, 4, 4)
    sizes = {"width": 6, "text_width": 12, "grid_zyx": grid, "other_grids": [(3, 4, 5)]}
    check_bridge(lambda: ResidualAlignment(6, 12, grid, **options), **sizes)
