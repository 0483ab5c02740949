"""How far `medsam2` lies from the predictor of SAM 2.1, in logits, with the same weights on the same volume.

python benchmarks/medsam2_parity.py [--device cuda --dtype bfloat16] [--slices 200]
2 cores, about 3 minutes, no download

The predictor's own low-resolution logits were stored once: plugins/evidcore-plugin-medsam2/tests/golden. Its
weights are seeded. The first are so large that attention is a switch and roundings grow: the predictor itself
gives other logits on another processor. The second are calm, and roundings stay small (`medsam2_golden.py`
stored what the predictor gave for them). The volume is a phantom. Both reach `medsam2` as a user's do: a
checkpoint in the layout of SAM 2.1, a volume in a file. Printed is the table of the README. `--slices` also
tells how long a box is followed through so many slices, and on a GPU how much memory that takes.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import torch
from evidcore_plugin_medsam2.pixels import pixels
from evidcore_plugin_medsam2.segmenter import MedSam2
from evidcore_plugin_medsam2.tracking import Target
from evidcore_plugin_medsam2.weights import SIZE_PX, published_config

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "evidcore-plugin-medsam2" / "tests"))

from seeded import seeded_model, write_checkpoint
from stock import StockSession

from evidcore.api import Box, VolumeRef
from evidcore.contracts import BoxPrompt, MaskPrompt

STORED = Path(__file__).parents[1] / "plugins/evidcore-plugin-medsam2/tests/golden"
GOLDEN, CALM = STORED / "lowres_logits_512.npz", STORED / "calm_logits_512.npz"
DEPTH, KEY = 9, 4
X0, Y0, X1, Y1 = 218, 268, 302, 332  # corners of the box, of which the mask lacks the last row and column


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    key_most: float  # of the absolute differences on the prompt's slice
    tracked_most: float  # on the other slices
    tracked_mean: float
    size: float  # mean absolute logit of the predictor on those
    signs: float  # share of equal signs, all slices

    def line(self) -> str:
        """Return it in Markdown."""
        return (
            f"| {self.name} | {self.key_most:.1e} | {self.tracked_most:.1e} | {self.tracked_mean:.1e} "
            f"| {self.size:.2f} | {self.signs:.6f} |"
        )


def phantom(depth: int = DEPTH) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the volume, shape (z, y, x): an ellipsoid in a field of waves."""
    z, y, x = np.meshgrid(np.arange(depth), np.arange(SIZE_PX), np.arange(SIZE_PX), indexing="ij")
    inside = ((x - 260) / 40) ** 2 + ((y - 300) / 30) ** 2 + ((z - KEY) / 3.0) ** 2 < 1
    shown = 60 + 40 * np.sin(x / 37.0) * np.cos(y / 53.0) + 8 * z + 90 * inside
    return np.clip(shown, 0, 255).astype(np.uint8)


def prompts() -> dict[str, BoxPrompt | MaskPrompt]:
    """Return what was asked of the predictor."""
    mask = np.zeros((SIZE_PX, SIZE_PX), dtype=np.bool_)
    mask[Y0:Y1, X0:X1] = True
    box = Box(z=KEY, y0=Y0, y1=Y1 + 1, x0=X0, x1=X1 + 1)
    return {"box": BoxPrompt(box=box), "mask": MaskPrompt(z=KEY, mask=mask)}


def compare(
    name: str, found: np.ndarray[Any, np.dtype[np.float32]], golden: np.ndarray[Any, np.dtype[np.float32]]
) -> Row:
    """Return a line of the table, of logits (slice, y, x)."""
    off = np.abs(found - golden)
    tracked = np.arange(DEPTH) != KEY
    return Row(
        name=name,
        key_most=float(off[KEY].max()),
        tracked_most=float(off[tracked].max()),
        tracked_mean=float(off[tracked].mean()),
        size=float(np.abs(golden[tracked]).mean()),
        signs=float(((found > 0) == (golden > 0)).mean()),
    )


def written(folder: Path, depth: int = DEPTH) -> VolumeRef:
    """Write a volume as a user has it."""
    place = folder / f"phantom-{depth}.npy"
    np.save(place, phantom(depth))
    return VolumeRef(path=str(place), intensity="arbitrary", axes="SPL", spacing_mm_zyx=(3.0, 1.0, 1.0))


def made(folder: Path, dtype: Any, device: str, *, is_calm: bool = False) -> MedSam2:
    """Return the segmenter, with seeded weights in a checkpoint."""
    checkpoint = folder / ("calm.pt" if is_calm else "seeded.pt")
    if not checkpoint.exists():
        write_checkpoint(seeded_model(published_config(), is_calm=is_calm), checkpoint)
    return MedSam2(
        folder, folder, dtype=dtype, file=checkpoint.name, propagate="box", arbitrary="bytes", device=device
    )


def measure(
    folder: Path,
    golden: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]],
    device: str = "cpu",
    dtypes: Sequence[str] = ("float64", "float32"),
) -> list[Row]:
    """Return the table; files go into `folder`."""
    volume = written(folder)
    rows = []
    for dtype in dtypes:
        segmenter = made(folder, dtype, device)
        rows += tracked(segmenter, volume, golden, dtype)
    if device != "cpu":
        return rows
    seen = torch.stack([pixels(plane, SIZE_PX) for plane in phantom()])
    stock = StockSession(segmenter.network().model, seen, (SIZE_PX, SIZE_PX))
    for name, prompt in prompts().items():
        rows.append(compare(f"{name} prompt, transformers in float32", stock.track(prompt), golden[name]))
    return rows


def measure_calm(
    folder: Path, golden: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]], device: str = "cpu"
) -> list[Row]:
    """Return the lines of the calm weights, in float32; files go into `folder`."""
    segmenter = made(folder, "float32", device, is_calm=True)
    return tracked(segmenter, written(folder), golden, "calm weights, float32")


def tracked(
    segmenter: MedSam2,
    volume: VolumeRef,
    golden: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]],
    told: str,
) -> list[Row]:
    """Return a line for each prompt, followed through the whole volume."""
    tracker = segmenter.session(volume).tracker
    rows = []
    for name, prompt in prompts().items():
        (logits,) = tracker.track([Target(prompt=prompt, start=0, stop=DEPTH)])
        rows.append(compare(f"{name} prompt, {told}", logits.float().cpu().numpy(), golden[name]))
    return rows


def follow(folder: Path, dtype: str, device: str, slices: int) -> str:
    """Say how long a box is followed through so many slices, the first visit, and what memory it takes."""
    segmenter, volume = made(folder, dtype, device), written(folder, slices)
    box = Box(z=slices // 2, y0=Y0, y1=Y1 + 1, x0=X0, x1=X1 + 1)
    began_s = time.perf_counter()
    tracker = segmenter.session(volume).tracker
    (logits,) = tracker.track([Target(prompt=BoxPrompt(box=box), start=0, stop=slices)])
    seen = float((logits.float().cpu() > 0).float().mean())  # waits for the device
    took_s = time.perf_counter() - began_s
    said = f"{slices} slices, {dtype} on {device}: {took_s:.1f} s, {seen:.4f} of it marked"
    if device == "cpu":
        return said
    return f"{said}, {torch.cuda.max_memory_allocated() / 1e9:.2f} GB at most"


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--dtype", action="append", choices=("float64", "float32", "bfloat16"))
    options.add_argument("--slices", type=int, default=0)
    given = options.parse_args()
    dtypes = given.dtype or ["float64", "float32"]
    with tempfile.TemporaryDirectory() as name:
        os.environ["EVID_CACHE"] = str(Path(name) / "cache")
        rows = measure(Path(name), np.load(GOLDEN), given.device, dtypes)
        rows += measure_calm(Path(name), np.load(CALM), given.device)
        followed = follow(Path(name), dtypes[-1], given.device, given.slices) if given.slices else ""
    print("| | prompt's slice, most | tracked, most | tracked, mean | mean logit | signs that agree |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows:
        print(row.line())
    if followed:
        print(f"\n{followed}")


if __name__ == "__main__":
    main()
