"""Frozen weights in bfloat16: their products are autocast's, and what adapters learn is not rounded."""

import torch
from torch import nn

from evidcore.model.parts import AdaptedLinear, keep_in_bfloat16


def test_matrices_are_rounded_and_vectors_are_not():
    part = nn.Sequential(nn.Conv3d(1, 4, 2), nn.LayerNorm(4), nn.Linear(4, 3), nn.Embedding(5, 4))
    assert keep_in_bfloat16("encoder", part) == 4 * 8 + 3 * 4
    kinds = {name: weight.dtype for name, weight in part.named_parameters()}
    assert {name for name, kind in kinds.items() if kind == torch.bfloat16} == {"0.weight", "2.weight"}
    assert keep_in_bfloat16("language", part) == 3 * 4 + 5 * 4
    assert part[3].weight.dtype == torch.bfloat16


def test_tied_weights_stay_tied_and_count_once():
    part = nn.ModuleList([nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)])
    part[1].weight = part[0].weight
    assert keep_in_bfloat16("language", part) == 20
    assert part[1].weight is part[0].weight


def test_what_adapters_learn_adds_up_without_being_rounded():
    torch.manual_seed(0)
    layer, given = nn.Linear(16, 8).bfloat16().float(), torch.randn(3, 16, dtype=torch.float64)
    small = [(torch.randn(2, 16) * 3e-5, torch.randn(8, 2)) for _ in range(2)]
    adapted = AdaptedLinear(AdaptedLinear(layer, *small[0]), *small[1])
    assert adapted.down.shape == (4, 16)
    assert adapted.weight is layer.weight
    merged = layer.weight + sum(up @ down for down, up in small)
    wanted = given @ merged.double().T + layer.bias.double()
    torch.testing.assert_close(adapted.double()(given), wanted, rtol=0, atol=1e-6)
    is_lost = merged.bfloat16() == layer.weight  # where the sum would be rounded
    assert is_lost.double().mean() > 0.8
