"""DICOM segmentations (SEG), binary frames or a label map, on their volume's grid."""

import numpy as np
from pydicom.dataset import Dataset
from pydicom.pixels.utils import iter_pixels

from evidcore.api import DataError
from evidcore.data import Array, FileGrid, Geometry, Mask
from evidcore.data.masks import place_into
from evidcore.data.placement import turn_to_body
from evidcore.data.stored import AGAIN
from evidcore_plugin_dicom.frames import Frame, frames_of, group_item
from evidcore_plugin_dicom.headers import MISTAKES, read_dataset
from evidcore_plugin_dicom.series import refuse_other_size, refuse_packed


def read_segment(path: str, number: int, onto: Geometry) -> Mask:
    """Return one segment, shape (z, y, x) on `onto`; where it has no frame it is empty.

    Segments may overlap; frames may lie in any order and leave slices out.

    Raises:
        DataError: if it holds fractions, a frame lies on no slice of `onto`, or the voxels are damaged.
    """
    dataset = read_dataset(path, voxels=True)
    kind = str(dataset.get("SegmentationType", ""))
    if kind not in {"BINARY", "LABELMAP"}:
        why = f"the segmentation is {kind!r}, expected 'BINARY' or 'LABELMAP'"
        raise DataError(f"{path}: {why}. Threshold the fractions first.")
    is_map = kind == "LABELMAP"
    frames = [frame for frame in frames_of(dataset, path) if is_map or _segment_of(frame, dataset) == number]
    mask = np.zeros(onto.shape_zyx, dtype=np.bool_)
    if not frames:
        return mask
    bits = int(dataset.get("BitsAllocated") or 8)
    refuse_packed((frames[0].columns, frames[0].rows, 1), bits, path, path)  # decoded frame by frame
    try:
        refuse_other_size(dataset)
        planes = iter_pixels(dataset, indices=[frame.number for frame in frames])
        for frame, plane in zip(frames, planes, strict=True):
            inside = plane == (number if is_map else 1)
            turn = turn_to_body(_grid(frame, onto), path)
            place_into(mask, turn.apply(inside.T[:, :, None]), turn.geometry, onto, path)
    except MISTAKES as cause:
        raise DataError(f"{path}: its frames cannot be decoded ({cause}). {AGAIN}") from cause
    return mask


def _segment_of(frame: Frame, dataset: Dataset) -> int:
    item = group_item("SegmentIdentificationSequence", frame.group, dataset)
    if item is None:
        raise DataError(f"{frame.path}: frame {frame.number + 1} does not say its segment. {AGAIN}")
    return int(item.ReferencedSegmentNumber)


def _grid(frame: Frame, onto: Geometry) -> FileGrid:
    """Return the grid of one frame: a slice as thick as those of the volume."""
    ways: Array = onto.affine[2::-1, :3]  # rows x, y, z; a column for each axis of the volume
    across = np.abs(frame.normal @ (ways / np.linalg.norm(ways, axis=0))).argmax()
    affine = np.eye(4)
    affine[:3, 0] = frame.along_row * frame.column_gap_mm
    affine[:3, 1] = frame.down_column * frame.row_gap_mm
    affine[:3, 2] = ways[:, across]
    affine[:3, 3] = frame.place
    return FileGrid(shape=(frame.columns, frame.rows, 1), affine=affine)
