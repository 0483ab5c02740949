"""What an encoder can be asked during training: findings, sides, zones, patches, voxels, its report."""

import itertools
import math
import re
import zlib
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from evidcore.contracts import Grid
from evidcore_plugin_encoders.encoder_targets import SEEN_FRACTION, Targets

Features = Float[Tensor, "case patch width"]
HEIGHTS, HALVES = 4, 2  # zones of the body: from caudal to cranial, right and left


def pooled(
    features: Features, grid: Grid, heights: int = 1, halves: int = 1
) -> Float[Tensor, "case zone twice_width"]:
    """Return maximum and mean of the features in each zone.

    A mean alone drowns a sign that fills few patches, and so does attention that starts out uniform.
    """
    z, y, x = grid
    zones = features.reshape(len(features), heights, z // heights, y, halves, x // halves, -1)
    return torch.cat([zones.amax((2, 3, 5)), zones.mean((2, 3, 5))], dim=-1).flatten(1, 2)


class Questionnaire(nn.Module):
    """Ask for each finding in each zone, linearly on pooled features."""

    def __init__(self, width: int, findings: int, share: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2 * width)
        self.linear = nn.Linear(2 * width, findings)
        nn.init.constant_(self.linear.bias, math.log(share / (1 - share)))

    def forward(self, zones: Float[Tensor, "case zone twice_width"]) -> Float[Tensor, "case zone finding"]:
        logits = self.linear(self.norm(zones.flatten(0, 1)))
        return torch.as_tensor(logits.unflatten(0, zones.shape[:2]))


class Objective(nn.Module):
    """A question to the features of a step's cases; calling it gives the loss."""

    weight: ClassVar[float] = 1.0
    needs_masks: ClassVar[bool] = False
    of_voxels: ClassVar[bool] = False  # asked of voxels, about findings alone; else of patches

    def __init__(self, width: int, grid: Grid, findings: int) -> None:
        """Take the channels of what is asked, the grid of patches, and how many findings there are."""
        super().__init__()
        self.grid = grid


class Labels(Objective):
    """Each finding anywhere, and on each side where the case tells it."""

    def __init__(self, width: int, grid: Grid, findings: int) -> None:
        super().__init__(width, grid, findings)
        self.anywhere = Questionnaire(width, findings, 0.2)
        self.by_side = Questionnaire(width, findings, 0.1)

    def forward(self, features: Features, known: Targets) -> Tensor:
        whole = self.anywhere(pooled(features, self.grid))[:, 0]
        loss = known_entropy(whole, known.findings)
        if self.grid[2] % HALVES == 0:
            halves = self.by_side(pooled(features, self.grid, halves=HALVES))
            loss = loss + 0.5 * known_entropy(halves, known.sides)
        return loss


class Zones(Objective):
    """Each finding by height and side, as reports word it: "left upper zone"."""

    weight = 2.0
    needs_masks = True

    def __init__(self, width: int, grid: Grid, findings: int) -> None:
        super().__init__(width, grid, findings)
        if grid[0] % HEIGHTS or grid[2] % HALVES:
            raise ValueError(f"zones need a grid whose z divides by {HEIGHTS} and x by {HALVES}, got {grid}")
        self.ask = Questionnaire(width, findings, 0.08)

    def forward(self, features: Features, known: Targets) -> Tensor:
        logits = self.ask(pooled(features, self.grid, HEIGHTS, HALVES))
        z, y, x = self.grid
        cells = (HEIGHTS, z // HEIGHTS, y, HALVES, x // HALVES)
        shares = known.patches.float().div(255).reshape(*known.findings.shape, *cells)
        seen = (shares.sum((3, 4, 6)) >= 2 * SEEN_FRACTION).to(torch.int8)
        seen = seen.masked_fill(known.unmasked[:, :, None, None], -1)
        return known_entropy(logits, seen.flatten(2).transpose(1, 2))


class Masks(Objective):
    """Each finding in each patch, and the patch that shows it most as the verdict on the case.

    Patches that show a trace of a finding are left out. The verdict of the best patch keeps the many empty
    patches in check: their average hardly notices the one false alarm that spoils a case.
    """

    needs_masks = True

    def __init__(self, width: int, grid: Grid, findings: int) -> None:
        super().__init__(width, grid, findings)
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, findings)
        nn.init.constant_(self.linear.bias, -3.0)
        self.threshold = nn.Parameter(torch.full((findings,), 2.0))

    def forward(self, features: Features, known: Targets) -> Tensor:
        """Return the loss: both classes weigh the same, since a sign fills few patches."""
        logits = self.linear(self.norm(features))
        share = known.patches.float().div(255).transpose(1, 2)  # (case, patch, finding)
        # A small sign on the corner of patches fills none of them: its best patch counts all the same.
        enough = share.amax(1, keepdim=True).div(2).clamp(max=SEEN_FRACTION)
        seen = (share >= enough) & (share > 0)
        clean = (share == 0) & ~known.unmasked[:, None]
        loss = functional.binary_cross_entropy_with_logits(logits, seen.float(), reduction="none")
        missed = (loss * seen).sum((0, 1)) / (seen.sum((0, 1)) + 5)  # +5: a single patch is no reason to jump
        invented = (loss * clean).sum((0, 1)) / clean.sum((0, 1)).clamp(min=1)
        verdict = known_entropy(logits.amax(1) - self.threshold, known.findings)
        return (missed + invented).mean() + verdict


class Voxels(Objective):
    """Which of a case's voxels shows a finding, against all the others.

    A sign of one or two voxels among many that look alike is never found by "masks", since its patch looks
    like any other until something tells the voxel. Here all voxels share one probability, so that it must
    stand out from every one of them.
    """

    needs_masks = True
    of_voxels = True

    def __init__(self, width: int, grid: Grid, findings: int) -> None:
        super().__init__(width, grid, findings)
        self.linear = nn.Linear(width, findings, bias=False)

    def forward(self, features: Float[Tensor, "case voxel channel"], known: Targets) -> Tensor:
        """Return the cross-entropy with the share of the finding that lies in each voxel."""
        log_shares = self.linear(features).log_softmax(dim=1).transpose(1, 2)
        share = known.voxels.float().flatten(2)  # (case, finding, voxel)
        total = share.sum(-1, keepdim=True)
        loss: Tensor = -(share / total.clamp(min=1) * log_shares).sum(-1)
        return loss.sum() / (total > 0).sum().clamp(min=1)


class Contrastive(Objective):
    """Match each volume with its own report among those of the step.

    Source:
        Radford et al. 2021, CLIP, arXiv:2103.00020; Med3D-R1 starts from an encoder trained like that.
    """

    WORDS = 8192

    def __init__(self, width: int, grid: Grid, findings: int) -> None:
        super().__init__(width, grid, findings)
        twice = 2 * width
        self.words = nn.EmbeddingBag(self.WORDS, twice, mode="mean")
        self.sentence = nn.Sequential(nn.Linear(twice, twice), nn.GELU(), nn.Linear(twice, twice))
        self.image_norm = nn.BatchNorm1d(twice)
        self.image = nn.Linear(twice, twice)
        self.log_scale = nn.Parameter(torch.tensor([2.66]))  # CLIP's initial temperature, 0.07

    def forward(self, features: Features, known: Targets) -> Tensor:
        """Return the symmetric cross-entropy."""
        image = self.image(self.image_norm(pooled(features, self.grid)[:, 0]))
        text = self._texts(known.reports, features.device)
        logits = functional.normalize(image, dim=1) @ functional.normalize(text, dim=1).T
        logits = logits * self.log_scale.clamp(max=4.6).exp()
        diagonal = torch.arange(len(logits), device=logits.device)
        return (functional.cross_entropy(logits, diagonal) + functional.cross_entropy(logits.T, diagonal)) / 2

    def _texts(self, reports: Sequence[str], device: torch.device) -> Float[Tensor, "case twice_width"]:
        rows: list[int] = []
        words: list[int] = []
        starts: list[int] = []
        for row, report in enumerate(reports):
            for sentence in re.split(r"(?<=[.;])\s+", report):
                rows.append(row)
                starts.append(len(words))
                found = re.findall(r"[a-z0-9]+", sentence.lower()) or ["-"]
                grams = found + [f"{item} {two}" for item, two in itertools.pairwise(found)]
                words.extend(zlib.crc32(gram.encode()) % self.WORDS for gram in grams)
        bags = self.words(torch.tensor(words, device=device), torch.tensor(starts, device=device))
        sentences = self.sentence(bags)
        texts = torch.zeros(len(reports), sentences.shape[1], device=device, dtype=sentences.dtype)
        return texts.index_add(0, torch.tensor(rows, device=device), sentences)


KINDS: tuple[type[Objective], ...] = (Contrastive, Labels, Zones, Masks, Voxels)
OBJECTIVES = {kind.__name__.lower(): kind for kind in KINDS}


def known_entropy(logits: Tensor, states: Tensor) -> Tensor:
    """Return the mean binary cross-entropy where the state is known (1 or 0, not -1)."""
    known = states >= 0
    truth = states.clamp(min=0).to(logits.dtype)
    loss = functional.binary_cross_entropy_with_logits(logits, truth, reduction="none")
    return (loss * known).sum() / known.sum().clamp(min=1)
