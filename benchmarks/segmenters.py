"""What segmenters make of known masks on real CT, from oracle boxes and from boxes that are off.

EVID_SHARED_DATA=… python benchmarks/segmenters.py [--segmenter NAME …]        1 core, minutes, no download

Runs `evid audit segmenter` on 16 CTs of soft-tissue sarcoma with an expert's tumour mask, and on 4 crops of
DeepLesion, 13 to 16 slices each, which come windowed to 0..255. Options behind the data sets are those of the
command; without any, `region-growing` is asked.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from pathlib import Path

import nibabel
import numpy as np

from evidcore.cli import main as evid

SARCOMA, LESIONS = "ibsi_validation/*/CT_image.nii.gz", "medsam2/*.npz"


def sarcoma(shared: Path, folder: Path) -> list[tuple[str, str, str]]:
    """Return id, volume and mask of each scan, as they lie."""
    return [
        (scan.parent.name, str(scan), f"tumour={scan.with_name('CT_mask.nii.gz')}")
        for scan in sorted(shared.glob(SARCOMA))
    ]


def lesions(shared: Path, folder: Path) -> list[tuple[str, str, str]]:
    """Write each crop as NIfTI with its spacing, and return id, volume and mask."""
    found = []
    for path in sorted(shared.glob(LESIONS)):
        with np.load(path) as crop:
            affine = np.diag([*(-1, -1, 1) * crop["spacing"], 1.0])
            for name in ("imgs", "gts"):
                image = nibabel.Nifti1Image(crop[name].transpose(2, 1, 0), affine)
                nibabel.save(image, folder / f"{path.stem}_{name}.nii")
        found.append((path.stem, f"{path.stem}_imgs.nii", f"lesion={path.stem}_gts.nii"))
    return found


def main() -> None:
    """Audit both sets and print."""
    shared = Path(os.environ.get("EVID_SHARED_DATA", Path(__file__).parents[1] / "../shared/data"))
    options = sys.argv[1:] or ["--segmenter", "region-growing"]
    for of, intensity in ((sarcoma, "hu"), (lesions, "arbitrary")):
        with tempfile.TemporaryDirectory() as folder:
            cases = of(shared.resolve(), Path(folder))
            if not cases:
                sys.exit(f"no scans under {shared}: set EVID_SHARED_DATA to the folder of real volumes")
            with (Path(folder) / "cases.csv").open("w", newline="", encoding="utf-8") as file:
                table = csv.writer(file)
                table.writerow(["id", "volume", "patient", "split", "masks"])
                table.writerows([name, volume, name, "test", mask] for name, volume, mask in cases)
            print(f"{of.__name__}: {len(cases)} CTs", flush=True)
            evid(["audit", "segmenter", folder, "--intensity", intensity, *options], standalone_mode=False)


if __name__ == "__main__":
    main()
