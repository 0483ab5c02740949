import csv
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidcore_plugin_doctor.check import Summary, check, list_cases
from evidcore_plugin_doctor.fault import Fault
from evidcore_testing.data import save_nifti
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.fixtures import real_data as real_data
from scipy import ndimage

from evidcore.data import Geometry, Volume
from evidcore.registry import factory

SHAPE, SPACING_MM = (62, 72, 76), (6.0, 5.5, 5.0)  # z, y, x: a field of view with air around the body
MIDDLE, STEPS_MM = ((np.array(SHAPE) - 1) / 2)[:, None, None, None], np.reshape(SPACING_MM, (3, 1, 1, 1))
PLACES_MM = (np.indices(SHAPE) - MIDDLE) * STEPS_MM  # (3, z, y, x)
Array = np.ndarray[Any, np.dtype[Any]]


def ellipsoid(centre_mm: tuple[float, float, float], radii_mm: tuple[float, float, float]) -> Array:
    """Which voxels lie in an ellipsoid, mm from the middle of the volume: up, back, left."""
    parts = (PLACES_MM - np.reshape(centre_mm, (3, 1, 1, 1))) / np.reshape(radii_mm, (3, 1, 1, 1))
    return np.asarray((parts**2).sum(axis=0) < 1)


ORGANS = {
    "liver": ((-90, -15, -70), (65, 65, 65)),
    "spleen": ((-85, 35, 100), (40, 25, 22)),
    "heart": ((-5, -30, 38), (50, 42, 48)),
    "kidney_left": ((-130, 40, 60), (45, 22, 22)),
    "kidney_right": ((-140, 40, -60), (45, 22, 22)),
    "lung_left": ((40, 0, 75), (100, 75, 48)),
    "lung_right": ((40, 0, -75), (100, 75, 54)),
}


def torso(seed: int, tissue: int = 0) -> Array:
    """A patient: body axes z, y, x; HU as whole numbers. Every seed has its own build and tissue.

    Another `tissue` fills the same build.
    """
    rng, inner = np.random.default_rng(seed), np.random.default_rng([seed, tissue])
    wide, deep = rng.uniform(150, 170), rng.uniform(105, 115)

    def wavy(width: float) -> Array:
        field = ndimage.gaussian_filter(inner.normal(size=SHAPE), width, mode="wrap")
        return np.asarray(field / field.std())

    def shaped(centre_mm: Any, radii_mm: Any) -> Array:
        return ellipsoid(
            tuple(np.array(centre_mm) + rng.uniform(-8, 8, 3)),
            tuple(np.array(radii_mm) * rng.uniform(0.9, 1.1, 3)),
        )

    body = ellipsoid((0, 0, 0), (1e5, deep, wide))
    hu = np.where(body, -70 + 35 * wavy(2.0), -1000.0)
    hu[body & ~ellipsoid((0, 0, 0), (1e5, deep - 12, wide - 12))] = 50  # muscle of the wall
    for name, (centre_mm, radii_mm) in ORGANS.items():
        organ = shaped(centre_mm, radii_mm)
        filled = -840 + 60 * wavy(1.5) if name.startswith("lung") else 60 + 12 * wavy(2.0)
        hu[organ] = filled[organ]
    hu[ellipsoid((0, deep - 40, rng.uniform(-5, 5)), (1e5, 22, 22))] = 420
    hu[ellipsoid((0, deep + 18, 0), (1e5, 6, 140))] = -150  # the table
    hu += inner.normal(0, 12, SHAPE)
    return np.asarray(np.clip(np.round(hu), -1024, 3071).astype(np.int16))


def as_volume(
    array: Array, spacing_mm: tuple[float, float, float] = SPACING_MM, intensity: str = "hu"
) -> Volume:
    geometry = Geometry(shape_zyx=array.shape, affine=np.diag([*spacing_mm, 1.0]))  # type: ignore[arg-type]
    return Volume(array=array, geometry=geometry, intensity=intensity)  # type: ignore[arg-type]


@dataclasses.dataclass
class Home:
    """A data set on disk."""

    folder: Path
    rows: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def add(
        self,
        name: str,
        array: Array | None = None,
        *,
        spacing_mm: Any = SPACING_MM,
        axes: str = "LPS",
        masks: Mapping[str, Any] | str = "",
        **cells: str,
    ) -> Path:
        """Write a scan and its row; masks by name are arrays, or what stands in the cell."""
        if not isinstance(masks, str):
            cells["masks"] = ";".join(
                f"{mask}={voxels if isinstance(voxels, str) else self.mask(f'{name}-{mask}', voxels)}"
                for mask, voxels in masks.items()
            )
        elif masks:
            cells["masks"] = masks
        path = self.folder / f"{name}.nii.gz"
        if array is not None:
            save_nifti(path, array, spacing_mm, axes)
        row = {"id": name, "volume": path.name, "patient": f"p-{name}", "split": "train"}
        self.rows.append(row | cells)
        return path

    def mask(self, name: str, array: Array, spacing_mm: Any = SPACING_MM) -> str:
        save_nifti(self.folder / f"{name}.nii.gz", array.astype(np.uint8), spacing_mm)
        return f"{name}.nii.gz"

    def write(self) -> Path:
        columns = ["id", "volume", "patient", "split", "report", "masks"]
        names = list(dict.fromkeys([*columns, *(key for row in self.rows for key in row)]))
        with (self.folder / "cases.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, restval="")
            writer.writeheader()
            writer.writerows(self.rows)
        return self.folder

    def check(self, *, processes: int = 1, **options: Any) -> tuple[list[Fault], Summary]:
        self.write()
        given = {"recipe_folder": self.folder, "cache_folder": self.folder / "cache"}
        table = {"use": "folder", "path": ".", **options}
        dataset = factory.build("dataset", table, given=given, where="test")
        faults: list[Fault] = []
        listed = list_cases(dataset, "test")
        summary = check(
            *listed, processes=processes, on_fault=faults.append, progress=lambda count, total: None
        )
        return faults, summary


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture(scope="session")
def tools() -> Any:
    """What makes data sets: torsos, ellipsoids, files and folders."""
    return sys.modules[__name__]
