"""The real CTs that benchmarks plant lesions into: FOLDER/ibsi_validation, FOLDER in EVID_SHARED_DATA."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path

from evidcore_plugin_tables.folder import Folder


def real_scans(folder: Path, cache_folder: Path, count: int) -> Folder:
    """Return the first `count` scans as a data set, a patient each; its table is written into `folder`."""
    scans = sorted(Path(os.environ["EVID_SHARED_DATA"]).glob("ibsi_validation/STS_*/CT_image.nii.gz"))[:count]
    return data_set(folder, cache_folder, {scan.parent.name: scan for scan in scans})


def data_set(folder: Path, cache_folder: Path, scans: Mapping[str, Path]) -> Folder:
    """Return scans by their names as a data set, a patient each; its table is written into `folder`."""
    with (folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [[name, scan, name, "test"] for name, scan in scans.items()]
        csv.writer(file).writerows([["id", "volume", "patient", "split"], *rows])
    return Folder(folder, cache_folder, path=".")
