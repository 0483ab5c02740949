from __future__ import annotations

import math

import pytest
import torch
from evidcore_plugin_med3d_r1.bridge import ResidualAlignment

from evidcore.builtin.projection import Projection
from evidcore.contracts import Patches
from evidcore.testing.checks_model import check_bridge


def patches(grid_zyx=(4, 4, 4), width=6, volumes=2, seed=0):
    count = math.prod(grid_zyx)
    draw = torch.Generator().manual_seed(seed)
    return Patches(torch.randn(volumes, count, width, generator=draw), grid_zyx, torch.zeros(count, 3))


def bridge(grid_zyx=(4, 4, 4), text_width=12, **options):
    torch.manual_seed(0)
    return ResidualAlignment(6, text_width, grid_zyx, **options)


def test_the_papers_grid_of_2744_patches_becomes_343_tokens():
    with torch.device("meta"):
        paper = ResidualAlignment(768, 2048, (14, 14, 14))
    assert paper.tokens((14, 14, 14)) == 343


@pytest.mark.parametrize("grid", [(4, 4, 4), (3, 4, 5), (1, 2, 2)])
def test_tokens_tells_what_forward_gives(grid):
    made = bridge()
    assert made(patches(grid)).shape == (2, made.tokens(grid), 12)


def test_anchor_is_the_mean_embedding_and_scale_their_spread():
    made = bridge()
    embeddings = torch.randn(50, 12, generator=torch.Generator().manual_seed(1)) * 0.02 + 0.3
    made.set_anchor(embeddings)
    torch.testing.assert_close(made.anchor, sum(embeddings) / 50)
    values = embeddings.flatten().tolist()
    mean = sum(values) / 600
    by_hand = math.sqrt(sum((value - mean) ** 2 for value in values) / 599)
    assert made.scale.item() == pytest.approx(by_hand, rel=1e-4)


def test_anchor_keeps_its_first_value_and_travels_with_the_weights():
    made = bridge()
    made.set_anchor(torch.full((3, 12), 2.0) + torch.eye(3, 12))
    kept = made.anchor.clone()
    made.set_anchor(torch.zeros(3, 12))
    assert torch.equal(made.anchor, kept)
    other = bridge()
    other.load_state_dict(made.state_dict())
    other.set_anchor(torch.zeros(3, 12))
    assert torch.equal(other.anchor, kept)
    assert not any(name.startswith("anchor") for name, _ in made.named_parameters())


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


@pytest.mark.parametrize(("bias", "share"), [(-50.0, 0.0), (0.0, 0.5), (50.0, 1.0)])
def test_gate_open_half_and_closed_give_pixels_mean_and_anchor(bias, share):
    made = bridge()
    made.set_anchor(torch.randn(40, 12, generator=torch.Generator().manual_seed(2)))
    with torch.no_grad():
        made.gate_out.weight.zero_()
        made.gate_out.bias.fill_(bias)
    tokens = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(made.mix(tokens), share * made.anchor / made.scale + (1 - share) * tokens)


def test_gate_starts_where_the_recipe_says():
    made = bridge(gate_start=0.2)
    with torch.no_grad():
        made.gate_out.weight.zero_()
    assert torch.sigmoid(made.gate_out.bias).tolist() == pytest.approx([0.2] * 12)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("spread", [0.02, 1.0])
def test_tokens_leave_with_the_spread_of_the_text_embeddings(norm, spread):
    made = bridge(text_width=48, norm=norm)
    made.set_anchor(spread * torch.randn(200, 48, generator=torch.Generator().manual_seed(4)))
    out = made(patches(volumes=8))
    assert 0.3 * spread < out.std().item() < 1.5 * spread


@pytest.mark.parametrize("grid", [(4, 4, 4), (3, 5, 2)])
def test_with_the_gate_shut_it_is_the_projection_bridge(grid):
    made = bridge()
    plain = Projection(6, 12, (4, 4, 4))
    missing = plain.load_state_dict(made.state_dict(), strict=False)
    assert missing.missing_keys == []
    embeddings = 0.02 * torch.randn(40, 12, generator=torch.Generator().manual_seed(2))
    made.set_anchor(embeddings)
    plain.set_anchor(embeddings)
    with torch.no_grad():
        made.gate_out.weight.zero_()
        made.gate_out.bias.fill_(-200.0)
    assert torch.equal(made(patches(grid)), plain(patches(grid)))


def test_gradient_reaches_the_patches_and_every_weight():
    made = bridge()
    made.set_anchor(torch.randn(40, 12, generator=torch.Generator().manual_seed(2)))
    shown = patches()
    shown.features.requires_grad_(True)
    out = made(shown)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
    assert shown.features.grad.abs().sum() > 0
    assert [name for name, item in made.named_parameters() if item.grad is None or not item.grad.any()] == []


def test_pooling_reads_the_grid_in_z_y_x_order():
    made = bridge(position_embedding=False, norm=False)
    shown = patches((4, 2, 2), volumes=1)
    moved = shown.features.clone()
    moved[0, 4 * 2 + 1] += 5.0  # patch z=2, y=0, x=1 lies in the second token
    before, after = made(shown), made(Patches(moved, (4, 2, 2), shown.centres_mm))
    assert torch.equal(before[0, 0], after[0, 0])
    assert not torch.equal(before[0, 1], after[0, 1])


def test_no_parameter_or_buffer_is_0d():
    assert all(item.dim() > 0 for item in bridge().state_dict().values())


@pytest.mark.parametrize("options", [{}, {"gate": "token", "position_embedding": False}, {"norm": False}])
def test_it_keeps_the_contract_of_a_bridge(options):
    check_bridge(
        lambda: ResidualAlignment(6, 12, (4, 4, 4), **options),
        width=6,
        text_width=12,
        grid_zyx=(4, 4, 4),
        other_grids=[(3, 4, 5)],
    )
