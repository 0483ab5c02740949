"""Volumes a second that `evid data check` looks at: 200 x 200 x 100 voxels, gzip-compressed NIfTI.

python benchmarks/data_check.py [--volumes 24] [--json]        2 cores, about a minute, no download

Every volume has a body, lungs and texture of its own; a tenth of them are copies of others, cropped and with
noise. Prints what looking at one volume costs in CPU time, part by part, and volumes a second with one
process and with two. The latter are wall clock: run it on a quiet machine.
"""

import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from evidcore_plugin_doctor.anatomy import find_body, misplaced
from evidcore_plugin_doctor.check import check, list_cases
from evidcore_plugin_doctor.coarse import coarsen
from evidcore_plugin_doctor.fault import Fault
from evidcore_plugin_doctor.intensity import empty_parts, not_hounsfield
from evidcore_plugin_doctor.likeness import fingerprint
from evidcore_plugin_tables.target import open_folder
from scipy import ndimage
from side_by_side import Figure, figure, parser, tell

from evidcore.api import VolumeRef, read

SHAPE, SPACING_MM = (100, 200, 200), (3.5, 1.9, 1.9)  # z, y, x
COPIES = 0.1
NEEDED = 2.0  # volumes a second on 2 cores


def draw(seed: int) -> np.ndarray[Any, Any]:
    """Return a body with lungs and texture, in HU."""
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(
        *((np.arange(n) - n / 2) * step for n, step in zip(SHAPE, SPACING_MM, strict=True)), indexing="ij"
    )
    rough = rng.normal(size=tuple(n // 8 for n in SHAPE))
    waves = ndimage.zoom(rough, [n / m for n, m in zip(SHAPE, rough.shape, strict=True)], order=1)
    deep, wide = rng.uniform(100, 115), rng.uniform(140, 160)
    inside = (y / deep) ** 2 + (x / wide) ** 2 < 1
    hu = np.where(inside, 30 + 60 * waves, -1000)
    for side in (-1, 1):
        lung = (z / 110) ** 2 + (y / 75) ** 2 + ((x - side * rng.uniform(68, 75)) / 50) ** 2 < 1
        hu[lung] = (-840 + 60 * waves)[lung]
    hu[((y - deep + 35) / 20) ** 2 + (x / 20) ** 2 < 1] = 400
    return np.asarray(np.clip(hu + rng.normal(0, 15, SHAPE), -1024, 3071).astype(np.int16))


def write(folder: Path, volumes: int) -> None:
    """Write the data set."""
    affine = np.diag([-SPACING_MM[2], -SPACING_MM[1], SPACING_MM[0], 1.0])
    originals = volumes - int(COPIES * volumes)
    with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split"])
        for number in range(volumes):
            array = draw(number % originals)
            if number >= originals:
                noise = np.random.default_rng(number).normal(0, 10, array.shape)
                array = (array + noise).astype(np.int16)[6:, 10:-10, 5:]
            nibabel.save(
                nibabel.Nifti1Image(array.transpose(2, 1, 0).copy(), affine), folder / f"{number}.nii.gz"
            )
            table.writerow([number, f"{number}.nii.gz", number, "test" if number % 3 == 0 else "train"])


def parts(folder: Path, volumes: int) -> dict[str, float]:
    """Return the CPU milliseconds of each part of looking at a volume: median over volumes."""
    taken: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = call()
        taken.setdefault(name, []).append(1000 * (time.process_time() - began))
        return result

    for number in range(min(volumes, 8)):
        ref = VolumeRef(path=str(folder / f"{number}.nii.gz"))
        volume = timed("read", lambda ref=ref: read(ref))
        timed("values", lambda volume=volume: (not_hounsfield(volume), list(empty_parts(volume))))
        coarse = timed("coarse grid", lambda volume=volume: coarsen(volume))
        timed("anatomy", lambda coarse=coarse: misplaced(coarse, find_body(coarse)))
        timed("fingerprint", lambda coarse=coarse: fingerprint(coarse, "hu"))
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--volumes", type=int, default=24)
    given = options.parse_args()
    count = 4 if given.quick else given.volumes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, count)
        result: dict[str, Any] = {"volumes": count, "shape_zyx": SHAPE, "cpu_ms": parts(folder, count)}
        for processes in (1, 2):
            faults: list[Fault] = []
            dataset = open_folder(folder, "hu")
            summary = check(
                *list_cases(dataset, "made"),
                processes=processes,
                on_fault=faults.append,
                progress=lambda n, total: None,
            )
            pace = summary.volumes / summary.seconds
            result[f"volumes_per_s_{processes}"] = pace
            result["faults"] = sorted({fault.check for fault in faults})
            result["copies_found"] = sum(fault.check == "near-duplicate" for fault in faults)
    result["copies_made"] = int(COPIES * count)
    figures = [
        Figure(name=f"{part}, a volume", value=taken_ms, unit="CPU ms")
        for part, taken_ms in result["cpu_ms"].items()
    ]
    for processes, needed in ((1, None), (2, NEEDED)):
        pace = [result[f"volumes_per_s_{processes}"]]
        figures.append(figure(f"processes: {processes}", pace, "volumes a second", at_least=needed))
    copies = [float(result["copies_found"])]
    figures.append(figure("near-duplicates found", copies, "copies", at_least=result["copies_made"]))
    tell(__doc__, figures, as_json=given.json, details=result)


if __name__ == "__main__":
    main()
