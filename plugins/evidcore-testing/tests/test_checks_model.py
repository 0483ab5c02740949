import dataclasses
import math

import pytest
import torch
from evidcore_testing import TinyEncoder, check_bridge, check_encoder
from mutants import altered, begun, caught, changing
from torch import nn

from evidcore.api import EncoderInput, Patches
from evidcore.builtin.projection import Projection


def encoding(change):
    """Return the sound encoder with its patches changed."""
    return changing(TinyEncoder, "forward", change)


def features(change):
    return encoding(lambda patches: Patches(change(patches.features), patches.grid_zyx, patches.centres_mm))


def centres(change):
    return encoding(
        lambda patches: Patches(
            patches.features, patches.grid_zyx, change(patches.centres_mm, patches.grid_zyx)
        )
    )


def seeing(change):
    return altered(TinyEncoder, forward=lambda self, volumes: TinyEncoder.forward(self, change(volumes)))


def built(**attributes):
    """Return the sound encoder that sets these when it is built."""
    return begun(TinyEncoder, lambda self: [setattr(self, *pair) for pair in attributes.items()])


def burn(given):
    given[0, 3] = torch.nan
    return given


def x_first(given, grid):
    return given.reshape(*grid, 3).permute(2, 1, 0, 3).reshape(-1, 3)


class Slices(TinyEncoder):
    """Slices of 2 mm, as many as there are."""

    def __init__(self):
        super().__init__()
        self.input = EncoderInput(
            size_zyx=(12, 16, 16), spacing_mm_zyx=(2.0, 1.0, 1.0), windows=((0.0, 80.0),), any_depth=True
        )

    def forward(self, volumes):
        result = self.embed(volumes)
        grid = tuple(result.shape[2:])
        axes = [8.0 * (torch.arange(n) - (n - 1) / 2) for n in grid]  # mm: 4 slices of 2, 8 voxels of 1
        middles = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3)
        return Patches(result.flatten(2).transpose(1, 2), grid, middles)


FALLING = dataclasses.replace(TinyEncoder().input, windows=((400.0, -1000.0),))
RASTER = "raster order about the middle.*"
ENCODERS = {
    r"each window rises, in HU. got \(\(400\.0, -1000\.0\),\)": built(input=FALLING),
    "the width is declared. got 0": built(width=0),
    r"three positive integers. got \(3, 2, 0\) for \(12, 16, 16\) voxels": built(grid=lambda size: (3, 2, 0)),
    r"known without weights. grid\(\) says \(3, 2, 2\), forward \(2, 2, 3\)": encoding(
        lambda patches: Patches(patches.features, patches.grid_zyx[::-1], patches.centres_mm)
    ),
    r"\(volume, patch, width\). must be \(3, 12, 32\), got \(3, 12, 31\)": features(lambda all: all[..., 1:]),
    "features are finite. 32 of 1152 are not": features(burn),
    rf"{RASTER} along z: \[-4\.0, ": centres(x_first),
    rf"{RASTER} along z: \[1\.0, 3\.0, 5\.0\], not about 0": centres(lambda given, grid: given / 2 + 3),
    r"equal volumes get equal features. they differ by \d": features(lambda all: all + torch.rand(())),
    r"alone as among others, in order. encoding a volume alone moves features by \d": seeing(
        lambda volumes: volumes - volumes.mean(dim=0)
    ),
    "different volumes get different features. two random volumes gave the same": seeing(torch.zeros_like),
}


def test_a_sound_encoder_passes_at_every_depth_that_it_takes():
    check_encoder(TinyEncoder())
    check_encoder(Slices(), depths=(4, 20))
    with pytest.raises(ValueError, match=r"depths \(4,\) are for an encoder that declares any_depth"):
        check_encoder(TinyEncoder(), depths=(4,))


@pytest.mark.parametrize("message", ENCODERS)
def test_an_encoder_that_breaks_a_clause_is_caught(message):
    with caught(message):
        check_encoder(ENCODERS[message]())


def bridging(change):
    return changing(Projection, "forward", change)


def fed(change):
    def forward(self, patches):
        given = Patches(change(patches.features), patches.grid_zyx, patches.centres_mm)
        return Projection.forward(self, given)

    return altered(Projection, forward=forward)


def reads_weights(self):
    self.start = float(self.projection.pooling.linear.weight.detach().sum())


def anchor_in_a_parameter(self):
    del self.scale
    self.scale = nn.Parameter(torch.ones(1), requires_grad=False)


def anchor_moves(self, patches):
    if self.training:
        self.scale = 0.9 * self.scale
    return Projection.forward(self, patches)


ANCHOR = "in persistent buffers."
BRIDGES = {
    r"tokens are counted .* tokens\(\(3, 2, 2\)\) says 12, forward gives \(2, 2, 24\)":
        altered(Projection, tokens=lambda self, grid_zyx: math.prod(grid_zyx)),
    "tokens are counted without weights. building on meta raised": begun(Projection, reads_weights),
    r"\(volume, token, text_width\). must be \(2, 2, 24\), got \(2, 2, 48\)":
        bridging(lambda embedded: embedded.repeat(1, 1, 2)),
    r"embeddings are finite. not so for grid \(3, 2, 2\)": bridging(lambda embedded: embedded / 0.0),
    "gradient reaches the input. the gradient on the patches is 0": fed(torch.detach),
    "a volume is bridged alone as among others. volume 0's embeddings depend on volume 1's":
        fed(lambda given: given + given.mean(dim=0)),
    r"no parameter is a single number .* gain has shape \(\)":
        begun(Projection, lambda self: setattr(self, "gain", nn.Parameter(torch.tensor(1.0)))),
    f"{ANCHOR} set_anchor changed the parameter 'scale'": begun(Projection, anchor_in_a_parameter),
    rf"{ANCHOR} saving and loading moves the output by \d":
        begun(Projection, lambda self: self.register_buffer("scale", torch.ones(1), persistent=False)),
    rf"{ANCHOR} changing the embeddings afterwards moves the output by \d":
        altered(Projection, set_anchor=lambda self, embeddings: setattr(self, "scale", embeddings[0])),
    "the anchor survives training. training changed the buffer 'scale'":
        altered(Projection, forward=anchor_moves),
}  # fmt: skip


def check(made):
    given = (32, 24, (3, 2, 2))
    check_bridge(lambda: made(*given), width=32, text_width=24, grid_zyx=given[2], other_grids=[(5, 2, 2)])


def test_a_sound_bridge_passes():
    check(Projection)


@pytest.mark.parametrize("message", BRIDGES)
def test_a_bridge_that_breaks_a_clause_is_caught(message):
    with caught(message):
        check(BRIDGES[message])
