"""The images of DICOM files, one by one: where each lies and how its values are scaled."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from pydicom.dataset import Dataset

from evidcore.api import DataError
from evidcore.data import Array
from evidcore_plugin_dicom.headers import numbers, shown

GROUPS = (
    "PlanePositionSequence",
    "PlaneOrientationSequence",
    "PixelMeasuresSequence",
    "PixelValueTransformationSequence",
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """One image in the body; places and directions are (x, y, z), in mm, LPS."""

    path: str
    number: int  # within its file, from 0
    rows: int
    columns: int
    place: Array  # of the first voxel's centre
    along_row: Array  # unit vector, towards the next column
    down_column: Array  # unit vector, towards the next row
    row_gap_mm: float  # between neighbouring rows
    column_gap_mm: float
    slope: float = 1.0
    intercept: float = 0.0
    unit: str = ""  # of what slope and intercept give
    group: Dataset | None = None  # what a file of several frames says of this one

    @property
    def normal(self) -> Array:
        """Unit vector across the image."""
        return np.cross(self.along_row, self.down_column)


def frames_of(dataset: Dataset, path: str) -> Iterator[Frame]:
    """Yield the images of a file, from its own attributes or its functional groups.

    Raises:
        DataError: if an image's place, directions or pixel spacing is missing or impossible.
    """
    groups = dataset.get("PerFrameFunctionalGroupsSequence")
    if groups is None and int(dataset.get("NumberOfFrames") or 1) > 1:
        why = f"holds {dataset.NumberOfFrames} frames and does not say where each lies"
        raise DataError(f"{path}: {why}. Export it as one image a file, or as an enhanced object.")
    for number, own in enumerate([None] if groups is None else groups):
        yield _frame(dataset, path, number, own)


def group_item(sequence: str, own: Dataset | None, dataset: Dataset) -> Dataset | None:
    """Return what a functional group says of a frame: its own item, else the one that all frames share."""
    for group in (own, *(dataset.get("SharedFunctionalGroupsSequence") or ())):
        for item in (None if group is None else group.get(sequence)) or ():
            return item  # type: ignore[no-any-return]
    return None


def _frame(dataset: Dataset, path: str, number: int, group: Dataset | None) -> Frame:
    place, orientation, measures, scale = (
        dataset if group is None else group_item(sequence, group, dataset) for sequence in GROUPS
    )
    scale = scale or dataset
    directions = np.array(numbers(orientation, "ImageOrientationPatient", 6, path))
    along_row, down_column = directions[:3], directions[3:]
    lengths = np.linalg.norm(along_row), np.linalg.norm(down_column)
    if not np.allclose([*lengths, along_row @ down_column], [1, 1, 0], atol=1e-2):
        why = f"ImageOrientationPatient must be two unit vectors at a right angle, got {directions.tolist()}"
        raise DataError(f"{path}: {why}. Export the series again.")
    row_gap, column_gap = numbers(measures, "PixelSpacing", 2, path)
    if min(row_gap, column_gap) <= 0:
        why = f"PixelSpacing must be above 0 mm, got {[row_gap, column_gap]}"
        raise DataError(f"{path}: {why}. Export the series again.")
    slope, intercept = (
        numbers(scale, name, 1, path)[0] if shown(scale.get(name)) != "nothing" else default
        for name, default in (("RescaleSlope", 1.0), ("RescaleIntercept", 0.0))
    )
    return Frame(
        path=path,
        number=number,
        rows=int(dataset.Rows),
        columns=int(dataset.Columns),
        place=np.array(numbers(place, "ImagePositionPatient", 3, path)),
        along_row=along_row / lengths[0],
        down_column=down_column / lengths[1],
        row_gap_mm=row_gap,
        column_gap_mm=column_gap,
        slope=slope,
        intercept=intercept,
        unit=str(scale.get("RescaleType") or "").strip(),
        group=group,
    )
