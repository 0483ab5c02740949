"""G distinct prompts on one volume through `medsam2`, beside a stock Sam2Video session for each.

python benchmarks/propagation.py        1 core, about 15 minutes, no download

Both sides have the same seeded weights of MedSAM2's size and a phantom of 13 slices of 512 x 512, and track
the box itself through all of it, both ways, up to masks on the volume's grid. A stock session keeps the
features of all its slices, and its memory is cleared between the two ways. First visit: nothing of the volume
is known. Later visits: other prompts on a volume that was seen before. Time is CPU time, so that other load
on the machine changes little; on a GPU it is wall clock, and `medsam2` passes its objects together in
bfloat16.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from evidcore_plugin_medsam2.pixels import greys, pixels, to_slice
from evidcore_plugin_medsam2.segmenter import WINDOW_HU, MedSam2
from evidcore_plugin_medsam2.weights import SIZE_PX, published_config
from side_by_side import Figure, figure, parser, ratios, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "evidcore-plugin-medsam2" / "tests"))

from seeded import seeded_model, write_checkpoint
from stock import StockSession

from evidcore.api import Box, VolumeRef
from evidcore.contracts import BoxPrompt, MaskRequest

DEPTH = 13
PROMPTS = 8
FIRST, LATER, SIGNS, GPU = 2.0, 2.5, 0.9999, 4.0  # what is needed
Masks = Sequence[np.ndarray[Any, np.dtype[np.bool_]]]


def main() -> None:
    """Measure, and print a table or JSON."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--prompts", type=int, default=PROMPTS)
    asked = options.parse_args()
    count, depth = (2, 3) if asked.quick else (asked.prompts, DEPTH)
    with tempfile.TemporaryDirectory() as name:
        os.environ["EVID_CACHE"] = str(Path(name) / "cache")
        found = measure(Path(name), count, depth, 1 if asked.quick else asked.rounds)
    tell(__doc__, figures(found), as_json=asked.json, details=found)


def measure(folder: Path, count: int, depth: int, rounds: int) -> dict[str, Any]:
    """Return seconds of each side and visit, agreement and memory; `count` prompts, `depth` slices."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    array = phantom(depth)
    np.save(folder / "phantom.npy", array)
    volume = VolumeRef(path=str(folder / "phantom.npy"), axes="SPL", spacing_mm_zyx=(5.0, 0.8, 0.8))
    model = seeded_model(published_config())
    write_checkpoint(model, folder / "seeded.pt")
    model = model.to(device)
    seen = torch.stack([pixels(greys(plane, *WINDOW_HU), SIZE_PX) for plane in array])

    def visit(segmenter: MedSam2, shift: int) -> Masks:
        asked = [MaskRequest(prompts=(one,)) for one in prompts(count, depth, shift)]
        return segmenter.session(volume).masks(asked)

    def stock(shift: int) -> Masks:
        masks = []
        for prompt in prompts(count, depth, shift):
            session = StockSession(model, seen, (SIZE_PX, SIZE_PX))
            logits = torch.from_numpy(session.track(prompt))
            masks.append(to_slice(logits, (SIZE_PX, SIZE_PX)).numpy())
        return masks

    taken: dict[str, list[float]] = {"stock": [], "first visit": [], "later visit": []}
    peaks: dict[str, list[float]] = {"stock": [], "medsam2": []}
    signs = []
    for turn in range(rounds):
        segmenter = MedSam2(folder, folder, file="seeded.pt", propagate="box", device=device)
        segmenter.network()
        ours, seconds, peak = timed(visit, segmenter, 0, device=device)
        taken["first visit"].append(seconds)
        peaks["medsam2"].append(peak)
        _, seconds, _ = timed(visit, segmenter, 1 + turn, device=device)
        taken["later visit"].append(seconds)
        theirs, seconds, peak = timed(stock, 0, device=device)
        taken["stock"].append(seconds)
        peaks["stock"].append(peak)
        signs.append(float(np.mean([(one == other).mean() for one, other in zip(ours, theirs, strict=True)])))
        dice = float(np.mean([overlap(one, other) for one, other in zip(ours, theirs, strict=True)]))
        kept_mb = segmenter.cache.bytes / 1e6
    return {
        "device": device,
        "prompts": count,
        "slices": depth,
        "seconds": taken,
        "equal_voxels": signs,
        "dice": dice,
        "peak_mb": peaks,
        "kept_mb": kept_mb,
    }


def figures(found: dict[str, Any]) -> list[Figure]:
    """Return what is told."""
    taken, is_gpu = found["seconds"], found["device"] == "cuda"
    at_first, at_later = (GPU, GPU) if is_gpu else (FIRST, LATER)
    first = ratios(taken["stock"], taken["first visit"])
    later = ratios(taken["stock"], taken["later visit"])
    slices = found["prompts"] * found["slices"]
    told = [
        figure(f"first visit of {found['prompts']} prompts", first, "times faster", at_least=at_first),
        figure("later visits", later, "times faster", at_least=at_later),
        figure("medsam2, first visit", [slices / one for one in taken["first visit"]], "slices/s"),
        figure("medsam2, later visits", [slices / one for one in taken["later visit"]], "slices/s"),
        figure("stock sessions", [slices / one for one in taken["stock"]], "slices/s"),
        figure("medsam2, memory at its highest over the start", found["peak_mb"]["medsam2"], "MB"),
        figure("stock sessions, memory at its highest over the start", found["peak_mb"]["stock"], "MB"),
        figure("kept of the volume for later visits", [found["kept_mb"]], "MB"),
    ]
    if is_gpu:  # bfloat16 moves edges
        return [*told, figure("Dice of the masks in bfloat16 and float32", [found["dice"]], "")]
    return [*told, figure("voxels in which both sides agree", found["equal_voxels"], "share", at_least=SIGNS)]


def phantom(depth: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return a volume in HU, shape (z, y, x): ellipses that wander through soft tissue."""
    z, y, x = np.meshgrid(np.arange(depth), np.arange(SIZE_PX), np.arange(SIZE_PX), indexing="ij")
    values = 20 + 50 * np.sin(x / 37.0) * np.cos(y / 53.0) + 4 * z
    for number in range(4):
        inside = ((x - 120 - 80 * number - 3 * z) / 34) ** 2 + ((y - 150 - 60 * number) / 26) ** 2 < 1
        values = values + 90 * inside
    return values.astype(np.int16)


def prompts(count: int, depth: int, shift: int) -> list[BoxPrompt]:
    """Return distinct boxes on several slices; another `shift` gives others."""
    boxes = []
    for number in range(count):
        z, place = number % depth, number % 4
        x0, y0 = 86 + 83 * place + 2 * shift + number // 4, 120 + 60 * place + shift
        boxes.append(Box(z=z, y0=y0, y1=y0 + 58, x0=x0, x1=x0 + 72))
    return [BoxPrompt(box=box) for box in boxes]


def overlap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the Dice of two masks; 1 where both are empty."""
    both = int(one.sum()) + int(other.sum())
    return 2 * int((one & other).sum()) / both if both else 1.0


def timed(work: Callable[..., Masks], *given: Any, device: str) -> tuple[Masks, float, float]:
    """Return what `work` gives, its seconds, and by how many MB memory rose over the start."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before_mb, start_s = torch.cuda.memory_allocated() / 1e6, time.perf_counter()
        masks = work(*given)
        torch.cuda.synchronize()
        return masks, time.perf_counter() - start_s, torch.cuda.max_memory_allocated() / 1e6 - before_mb
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    before_mb, start_s = resident_mb("VmRSS"), time.process_time()
    masks = work(*given)
    return masks, time.process_time() - start_s, resident_mb("VmHWM") - before_mb


def resident_mb(line: str) -> float:
    """Return the process's memory, now (VmRSS) or at its highest (VmHWM)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (told,) = (one.split()[1] for one in status if one.startswith(line))
    return int(told) / 1000


if __name__ == "__main__":
    main()
