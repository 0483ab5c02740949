"""Does an encoder find the lesion in the overview of a slice, where it is one pixel small?

OMP_NUM_THREADS=1 python benchmarks/overview_encoder.py            8 minutes on a CPU core, 3 GB of cache
python benchmarks/overview_encoder.py --keep docs/results/overview_encoder.txt

Encoders are trained on overviews of phantom-slices, equally long, by what `fit` can ask for. Then they are
frozen, and a linear probe of single patches, fitted on training patients, says which of a test patient's 64
patches holds the lesion. The rule beside them does not look, and takes the patch in which most training
lesions lay.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from evidcore_plugin_encoders.encoder_fit import EncoderFit, encode
from evidcore_plugin_encoders.encoder_targets import Targets, read_targets
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_plugin_phantoms.slices import PhantomSlices
from torch.nn import functional
from zoom_bounds import table

from evidcore.api import Case
from evidcore.cache import cache_folder
from evidcore.contracts import FitData

ENCODERS: dict[str, tuple[int, Literal["masks", "voxels"]]] = {  # channels at full resolution, what teaches
    "halved at once, taught by patch": (0, "masks"),
    "full resolution first, taught by patch": (16, "masks"),
    "full resolution first, taught by voxel": (16, "voxels"),
}
CASES_PER_STEP = 32


def encoder_with(channels: int, seed: int) -> ViT3D:
    """Return an untrained encoder of overviews."""
    torch.manual_seed(seed)
    return ViT3D(
        size_zyx=(1, 64, 64),
        patch_zyx=(1, 8, 8),
        windows=((-160.0, 240.0), (0.0, 150.0)),
        width=144,
        fine_channels=channels,
    )


def fit(
    encoder: ViT3D, taught_by: Literal["masks", "voxels"], cases: Sequence[Case], steps: int, seed: int
) -> None:
    """Train an encoder on the slices of some cases."""
    options = EncoderFit(
        steps=steps,
        cases_per_step=CASES_PER_STEP,
        learning_rate=4e-3,
        supervision=(taught_by,),
        shift_voxels=4,
    )
    folder = Path(tempfile.mkdtemp(prefix="overview-encoder-"))
    encoder.fit(FitData(cases, [], folder, seed, lambda figures: None), options=options)


def lesion_patch(known: Targets) -> torch.Tensor:
    """Return for each case the patch that holds most of its lesion."""
    return known.patches.float().sum(1).argmax(1)


def found(encoder: ViT3D, learn: Targets, judge: Targets, seed: int) -> int:
    """Return in how many cases a linear probe of frozen patches finds the lesion's patch."""
    seen, unseen = (
        torch.cat([features for _, features in encode(encoder, known, len(known.reports))])
        for known in (learn, judge)
    )
    mean, spread = seen.mean((0, 1)), seen.std((0, 1)) + 1e-6
    seen, unseen, wanted = (seen - mean) / spread, (unseen - mean) / spread, lesion_patch(learn)
    torch.manual_seed(seed)
    probe = torch.nn.Linear(seen.shape[-1], 1)
    optimizer = torch.optim.AdamW(probe.parameters(), 1e-3, weight_decay=1e-2)
    for _ in range(800):
        rows = torch.randint(len(seen), (64,))
        loss = functional.cross_entropy(probe(seen[rows])[..., 0], wanted[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return int((probe(unseen)[..., 0].argmax(1) == lesion_patch(judge)).sum())


def main() -> None:
    """Train, probe and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=2017)
    parser.add_argument("--train", type=int, default=3000, help="patients to fit on")
    parser.add_argument("--test", type=int, default=300, help="patients to ask about")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--keep", type=Path, help="a file to be written")
    asked = parser.parse_args()
    dataset = PhantomSlices(
        cache_folder(), seed=asked.seed, train_cases=asked.train, validation_cases=0, test_cases=asked.test
    )
    train, test = list(dataset.cases("train")), list(dataset.cases("test"))
    learn, judge = (
        read_targets(cases, encoder_with(0, asked.seed), dataset.findings, masks=True)
        for cases in (train, test)
    )
    usual = int((lesion_patch(judge) == lesion_patch(learn).mode().values).sum())
    rows = [("the patch that most lesions lie in", usual, len(test))]
    for name, (channels, taught_by) in ENCODERS.items():
        began = time.perf_counter()
        encoder = encoder_with(channels, asked.seed)
        fit(encoder, taught_by, train, asked.steps, asked.seed)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        rows.append((name, found(encoder, learn, judge, asked.seed), len(test)))
    lines = [
        f"phantom numbers: phantom-slices, seed {asked.seed}, {asked.train} patients to fit on, {asked.test} "
        f"to ask about, {asked.steps} steps of {CASES_PER_STEP}; the lesion's patch found among 64, in %, "
        "95 % intervals by Wilson",
        "",
        *table(rows),
    ]
    print("\n".join(lines))
    if asked.keep:
        asked.keep.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
