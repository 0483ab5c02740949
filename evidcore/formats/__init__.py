"""What a file format gives: the contract, voxels as a file holds them, and their grids. Loads no torch."""

from evidcore.formats.contract import Format
from evidcore.formats.grid import (
    LPS_RAS,
    SAME_GRID_VOXELS,
    Array,
    FileGrid,
    Geometry,
    Mask,
    Source,
    Triple,
    Volume,
)
from evidcore.formats.stored import (
    AGAIN,
    Stored,
    refuse_flat,
    refuse_not_finite,
    refuse_shape,
    refuse_type,
    unreadable,
    written,
)

__all__ = [
    "AGAIN",
    "LPS_RAS",
    "SAME_GRID_VOXELS",
    "Array",
    "FileGrid",
    "Format",
    "Geometry",
    "Mask",
    "Source",
    "Stored",
    "Triple",
    "Volume",
    "refuse_flat",
    "refuse_not_finite",
    "refuse_shape",
    "refuse_type",
    "unreadable",
    "written",
]
