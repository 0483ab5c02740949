import dataclasses

import pytest
import torch
from evidcore_testing import TinyEncoder, check_bridge, check_encoder
from torch import nn

from evidcore.api import Bridge, EncoderInput, Patches


def encoder(**members):
    return type("Mutant", (TinyEncoder,), members)


def after(change):
    """Return the sound encoder with its patches changed."""
    return encoder(forward=lambda self, volumes: change(TinyEncoder.forward(self, volumes)))


def features(change):
    return after(lambda item: Patches(change(item.features), item.grid_zyx, item.centres_mm))


def centres(change):
    return after(lambda item: Patches(item.features, item.grid_zyx, change(item.centres_mm, item.grid_zyx)))


def before(change):
    return encoder(forward=lambda self, volumes: TinyEncoder.forward(self, change(volumes)))


def built(**attributes):
    """Return the sound encoder that sets these when it is built."""

    def init(self):
        TinyEncoder.__init__(self)
        for name, value in attributes.items():
            setattr(self, name, value)

    return encoder(__init__=init)


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


RASTER = "raster order about the middle.*"
ALONE = "alone as among others, in order."
ENCODERS = {
    r"Mutant breaks its contract: each window rises, in HU. got \(\(400\.0, -1000\.0\),\)": built(
        input=dataclasses.replace(TinyEncoder().input, windows=((400.0, -1000.0),))
    ),
    "the width is declared. got 0": built(width=0),
    r"the grid is three positive integers. got \(3, 2, 0\) for \(12, 16, 16\) voxels": built(
        grid=lambda size_zyx: (3, 2, 0)
    ),
    r"the grid is known without weights. grid\(\) says \(3, 2, 2\), forward \(2, 2, 3\)": after(
        lambda one: Patches(one.features, one.grid_zyx[::-1], one.centres_mm)
    ),
    r"features are \(volume, patch, width\). must be \(3, 12, 32\), got \(3, 12, 31\)": features(
        lambda given: given[..., 1:]
    ),
    "features are finite. 32 of 1152 are not": features(burn),
    rf"{RASTER} along z: \[-4\.0, ": centres(x_first),
    rf"{RASTER} along z: \[1\.0, 3\.0, 5\.0\], not about 0": centres(lambda given, grid: given / 2 + 3),
    r"equal volumes get equal features. they differ by \d": features(lambda given: given + torch.rand(())),
    rf"{ALONE} encoding a volume alone moves features by \d": before(
        lambda volumes: volumes - volumes.mean(dim=0)
    ),
    "different volumes get different features. two random volumes gave the same": before(torch.zeros_like),
}


def test_a_sound_encoder_passes_at_every_depth_that_it_takes():
    check_encoder(TinyEncoder())
    check_encoder(Slices(), depths=(4, 20))
    with pytest.raises(ValueError, match=r"depths \(4,\) are for an encoder that declares any_depth"):
        check_encoder(TinyEncoder(), depths=(4,))


@pytest.mark.parametrize("message", ENCODERS)
def test_an_encoder_that_breaks_a_clause_is_caught(message):
    with pytest.raises(AssertionError, match=message):
        check_encoder(ENCODERS[message]())


class Pooled(Bridge):
    """Two tokens for each slab of patches, on top of the mean embedding."""

    def __init__(self, width, text_width):
        super().__init__()
        self.project = nn.Linear(width, text_width)
        self.gate = nn.Parameter(torch.full((1,), 0.5))
        self.register_buffer("anchor", torch.zeros(text_width))
        self.begin(text_width)

    def begin(self, text_width):
        pass

    def tokens(self, grid_zyx):
        return 2 * grid_zyx[0]

    def forward(self, patches):
        volumes, _, width = patches.features.shape
        pooled = patches.features.reshape(volumes, 2 * patches.grid_zyx[0], -1, width).mean(dim=2)
        return self.anchor + self.gate * self.project(pooled)

    @torch.no_grad()
    def set_anchor(self, embeddings):
        self.anchor.copy_(embeddings.mean(dim=0))


def bridge(**members):
    return type("Mutant", (Pooled,), members)


def embedding(change):
    return bridge(forward=lambda self, patches: change(self, Pooled.forward(self, patches)))


def fed(change):
    def forward(self, patches):
        return Pooled.forward(self, Patches(change(patches.features), patches.grid_zyx, patches.centres_mm))

    return bridge(forward=forward)


def reads_weights(self, text_width):
    self.start = float(self.project.weight.detach().sum())


def single_number(self, text_width):
    self.scale = nn.Parameter(torch.tensor(1.0))


def anchor_in_a_parameter(self, text_width):
    del self.anchor
    self.anchor = nn.Parameter(torch.zeros(text_width))


def anchor_shared(self, embeddings):
    self.anchor = embeddings[0]


def anchor_moves(self, embedded):
    if self.training:
        self.anchor.mul_(0.9)
    return embedded.clone()


KEPT = "in persistent buffers."
BRIDGES = {
    r"tokens are counted .* tokens\(\(3, 2, 2\)\) says 12, forward gives \(2, 6, 24\)": bridge(
        tokens=lambda self, grid_zyx: grid_zyx[0] * grid_zyx[1] * grid_zyx[2]
    ),
    "tokens are counted without weights. building on meta raised": bridge(begin=reads_weights),
    r"embeddings are \(volume, token, text_width\). must be \(2, 6, 24\), got \(2, 6, 48\)": embedding(
        lambda self, embedded: embedded.repeat(1, 1, 2)
    ),
    r"embeddings are finite. not so for grid \(3, 2, 2\)": embedding(lambda self, embedded: embedded / 0.0),
    "gradient reaches the input. the gradient on the patches is 0": fed(torch.detach),
    "a volume is bridged alone as among others. volume 0's embeddings depend on volume 1's": fed(
        lambda given: given + given.mean(dim=0)
    ),
    r"no parameter is a single number .* scale has shape \(\)": bridge(begin=single_number),
    f"{KEPT} set_anchor changed the parameter 'anchor'": bridge(begin=anchor_in_a_parameter),
    rf"{KEPT} saving and loading moves the output by \d": bridge(
        begin=lambda self, width: self.register_buffer("anchor", torch.zeros(width), persistent=False)
    ),
    rf"{KEPT} changing the embeddings afterwards moves the output by \d": bridge(set_anchor=anchor_shared),
    "the anchor survives training. training changed the buffer 'anchor'": embedding(anchor_moves),
}


def check(made):
    check_bridge(lambda: made(32, 24), width=32, text_width=24, grid_zyx=(3, 2, 2), other_grids=[(5, 2, 2)])


def test_a_sound_bridge_passes():
    check(Pooled)


@pytest.mark.parametrize("message", BRIDGES)
def test_a_bridge_that_breaks_a_clause_is_caught(message):
    with pytest.raises(AssertionError, match=message):
        check(BRIDGES[message])
