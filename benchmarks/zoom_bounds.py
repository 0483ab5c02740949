"""What is a zoom worth on phantom-slices? Bounds by scripted boxes, and by the best reader of averages.

OMP_NUM_THREADS=1 python benchmarks/zoom_bounds.py            15 minutes on a CPU core, 5 GB of cache
python benchmarks/zoom_bounds.py --keep docs/results/zoom_bounds.txt

A classifier is fitted on crops of 64 x 64 pixels that hold the lesions of training patients, after crops of
24 x 24, on which it finds out sooner what to look for. A second one is fitted on their overviews, whole
slices reduced to 64 x 64, and a third on what these show at the lesion's known place.
Test patients' questions are then answered from the box that holds the lesion, from the box in which a
detector finds it in the overview, from any box, and without a box. Everything is shown as the core shows it.

No classifier is known to be the best. So lesions are also drawn alone, on even ground whose density is known,
and averaged over 8 x 8 pixels with the noise that is left: with as many drawings of each pattern to compare
them with, Bayes' rule tells the pattern as well as anything can that does not know the place to a pixel.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from evidcore_plugin_phantoms.slices import (
    BLUR_PX,
    CONTRAST_HU,
    NOISE_HU,
    PATTERNS,
    SIDE_PX,
    SIZE_PX,
    PhantomSlices,
    shares,
)
from scipy import ndimage, stats
from torch import Tensor, nn
from torch.nn import functional

from evidcore.api import Case, Crop, EncoderInput, prepare, read, read_mask
from evidcore.cache import cache_folder
from evidcore.case import Split

SHOWN_PX = 64  # of an overview and of a crop, both ways
REDUCED = SIZE_PX // SHOWN_PX
KNOWN_PX = 5  # pixels of the overview around the lesion's, both ways
FIRST_PX, FIRST_JITTER_PX = 24, 6  # of the crops that are learnt first, and how far off they may be
JITTER_PX = 20  # how far a crop's middle may be from the lesion's
HELD_PX = SHOWN_PX + 2 * JITTER_PX  # kept of a slice around its lesion, to cut crops from
SPEC = EncoderInput(
    size_zyx=(1, SHOWN_PX, SHOWN_PX), spacing_mm_zyx=None, windows=((-160.0, 240.0),), any_depth=True
)
Corner = tuple[int, int]  # y, x of a box of 64 x 64 pixels


def wilson(right: int, asked: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, by Wilson."""
    result = stats.binomtest(right, asked).proportion_ci(method="wilson")
    return float(result.low), float(result.high)


class Slices:
    """The patients of a split: where each lesion lies, its pattern, and what may be shown of the slice."""

    def __init__(self, dataset: PhantomSlices, split: Split) -> None:
        self.cases = list(dataset.cases(split))
        self.centres = [_centre(case) for case in self.cases]
        self.pattern = torch.tensor([dataset.findings.index(case.present()[0]) for case in self.cases])
        self.overview = torch.stack([_shown(case, None) for case in self.cases])

    def crops(self, corners: Sequence[Corner], side_px: int = SHOWN_PX) -> Tensor:
        """Return a crop of each patient at full resolution, shape (case, channel, y, x)."""
        return torch.stack([_shown(case, at, side_px) for case, at in zip(self.cases, corners, strict=True)])

    def at_known_place(self) -> Tensor:
        """Return the overview around each lesion, shape (case, channel, y, x)."""
        half = KNOWN_PX // 2
        wide = functional.pad(self.overview, (half,) * 4)
        cells = [(y // REDUCED, x // REDUCED) for y, x in self.centres]
        parts = [
            each[:, y : y + KNOWN_PX, x : x + KNOWN_PX] for each, (y, x) in zip(wide, cells, strict=True)
        ]
        return functional.interpolate(torch.stack(parts), scale_factor=4.0, mode="nearest")


def _shown(case: Case, corner: Corner | None, side_px: int = SIZE_PX) -> Tensor:
    """Return a crop at full resolution, or the whole slice reduced, shape (channel, y, x)."""
    y, x = corner or (0, 0)
    crop = Crop(volume=case.volumes[0], box_zyx=(0, 1, y, y + side_px, x, x + side_px))
    shown_px = SHOWN_PX if corner is None else side_px
    return prepare(crop, SPEC, (1, shown_px, shown_px))[:, 0]


def _centre(case: Case) -> Corner:
    mask = read_mask(case.masks[case.present()[0]], like=read(case.volumes[0]))
    y, x = (round(float(at.mean())) for at in np.nonzero(mask[0]))
    return y, x


def around(centre: Corner, side_px: int = SHOWN_PX) -> Corner:
    """Return the box around a point, moved into the slice where it must be."""
    y, x = (int(np.clip(at - side_px // 2, 0, SIZE_PX - side_px)) for at in centre)
    return y, x


def jittered(centres: Sequence[Corner], rng: np.random.Generator) -> list[Corner]:
    """Return boxes that hold a lesion each, anywhere but at the edge."""
    off = rng.integers(-JITTER_PX, JITTER_PX + 1, (len(centres), 2))
    return [around((y + int(dy), x + int(dx))) for (y, x), (dy, dx) in zip(centres, off, strict=True)]


def layer(channels: int, wanted: int, side: int = 3) -> Sequence[nn.Module]:
    """Return a convolution, its normalisation and its nonlinearity."""
    conv = nn.Conv2d(channels, wanted, side, padding=side // 2, bias=False)
    return conv, nn.BatchNorm2d(wanted), nn.ReLU()


def classifier() -> nn.Module:
    """Return a small network that tells the pattern wherever it lies in a picture of any size."""
    return nn.Sequential(
        *layer(1, 16, 5), *layer(16, 24), nn.MaxPool2d(2), *layer(24, 32), *layer(32, 48),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(48, len(PATTERNS)),
    )  # fmt: skip


def detector() -> nn.Module:
    """Return a small network that says of each pixel of an overview how likely the lesion lies there."""
    return nn.Sequential(
        *layer(1, 12, 5), *layer(12, 16), *layer(16, 16), nn.Conv2d(16, 1, 3, padding=1), nn.Flatten()
    )


def cutting(
    held: Tensor, side_px: int, jitter_px: int, rng: np.random.Generator
) -> Callable[[Tensor], Tensor]:
    """Return what cuts crops out of what is held, each turned, mirrored and off the middle at random."""

    def cut(part: Tensor) -> Tensor:
        crops = []
        for index in part.tolist():
            y, x = (HELD_PX - side_px) // 2 + rng.integers(-jitter_px, jitter_px + 1, 2)
            crop = torch.rot90(held[index, :, y : y + side_px, x : x + side_px], int(rng.integers(4)), (1, 2))
            crops.append(crop.flip(1) if rng.random() < 0.5 else crop)
        return torch.stack(crops)

    return cut


def fitted(net: nn.Module, images: Callable[[Tensor], Tensor], labels: Tensor, epochs: int) -> nn.Module:
    """Fit a network by cross-entropy, 32 images a step; `images` gives those of some indices."""
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3)
    steps = epochs * math.ceil(len(labels) / 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    net.train()
    for _ in range(epochs):
        for part in torch.randperm(len(labels)).split(32):
            loss = functional.cross_entropy(net(images(part)), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


@torch.no_grad()
def chosen(net: nn.Module, images: Tensor) -> Tensor:
    """Return the likeliest label of each image."""
    return torch.cat([net(part).argmax(1) for part in images.split(256)])


def averages(
    pattern: str, radius_px: float, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what a lesion alone leaves in 5 x 5 averages over 8 x 8 pixels, in HU, without noise."""
    centre = rng.uniform(-REDUCED / 2, REDUCED / 2, 2)
    whole = np.floor(centre + 0.5).astype(int)
    offset, angle = centre - whole, rng.uniform(0, 2 * np.pi)
    drawn = shares(pattern, radius_px, (offset[0], offset[1]), angle)
    plane = np.zeros((KNOWN_PX * REDUCED,) * 2)
    y, x = plane.shape[0] // 2 + whole - SIDE_PX // 2
    plane[y : y + SIDE_PX, x : x + SIDE_PX] = drawn
    weight = rng.uniform(*CONTRAST_HU) * np.pi * radius_px**2
    blurred = weight * ndimage.gaussian_filter(plane, BLUR_PX)
    return np.asarray(blurred.reshape(KNOWN_PX, REDUCED, KNOWN_PX, REDUCED).mean(axis=(1, 3)).reshape(-1))


def best_reader(radius_px: tuple[float, float], known: int, asked: int, seed: int) -> int:
    """Return how often Bayes' rule is right about `asked` lesions of each pattern, `known` of each drawn."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> list[np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
        return [
            np.stack([averages(pattern, rng.uniform(*radius_px), rng) for _ in range(count)])
            for pattern in PATTERNS
        ]

    left_hu = NOISE_HU / REDUCED
    templates, right = draw(known), 0
    for truth, clean in enumerate(draw(asked)):
        seen = clean + rng.normal(0, left_hu, clean.shape)
        likely = [
            np.logaddexp.reduce((seen @ held.T - np.square(held).sum(1) / 2) / left_hu**2, axis=1)
            for held in templates
        ]
        right += int((np.argmax(likely, axis=0) == truth).sum())
    return right


def measure(seed: int, train: int, test: int, say: Callable[[str], None]) -> list[tuple[str, int, int]]:
    """Fit, ask and return rows: what was shown, right answers, questions."""
    dataset = PhantomSlices(cache_folder(), train_cases=train, validation_cases=0, test_cases=test, seed=seed)
    learnt, asked, rng = Slices(dataset, "train"), Slices(dataset, "test"), np.random.default_rng(seed)
    say("read")
    held = learnt.crops([around(centre, HELD_PX) for centre in learnt.centres], HELD_PX)
    zoomed = fitted(classifier(), cutting(held, FIRST_PX, FIRST_JITTER_PX, rng), learnt.pattern, epochs=14)
    zoomed = fitted(zoomed, cutting(held, SHOWN_PX, JITTER_PX, rng), learnt.pattern, epochs=8)
    say("fitted on crops")
    overview = fitted(classifier(), learnt.overview.__getitem__, learnt.pattern, epochs=8)
    known = fitted(classifier(), learnt.at_known_place().__getitem__, learnt.pattern, epochs=20)
    say("fitted on overviews")
    cells = torch.tensor([y // REDUCED * SHOWN_PX + x // REDUCED for y, x in learnt.centres])
    finder = fitted(detector(), learnt.overview.__getitem__, cells, epochs=12)
    say("detector fitted")
    places = [divmod(int(cell), SHOWN_PX) for cell in chosen(finder, asked.overview)]
    result = [around((y * REDUCED + REDUCED // 2, x * REDUCED + REDUCED // 2)) for y, x in places]
    anywhere = [(int(y), int(x)) for y, x in rng.integers(0, SIZE_PX - SHOWN_PX + 1, (test, 2))]

    def row(name: str, said: Tensor) -> tuple[str, int, int]:
        return name, int((said == asked.pattern).sum()), test

    def holds(corner: Corner, centre: Corner) -> bool:
        return all(edge + 5 <= at < edge + SHOWN_PX - 5 for edge, at in zip(corner, centre, strict=True))

    def holding(name: str, corners: Sequence[Corner]) -> tuple[str, int, int]:
        return name, sum(map(holds, corners, asked.centres)), test

    return [
        row("the lesion's box", chosen(zoomed, asked.crops(jittered(asked.centres, rng)))),
        row("the box that a detector finds in the overview", chosen(zoomed, asked.crops(result))),
        row("any box", chosen(zoomed, asked.crops(anywhere))),
        row("no box: the overview, fitted on crops", chosen(zoomed, asked.overview)),
        row("no box: the overview, fitted on overviews", chosen(overview, asked.overview)),
        row("no box: the overview at the lesion's known place", chosen(known, asked.at_known_place())),
        holding("  boxes of the detector that hold the lesion", result),
        holding("  any boxes that hold the lesion", anywhere),
    ]


def table(rows: Sequence[tuple[str, int, int]]) -> list[str]:
    """Return rows as lines, in %, with intervals."""
    lines = []
    for name, right, asked in rows:
        low, high = wilson(right, asked)
        lines.append(f"{name:52}{100 * right / asked:6.1f}   {100 * low:.1f} to {100 * high:.1f}")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=17, help="of the population and of the fits")
    parser.add_argument("--train", type=int, default=1600, help="patients")
    parser.add_argument("--test", type=int, default=600, help="patients, a question each")
    parser.add_argument(
        "--drawn", type=int, default=6000, help="lesions of each pattern that the best reader knows"
    )
    parser.add_argument("--keep", type=Path, help="a file to be")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    began = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {what}", flush=True)

    lines = [
        f"phantom numbers: phantom-slices, seed {asked.seed}, {asked.train} patients to fit on, "
        f"{asked.test} questions; right answers in %, 95 % intervals by Wilson; by chance 25",
        "",
        *table(measure(asked.seed, asked.train, asked.test, say)),
        "",
        f"the best reader of averages over {REDUCED} x {REDUCED} pixels, {asked.drawn} drawings of each "
        f"pattern known",
    ]
    count = asked.drawn // 4
    for least, most in ((4.0, 5.0), (4.0, 4.0), (5.0, 5.0), (6.0, 6.0), (8.0, 8.0)):
        right = best_reader((least, most), asked.drawn, count, asked.seed)
        lines += table([(f"radius {least:g} to {most:g} pixels", right, count * len(PATTERNS))])
        say(lines[-1])
    print("\n".join(lines))
    if asked.keep:
        asked.keep.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
