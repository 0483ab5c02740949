"""What segmenters make of known masks on real CT, from oracle boxes and from boxes that are off.

EVID_SHARED_DATA=… python benchmarks/segmenters.py [--segmenter NAME …]        1 core, 9 minutes, no download
EVID_SHARED_DATA=… python benchmarks/segmenters.py --seeded      1 core, 95 minutes: `medsam2`, seeded weights

Runs `evid audit segmenter` on 16 CTs of soft-tissue sarcoma with an expert's tumour mask, in two halves, and
on 4 crops of DeepLesion, 13 to 16 slices each, which come windowed to 0..255. Options are those of the
command; without any, `region-growing` is asked, and `slice-propagator`, which has learned from sarcomas of
the other half; for the crops, from those of the second. `--seeded` asks `medsam2` with a checkpoint in the
published layout whose weights are seeded: that it runs on such scans, not how well it segments them.
"""

import csv
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import nibabel
import numpy as np
from evidcore_plugin_medsam2.weights import published_config
from evidcore_plugin_segmenters.propagator_fit import PropagatorFit
from evidcore_plugin_segmenters.slice_propagator import SlicePropagator
from evidcore_plugin_tables.folder import Folder

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "evidcore-plugin-medsam2" / "tests"))

from seeded import seeded_model, write_checkpoint

from evidcore.cli import main as evid
from evidcore.contracts import FitData

SARCOMA, LESIONS = "ibsi_validation/*/CT_image.nii.gz", "medsam2/*.npz"
STEPS = 400
SEEDED = "--seeded"
Row = tuple[str, str, str]  # id, volume, masks


def sarcoma(shared: Path) -> list[Row]:
    """Return each scan as it lies."""
    return [
        (scan.parent.name, str(scan), f"tumour={scan.with_name('CT_mask.nii.gz')}")
        for scan in sorted(shared.glob(SARCOMA))
    ]


def lesions(shared: Path, folder: Path) -> list[Row]:
    """Write each crop as NIfTI with its spacing."""
    result = []
    for path in sorted(shared.glob(LESIONS)):
        with np.load(path) as crop:
            affine = np.diag([*(-1, -1, 1) * crop["spacing"], 1.0])
            for name in ("imgs", "gts"):
                image = nibabel.Nifti1Image(crop[name].transpose(2, 1, 0), affine)
                nibabel.save(image, folder / f"{path.stem}_{name}.nii")
        result.append((path.stem, f"{path.stem}_imgs.nii", f"lesion={path.stem}_gts.nii"))
    return result


def write(folder: Path, splits: Mapping[str, Sequence[Row]]) -> None:
    """Write the table of a folder of volumes."""
    with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "masks"])
        for split, rows in splits.items():
            table.writerows([name, volume, name, split, mask] for name, volume, mask in rows)


def learned(folder: Path) -> list[str]:
    """Fit `slice-propagator` on a folder's train split; return the options that ask both segmenters."""
    data = Folder(folder, folder, path=".")
    weights = folder / "slice-propagator"
    weights.mkdir()
    train, validation = list(data.cases("train")), list(data.cases("validation"))
    SlicePropagator().fit(
        FitData(train, validation, weights, 17, lambda _: None), options=PropagatorFit(steps=STEPS)
    )
    table = f"{{ use = 'slice-propagator', pretrained = '{weights}' }}"
    return ["--segmenter", "region-growing", "--segmenter", table]


def seeded(folder: Path) -> list[str]:
    """Write a checkpoint of MedSAM2's size with seeded weights; return the options that ask it."""
    weights = folder / "seeded.pt"
    write_checkpoint(seeded_model(published_config()), weights)
    return ["--segmenter", f"{{ use = 'medsam2', file = '{weights}' }}"]


def audit(folder: Path, options: Sequence[str], intensity: str = "hu") -> None:
    """Print what the command says of a folder; end where it fails."""
    asked = ["audit", "segmenter", str(folder), "--intensity", intensity, *options]
    if status := evid(asked, standalone_mode=False):
        sys.exit(status)


def main() -> None:
    """Audit all and print."""
    shared = Path(os.environ.get("EVID_SHARED_DATA", Path(__file__).parents[1] / "../shared/data")).resolve()
    scans, given = sarcoma(shared), sys.argv[1:]
    if not scans:
        sys.exit(f"no scans under {shared}: set EVID_SHARED_DATA to the folder of real volumes")
    with tempfile.TemporaryDirectory() as place:
        first, second, crops = (Path(place) / name for name in ("first", "second", "crops"))
        for folder in (first, second, crops):
            folder.mkdir()
        halves = scans[::2], scans[1::2]
        for folder, own, other in ((first, *halves), (second, *reversed(halves))):
            write(folder, {"test": own, "train": other[:-1], "validation": other[-1:]})
        write(crops, {"test": lesions(shared, crops)})
        if SEEDED in given:
            given = [*seeded(Path(place)), *(option for option in given if option != SEEDED)]
        options = given or learned(first)
        print(f"sarcoma, first half: {len(halves[0])} CTs", flush=True)
        audit(first, options)
        print(f"\nsarcoma, second half: {len(halves[1])} CTs", flush=True)
        audit(second, given or learned(second))
        print("\nlesions", flush=True)
        audit(crops, options, "arbitrary")


if __name__ == "__main__":
    main()
