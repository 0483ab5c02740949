import dataclasses

import pytest
import torch
from evidcore_testing import TinyEncoder, check_bridge, check_encoder
from torch import nn

from evidcore.contracts import Bridge, EncoderInput, Patches


class Narrow(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        return Patches(patches.features[..., :-1], patches.grid_zyx, patches.centres_mm)


class Burnt(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        patches.features[0, 3] = torch.nan
        return patches


class ThinWindow(TinyEncoder):
    def __init__(self):
        super().__init__()
        self.input = dataclasses.replace(self.input, windows=((400.0, -1000.0),))


class NoWidth(TinyEncoder):
    def __init__(self):
        super().__init__()
        self.width = 0


class FlatGrid(TinyEncoder):
    def __init__(self):
        super().__init__()
        self.grid = lambda size_zyx: (3, 2, 0)


class OtherGrid(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        return Patches(patches.features, patches.grid_zyx[::-1], patches.centres_mm)


class XFirst(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        centres = patches.centres_mm.reshape(*patches.grid_zyx, 3).permute(2, 1, 0, 3).reshape(-1, 3)
        return Patches(patches.features, patches.grid_zyx, centres)


class FewCentres(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        return Patches(patches.features, patches.grid_zyx, patches.centres_mm[1:])


class FromTheCorner(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        return Patches(patches.features, patches.grid_zyx, patches.centres_mm / 2 + 3)


class InMetres(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        return Patches(patches.features, patches.grid_zyx, patches.centres_mm * 1000)


class Dreaming(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        return Patches(patches.features + torch.rand(()), patches.grid_zyx, patches.centres_mm)


class Numbered(TinyEncoder):
    def forward(self, volumes):
        patches = super().forward(volumes)
        number = torch.arange(len(volumes)).view(-1, 1, 1)
        return Patches(patches.features + number, patches.grid_zyx, patches.centres_mm)


class BatchMean(TinyEncoder):
    def forward(self, volumes):
        return super().forward(volumes - volumes.mean(dim=0))


class Sightless(TinyEncoder):
    def forward(self, volumes):
        return super().forward(torch.zeros_like(volumes))


def test_a_sound_encoder_passes():
    check_encoder(TinyEncoder())


def test_an_encoder_that_takes_any_depth_is_tried_at_others():
    class Slices(TinyEncoder):
        def __init__(self):
            super().__init__()
            self.input = EncoderInput(
                size_zyx=(12, 16, 16), spacing_mm_zyx=(2.0, 1.0, 1.0), windows=((0.0, 80.0),), any_depth=True
            )

        def forward(self, volumes):
            features = self.embed(volumes)
            grid = tuple(features.shape[2:])
            steps = (8.0, 8.0, 8.0)  # mm between patches: 4 slices of 2 mm, 8 voxels of 1 mm
            axes = [step * (torch.arange(n) - (n - 1) / 2) for n, step in zip(grid, steps, strict=True)]
            centres = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3)
            return Patches(features.flatten(2).transpose(1, 2), grid, centres)

    check_encoder(Slices(), depths=(4, 20))
    with pytest.raises(ValueError, match=r"depths \(4,\) are for an encoder that declares any_depth"):
        check_encoder(TinyEncoder(), depths=(4,))


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (
            ThinWindow,
            r"ThinWindow breaks its contract: each window rises, in HU. got \(\(400\.0, -1000\.0\),\)",
        ),
        (NoWidth, "the width is declared. got 0"),
        (
            FlatGrid,
            r"the grid is three positive integers. got \(3, 2, 0\) for \(12, 16, 16\) voxels",
        ),
        (OtherGrid, r"the grid is known without weights. grid\(\) says \(3, 2, 2\), forward \(2, 2, 3\)"),
        (Narrow, r"features are \(volume, patch, width\). must be \(3, 12, 32\), got \(3, 12, 31\)"),
        (Burnt, "features are finite. 32 of 1152 are not"),
        (FewCentres, r"raster order about the middle.* must have shape \(12, 3\), got \(11, 3\)"),
        (XFirst, r"raster order about the middle.* along z: \[-4\.0, "),
        (FromTheCorner, r"raster order about the middle.* along z: \[1\.0, 3\.0, 5\.0\], not about 0"),
        (InMetres, r"along z: \[-4000\.0, 0\.0, 4000\.0\], beyond 6\.0 from the middle"),
        (Dreaming, r"equal volumes get equal features. they differ by \d"),
        (Numbered, r"alone as among others, in order. turning the batch moves features by \d"),
        (BatchMean, r"alone as among others, in order. encoding a volume alone moves features by \d"),
        (Sightless, "different volumes get different features. two random volumes gave the same"),
    ],
)
def test_an_encoder_that_breaks_a_clause_is_caught(mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_encoder(mutant())


class Pooled(Bridge):
    """Two tokens for each slab of patches, on top of the mean embedding."""

    def __init__(self, width, text_width):
        super().__init__()
        self.project = nn.Linear(width, text_width)
        self.gate = nn.Parameter(torch.full((1,), 0.5))
        self.register_buffer("anchor", torch.zeros(text_width))

    def tokens(self, grid_zyx):
        return 2 * grid_zyx[0]

    def forward(self, patches):
        volumes, _, width = patches.features.shape
        pooled = patches.features.reshape(volumes, 2 * patches.grid_zyx[0], -1, width).mean(dim=2)
        return self.anchor + self.gate * self.project(pooled)

    @torch.no_grad()
    def set_anchor(self, embeddings):
        self.anchor.copy_(embeddings.mean(dim=0))


class Miscounts(Pooled):
    def tokens(self, grid_zyx):
        return grid_zyx[0] * grid_zyx[1] * grid_zyx[2]


class ReadsAFileOnMeta(Pooled):
    def __init__(self, width, text_width):
        super().__init__(width, text_width)
        self.start = float(self.project.weight.detach().sum())


class Wide(Pooled):
    def forward(self, patches):
        return super().forward(patches).repeat(1, 1, 2)


class Broken(Pooled):
    def forward(self, patches):
        return super().forward(patches) / 0.0


class CutOff(Pooled):
    def forward(self, patches):
        return super().forward(Patches(patches.features.detach(), patches.grid_zyx, patches.centres_mm))


class Unplugged(Pooled):
    @torch.no_grad()
    def forward(self, patches):
        return super().forward(patches)


class Mixes(Pooled):
    def forward(self, patches):
        features = patches.features + patches.features.mean(dim=0)
        return super().forward(Patches(features, patches.grid_zyx, patches.centres_mm))


class Scalar(Pooled):
    def __init__(self, width, text_width):
        super().__init__(width, text_width)
        self.scale = nn.Parameter(torch.tensor(1.0))


class AnchorInAParameter(Pooled):
    def __init__(self, width, text_width):
        super().__init__(width, text_width)
        del self.anchor
        self.anchor = nn.Parameter(torch.zeros(text_width))


class AnchorInAnAttribute(Pooled):
    @torch.no_grad()
    def set_anchor(self, embeddings):
        self.remembered = embeddings.mean(dim=0)

    def forward(self, patches):
        return super().forward(patches) + self.__dict__.get("remembered", 0.0)


class AnchorNotSaved(Pooled):
    def __init__(self, width, text_width):
        super().__init__(width, text_width)
        self.register_buffer("anchor", torch.zeros(text_width), persistent=False)


class AnchorShared(Pooled):
    def set_anchor(self, embeddings):
        self.anchor = embeddings[0]


class AnchorMoves(Pooled):
    def forward(self, patches):
        embedded = super().forward(patches)
        if self.training:
            self.anchor.mul_(0.9)
        return embedded.clone()


def check(mutant):
    check_bridge(lambda: mutant(32, 24), width=32, text_width=24, grid_zyx=(3, 2, 2), other_grids=[(5, 2, 2)])


def test_a_sound_bridge_passes():
    check(Pooled)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (
            Miscounts,
            r"tokens are counted .* tokens\(\(3, 2, 2\)\) says 12, forward gives \(2, 6, 24\)",
        ),
        (ReadsAFileOnMeta, "tokens are counted without weights. building on meta raised"),
        (Wide, r"embeddings are \(volume, token, text_width\). must be \(2, 6, 24\), got \(2, 6, 48\)"),
        (Broken, r"embeddings are finite. not so for grid \(3, 2, 2\)"),
        (CutOff, "gradient reaches the input. the gradient on the patches is 0"),
        (Unplugged, "gradient reaches the input. the embeddings are cut off from the patches"),
        (Mixes, "a volume is bridged alone as among others. volume 0's embeddings depend on volume 1's"),
        (Scalar, r"no parameter is a single number .* scale has shape \(\)"),
        (AnchorInAParameter, "in persistent buffers. set_anchor changed the parameter 'anchor'"),
        (AnchorInAnAttribute, r"in persistent buffers. saving and loading moves the output by \d"),
        (AnchorNotSaved, r"in persistent buffers. saving and loading moves the output by \d"),
        (AnchorShared, r"in persistent buffers. changing the embeddings afterwards moves the output by \d"),
        (AnchorMoves, "the anchor survives training. training changed the buffer 'anchor'"),
    ],
)
def test_a_bridge_that_breaks_a_clause_is_caught(mutant, message):
    with pytest.raises(AssertionError, match=message):
        check(mutant)
