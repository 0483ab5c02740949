"""The format DICOM: a series as a volume, and masks of objects and label maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from evidcore.api import DataError, Format, MaskRef, VolumeRef
from evidcore.data import Mask, Stored, Volume
from evidcore.data.masks import label_mask, resample_mask
from evidcore.data.stored import AGAIN
from evidcore_plugin_dicom.headers import files_in, is_dicom
from evidcore_plugin_dicom.objects import read_object
from evidcore_plugin_dicom.series import open_series, stands_alone


class Dicom(Format):
    """DICOM: a folder that holds a series, one image of it, or one file of several frames.

    A volume's `key` is the SeriesInstanceUID in a folder of several series. Structure sets and segmentations
    are masks.
    """

    takes = frozenset({"key"})

    def recognises(self, path: str) -> bool:
        """Tell a DICOM file by its first bytes, a folder by the files directly in it."""
        if not Path(path).is_dir():
            return is_dicom(Path(path))
        return any(file.suffix.lower() == ".dcm" or is_dicom(file) for file in files_in(Path(path)))

    def open(self, ref: VolumeRef) -> Stored:
        """Read the headers of a series."""
        _refuse_other(ref.path)
        return open_series(ref)

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return a region, a segment, or the label of a series that holds a label map."""
        _refuse_other(ref.path)
        if ref.axes is not None:
            raise DataError(
                f"{ref.path}: axes {ref.axes!r} is for bare arrays; this file states its own. Leave axes out."
            )
        mask = read_object(ref, like.file_geometry)
        if mask is not None:
            return resample_mask(mask, like)
        stored = self.open(VolumeRef(path=ref.path, intensity="arbitrary", key=ref.key))
        return label_mask(stored, dataclasses.replace(ref, key=None), like)

    def files(self, path: str) -> list[Path]:
        """Return the file if it needs no other, else all files of its folder."""
        _refuse_other(path)
        file = Path(path)
        if file.is_file():
            if stands_alone(path):
                return [file]
            file = file.parent
        return files_in(file)


def _refuse_other(path: str) -> None:
    """Stop at a file that is DICOM by its name alone."""
    if Path(path).is_file() and not is_dicom(Path(path)):
        raise DataError(f"{path}: is named like DICOM, and its content is none. {AGAIN}")
