import itertools
import math

import pytest
import torch
from evidcore_testing.checks_model import check_bridge

from evidcore.api import Patches
from evidcore.builtin.projection import GridPooling, GridPosition, Projection, sines_and_cosines


def patches(grid, width=6, volumes=2, seed=0):
    features = torch.randn(volumes, math.prod(grid), width, generator=torch.Generator().manual_seed(seed))
    return Patches(features, grid, torch.zeros(math.prod(grid), 3))


@pytest.mark.parametrize(
    "options", [{}, {"position_embedding": False}, {"layers": 1, "pool_zyx": (1, 2, 2)}, {"pooling": "max"}]
)
def test_it_keeps_the_contract(options):
    check_bridge(
        lambda: Projection(12, 24, (2, 4, 4), **options), width=12, text_width=24, grid_zyx=(2, 4, 4)
    )


def test_pooling_is_a_weighted_sum_over_each_block():
    pooling = GridPooling(3, 5, (1, 2, 2), "linear")
    given = patches((2, 4, 6), width=3)
    pooled = pooling(given.features, given.grid_zyx)
    volume = given.features.reshape(2, 2, 4, 6, 3)
    kernel, bias = pooling.linear.weight.reshape(5, 1, 2, 2, 3), pooling.linear.bias
    for token in range(2 * 2 * 3):
        z, y, x = token // 6, token // 3 % 2, token % 3
        block = volume[:, z : z + 1, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        expected = torch.einsum("vzyxc,ozyxc->vo", block, kernel) + bias
        torch.testing.assert_close(pooled[:, token], expected)


def test_the_largest_of_a_block_is_kept_channel_by_channel():
    pooling = GridPooling(3, 5, (1, 2, 2), "max")
    given = patches((3, 4, 4), width=3)
    pooled = pooling(given.features, given.grid_zyx)
    each = pooling.linear(given.features).reshape(*given.features.shape[:1], 3, 4, 4, 5)
    for token, (z, y, x) in enumerate(itertools.product(range(3), range(2), range(2))):
        block = each[:, z, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].flatten(1, 2)
        torch.testing.assert_close(pooled[:, token], block.max(dim=1).values)


@pytest.mark.parametrize("kind", ["linear", "max"])
def test_a_grid_that_the_pool_does_not_divide_is_continued_by_its_last_patches(kind):
    pooling = GridPooling(3, 5, (2, 2, 2), kind)
    given = patches((3, 4, 4), width=3)
    assert pooling.grid(given.grid_zyx) == (2, 2, 2)
    volume = given.features.reshape(2, 3, 4, 4, 3)
    continued = torch.cat([volume, volume[:, -1:]], dim=1).reshape(2, -1, 3)
    torch.testing.assert_close(pooling(given.features, (3, 4, 4)), pooling(continued, (4, 4, 4)))


def test_tokens_start_as_large_as_words():
    bridge = Projection(6, 48, (4, 4, 4))
    words = 0.03 * torch.randn(500, 48, generator=torch.Generator().manual_seed(1))
    bridge.set_anchor(words)
    assert float(bridge(patches((4, 4, 4))).detach().std()) == pytest.approx(float(words.std()), rel=0.02)


def test_positions_tell_places_apart_and_stretch_to_other_grids():
    position = GridPosition((2, 2, 2), 12)
    assert len(torch.unique(position((2, 2, 2)).detach(), dim=0)) == 8
    assert position((4, 2, 2)).shape == (16, 12)
    corners = position((2, 2, 2)).reshape(2, 2, 2, 12)
    stretched = position((4, 2, 2)).reshape(4, 2, 2, 12)
    torch.testing.assert_close(stretched[0], corners[0])
    torch.testing.assert_close(stretched[1], 0.75 * corners[0] + 0.25 * corners[1])


def test_sines_and_cosines_are_those_of_the_formula():
    waves = sines_and_cosines((2, 3, 4), 15)
    assert waves.shape == (24, 15)
    token = (1 * 3 + 2) * 4 + 3  # z = 1, y = 2, x = 3
    angles = [(place, place * 0.01) for place in (1, 2, 3)]
    expected = [wave(angle) for pair in angles for wave in (math.sin, math.cos) for angle in pair]
    assert waves[token].tolist() == pytest.approx([*expected, 0.0, 0.0, 0.0], abs=1e-6)
