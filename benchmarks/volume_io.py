"""Read, resample, and slices from the cache, beside MONAI and nibabel.

python benchmarks/volume_io.py        2 cores, about 2 minutes, no download

On the 16 sarcoma CTs of EVID_SHARED_DATA (or ../shared/data); where they are absent, on generated volumes,
and the output says so. Both sides run on one thread in turn; a ratio is the other's time over ours for the
same volume in the same round. Time is CPU time, so that other load on the machine changes little, but for a
fresh process and for `evid data prepare`, where it is wall clock. Files come from the system's file cache.
"""

import argparse
import gzip
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import nibabel
import numpy as np
from side_by_side import Figure, parser, tell

from evidcore.api import VolumeRef, read
from evidcore.data import read_geometry, volume_cache

SPACING_MM_ZYX = (
    1.5,
    0.75,
    0.75,
)  # finer than the scans: linear interpolation without anti-aliasing on both sides
BIG_ZYX = (160, 512, 512)  # for slices of a usual size
ROUNDS = 3
COPIES = 16  # of the set, for `evid data prepare`: 256 cases


def main() -> None:
    """Measure, and print a table or JSON."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--one", nargs=3, metavar=("SIDE", "JOB", "PATH"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        one(*asked.one)
        return
    with tempfile.TemporaryDirectory() as name:
        os.environ["EVID_CACHE"] = str(Path(name) / "cache")
        result = measure(Path(name), 1 if asked.quick else asked.rounds)
    tell(__doc__, figures(result), as_json=asked.json, details=result)


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Return all figures."""
    paths, origin = volumes(folder)
    big = folder / "big.nii.gz"
    write(big, BIG_ZYX, seed=1)
    return {
        "data": origin,
        "volumes": len(paths),
        "target_spacing_mm_zyx": SPACING_MM_ZYX,
        "read_and_resample": read_and_resample(paths, rounds),
        "slice_of_the_scans": slices(paths, rounds),
        "slice_512": slices([big], 2 * rounds),
        "slice_512_in_a_fresh_process": {
            side: fresh(side, "slice", big)["seconds"] * 1e3 for side in ("ours", "nibabel")
        },
        "peak_memory_mb": {
            job: {side: fresh(side, job, big)["peak_mb"] for side in sides}
            for job, sides in {
                "import": ("ours", "monai"),
                "resample": ("ours", "monai"),
                "slice": ("ours", "monai", "nibabel"),
            }.items()
        },
        "prepare": prepare_in_processes(folder, paths),
    }  # fmt: skip


def volumes(folder: Path) -> tuple[list[Path], str]:
    """Return the scans, or as many generated volumes of their size."""
    shared = Path(os.environ.get("EVID_SHARED_DATA", Path(__file__).parents[1] / "../shared/data"))
    scans = sorted(shared.glob("ibsi_validation/*/CT_image.nii.gz"))
    if scans:
        return scans, "sarcoma CT (ibsi_validation)"
    made = [folder / f"generated-{seed}.nii.gz" for seed in range(16)]
    for seed, path in enumerate(made):
        write(path, (60, 160, 170), seed)
    return made, "generated volumes, not scans"


def write(path: Path, shape_zyx: tuple[int, int, int], seed: int) -> None:
    """Write a smooth body with noise, int16, 3.27 x 0.98 x 0.98 mm, as a CT compresses."""
    z, y, x = np.ogrid[tuple(slice(-1, 1, count * 1j) for count in shape_zyx)]
    hu = np.where(y**2 + x**2 < 0.8, 40 + 300 * np.sin(4 * z + 5 * y + 6 * x), -1000.0)
    hu += np.random.default_rng(seed).normal(0, 12, shape_zyx) * (hu > -1000)
    image = nibabel.Nifti1Image(
        hu.round().astype(np.int16).transpose(2, 1, 0), np.diag([-0.98, -0.98, 3.27, 1])
    )
    nibabel.save(image, path)


def grid(path: Path) -> tuple[tuple[int, int, int], tuple[float, float, float]]:
    """Return the size that SPACING_MM_ZYX gives, and the spacing that fills the field of view with it."""
    geometry = read_geometry(VolumeRef(path=str(path)))
    held = [count * step for count, step in zip(geometry.shape_zyx, geometry.spacing_mm_zyx, strict=True)]
    z, y, x = (max(1, round(size / step)) for size, step in zip(held, SPACING_MM_ZYX, strict=True))
    return (z, y, x), (held[0] / z, held[1] / y, held[2] / x)


def ours(path: Path) -> Any:
    """Read and resample with evidcore; (z, y, x)."""
    import torch

    from evidcore.data.preparation import resize

    array = read(VolumeRef(path=str(path))).array
    return resize(torch.from_numpy(array.astype(np.float32)), grid(path)[0])


def monai(path: Path) -> Any:
    """Read and resample with MONAI onto the same grid; (x, y, z)."""
    from monai.transforms import Compose, EnsureChannelFirst, LoadImage, Orientation, Spacing

    z, y, x = grid(path)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on labels of orientation, which differ between versions
        spacing = Spacing(pixdim=(x, y, z), mode="bilinear", scale_extent=True, align_corners=False)
        return Compose([LoadImage(image_only=True), EnsureChannelFirst(), Orientation("LPS"), spacing])(path)[
            0
        ]


def read_and_resample(paths: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Measure both on each volume in turn, and compare what they give."""
    import torch

    torch.set_num_threads(1)
    monai(paths[0])
    ours(paths[0])
    apart = []
    for path in paths:
        gap = np.abs(ours(path).numpy() - np.asarray(monai(path)).transpose(2, 1, 0))
        apart.append((float(gap.max()), float(gap.mean())))
    result = beside({"ours": ours, "monai": monai}, paths, rounds)
    result["largest_difference_hu"] = max(most for most, _ in apart)
    result["mean_difference_hu"] = statistics.fmean(mean for _, mean in apart)
    return result


def slices(paths: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Measure the middle axial slice: from our cache, by nibabel's proxy, by MONAI's reader."""
    for path in paths:
        volume_cache.get_or_put(VolumeRef(path=str(path)))
    for path in paths:
        expected = read(VolumeRef(path=str(path))).array
        assert np.array_equal(cached_slice(path), expected[len(expected) // 2])
    return beside({"ours": cached_slice, "nibabel": proxy_slice, "monai": loaded_slice}, paths, rounds)


def cached_slice(path: Path) -> Any:
    """Return a slice from the cache."""
    held = volume_cache.get_or_put(VolumeRef(path=str(path)))
    return held.slice(held.geometry.shape_zyx[0] // 2).copy()


def proxy_slice(path: Path) -> Any:
    """Return a slice by nibabel's array proxy."""
    image = nibabel.load(path)
    return np.asarray(image.dataobj[..., image.shape[2] // 2])


def loaded_slice(path: Path) -> Any:
    """Return a slice of what MONAI loads."""
    from monai.transforms import LoadImage

    image = LoadImage(image_only=True)(path)
    return np.asarray(image[..., image.shape[2] // 2])


def beside(sides: dict[str, Callable[[Path], Any]], paths: Sequence[Path], rounds: int) -> dict[str, Any]:
    """Run the sides in turn on each volume; return medians in CPU ms, and ratios to ours with quartiles."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds):
        for path in paths:
            order = list(sides) if turn % 2 else list(sides)[::-1]
            for side in order:
                began_s = time.process_time()
                sides[side](path)
                times[side].append((time.process_time() - began_s) * 1e3)
    result: dict[str, Any] = {f"{side}_ms": round(statistics.median(some), 2) for side, some in times.items()}
    for side in sides:
        if side != "ours":
            ratios = [other / own for other, own in zip(times[side], times["ours"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            result[f"{side}_over_ours"] = {
                "median": round(middle, 2),
                "quartiles": [round(low, 2), round(high, 2)],
            }
    return result


def fresh(side: str, job: str, path: Path) -> dict[str, float]:
    """Measure one job in a process of its own."""
    command = [sys.executable, __file__, "--one", side, job, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(said.splitlines()[-1]))


def one(side: str, job: str, path: str) -> None:
    """Do one job after the imports, and print its time and the peak memory of the process."""
    slicing: dict[str, Callable[[Path], Any]] = {
        "ours": cached_slice, "nibabel": proxy_slice, "monai": loaded_slice,
    }  # fmt: skip
    jobs: dict[str, dict[str, Callable[[Path], Any]]] = {
        "import": {"ours": lambda _: None, "monai": lambda _: None},
        "resample": {"ours": ours, "monai": monai},
        "slice": slicing,
    }
    if side == "monai":
        importlib.import_module("monai.transforms")
    elif job != "slice":
        importlib.import_module("evidcore.data.preparation")
    began = time.perf_counter()
    jobs[job][side](Path(path))
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text(
        encoding="utf-8"
    )  # a child's ru_maxrss starts at its parent's
    peak_kb = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps({"seconds": seconds, "peak_mb": round(peak_kb / 1024)}))


def prepare_in_processes(folder: Path, paths: Sequence[Path]) -> dict[str, Any]:
    """Measure `evid data prepare` with 1 and 2 processes of one thread each, on copies of the set.

    Seconds as the command counts them: with building the recipe's parts and starting its worker processes.
    """
    place = folder / "set"
    place.mkdir()
    rows = ["id,volume,patient,split"]
    for copy in range(COPIES):  # other bytes, so that each is a volume of its own
        for number, path in enumerate(paths):
            name = f"{copy}-{number}.nii.gz"
            (place / name).write_bytes(path.read_bytes() + copy * gzip.compress(b""))
            rows.append(f"{copy}-{number},{name},p{copy}-{number},train")
    (place / "cases.csv").write_text("\n".join(rows) + "\n")
    (place / "set.toml").write_text(RECIPE)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(2):
        for count in (1, 2) if turn else (2, 1):
            env = {**os.environ, "OMP_NUM_THREADS": "1", "EVID_CACHE": str(folder / f"cache-{turn}-{count}")}
            command = [sys.executable, "-m", "evidcore", "data", "prepare", "set.toml", "--json"]
            done = subprocess.run(
                [*command, "--processes", str(count)],
                cwd=place,
                env=env,
                capture_output=True,
                text=True,
                check=True,
            )
            result = json.loads(done.stdout)
            assert result["outcomes"]["done"] == COPIES * len(paths), result
            seconds[count].append(result["seconds"])
    best = {count: min(some) for count, some in seconds.items()}
    return {
        "cases": COPIES * len(paths),
        "seconds_1_process": [round(item, 2) for item in seconds[1]],
        "seconds_2_processes": [round(item, 2) for item in seconds[2]],
        "speed_up": round(best[1] / best[2], 2),
        "cores": len(os.sched_getaffinity(0)),
    }


def figures(found: dict[str, Any]) -> list[Figure]:
    """Return what was found as lines."""
    told = []
    for title in ("read_and_resample", "slice_of_the_scans", "slice_512"):
        row, name = found[title], title.replace("_", " ")
        for side in ("monai", "nibabel"):
            if f"{side}_ms" in row:
                ratio = row[f"{side}_over_ours"]
                low, high = ratio["quartiles"]
                told.append(
                    Figure(name=f"{name}: {side}", value=ratio["median"], low=low, high=high, unit="x ours")
                )
        told.append(Figure(name=f"{name}: ours", value=row["ours_ms"], unit="CPU ms"))
    row = found["read_and_resample"]
    told.append(Figure(name="largest difference to monai", value=row["largest_difference_hu"], unit="HU"))
    for side, taken_ms in found["slice_512_in_a_fresh_process"].items():
        told.append(Figure(name=f"slice 512 in a fresh process: {side}", value=taken_ms, unit="ms"))
    for job, sides in found["peak_memory_mb"].items():
        told += [
            Figure(name=f"peak memory, {job}: {side}", value=peak, unit="MB") for side, peak in sides.items()
        ]
    gain = found["prepare"]["speed_up"]
    told.append(Figure(name="evid data prepare, 2 processes", value=gain, unit="x 1 process"))
    return told


RECIPE = """\
schema = 1
name = "set"
[dataset.scans]
use = "folder"
path = "."
[model]
language = { use = "tiny" }
view = { use = "volume" }
encoder = { use = "vit3d" }
bridge = { use = "projection" }
[[stage]]
kind = "sft"
train = ["bridge", "language"]
steps = 1
learning_rate = 1e-3
data = [{ dataset = "scans", task = "report" }]
"""


if __name__ == "__main__":
    main()
