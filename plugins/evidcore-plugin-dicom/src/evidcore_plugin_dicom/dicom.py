"""The format DICOM: a series as a volume, and masks of objects and label maps."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidcore.api import DataError, Format, MaskRef, VolumeRef
from evidcore.data import Mask, Stored, Volume
from evidcore.data.masks import label_mask, resample_mask
from evidcore.data.stored import AGAIN
from evidcore.errors import did_you_mean
from evidcore_plugin_dicom.contours import read_contours
from evidcore_plugin_dicom.headers import SEGMENTATIONS, files_in, is_dicom, odd_values_named, read_dataset
from evidcore_plugin_dicom.segments import read_segment
from evidcore_plugin_dicom.series import SHARED, open_series, stands_alone

STRUCTURE_SET = "1.2.840.10008.5.1.4.1.1.481.3"
REGIONS = ("region", "StructureSetROISequence", "ROINumber", "ROIName", read_contours)
SEGMENTS = ("segment", "SegmentSequence", "SegmentNumber", "SegmentLabel", read_segment)


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
        _refuse_other(ref.path)
        with odd_values_named(ref.path):
            return open_series(ref)

    def mask(self, ref: MaskRef, like: Volume) -> Mask:
        """Return a region, a segment, or the label of a series that holds a label map."""
        _refuse_other(ref.path)
        if ref.axes is not None:
            why = f"axes {ref.axes!r} is for bare arrays; this file states its own"
            raise DataError(f"{ref.path}: {why}. Leave axes out.")
        with odd_values_named(ref.path):
            mask = read_object(ref, like)
        if mask is not None:
            return resample_mask(mask, like)
        stored = self.open(VolumeRef(path=ref.path, intensity="arbitrary", key=ref.key))
        refuse_unlike({name: [stored.patient[name]] for name in SHARED}, like, ref.path)
        return label_mask(stored, dataclasses.replace(ref, key=None), like)

    def files(self, path: str) -> list[Path]:
        """Return the file if it needs no other, else all files of its folder."""
        _refuse_other(path)
        file = Path(path)
        with odd_values_named(path):
            if file.is_file() and stands_alone(path):
                return [file]
        return files_in(file.parent if file.is_file() else file)


def _refuse_other(path: str) -> None:
    """Stop at a file that is DICOM by its name alone."""
    if Path(path).is_file() and not is_dicom(Path(path)):
        raise DataError(f"{path}: is named like DICOM, and its content is none. {AGAIN}")


def refuse_unlike(stated: Mapping[str, Sequence[str | None]], like: Volume, path: str) -> None:
    """Stop at a mask of another patient or frame of reference than its volume, where both state theirs."""
    for name, values in stated.items():
        known, listed = like.patient.get(name), {str(value).strip() for value in values if value}
        if known and listed and known not in listed:
            remedy = f"Name the mask that was drawn on them; if it is that, give both files the same {name}."
            raise DataError(f"{path}: states another {name} than the images of its volume. {remedy}")


def read_object(ref: MaskRef, like: Volume) -> Mask | None:
    """Return the mask of a structure set or segmentation; None where the path is an image series.

    Args:
        ref: `key` is the name or number of one region or segment, `label` its number.
        like: the volume, on whose file's grid the mask lies.

    Raises:
        DataError: if no object or more than one is meant, it is of another patient or frame of reference, or
            it does not lie on the grid.
    """
    if Path(ref.path).is_dir():
        return None
    frames = "ReferencedFrameOfReferenceSequence"
    wanted = ("SOPClassUID", "SegmentSequence", "StructureSetROISequence", frames, *SHARED)
    dataset = read_dataset(ref.path, only=wanted)
    kind = dataset.get("SOPClassUID")
    if kind != STRUCTURE_SET and kind not in SEGMENTATIONS:
        return None
    what, sequence, number, name, read = REGIONS if kind == STRUCTURE_SET else SEGMENTS
    items = {int(item[number].value): item for item in dataset.get(sequence) or ()}
    if what == "segment":
        items.pop(0, None)  # the background of a label map
    picked = pick_one({key: str(item.get(name, "")) for key, item in items.items()}, ref, what)
    of_all = [item.get("FrameOfReferenceUID") for item in (dataset, *(dataset.get(frames) or ()))]
    of_region = items[picked].get("ReferencedFrameOfReferenceUID")
    shared = {
        "PatientID": [dataset.get("PatientID")],
        "FrameOfReferenceUID": [of_region] if of_region else of_all,
    }
    refuse_unlike(shared, like, ref.path)
    return read(ref.path, picked, like.file_geometry)


def pick_one(names: Mapping[int, str], ref: MaskRef, what: str) -> int:
    """Return the number of the object that a reference means.

    Args:
        names: name by number.
        ref: without key and label it means the only one.
        what: what such an object is called in errors.
    """
    listed = ", ".join(f"{number} {name!r}" for number, name in names.items()) or "nothing"
    if ref.key is not None and ref.label is not None:
        raise DataError(f"{ref.path}: key {ref.key!r} and label {ref.label} both pick a {what}. Give one.")
    if ref.key is None and ref.label is None:
        if len(names) == 1:
            return next(iter(names))
        why = f"holds {len(names)} {what}s: {listed}"
        raise DataError(f"{ref.path}: {why}. Name one, for instance file.dcm#NAME in a table.")
    wanted = str(ref.label) if ref.key is None else ref.key
    result = [number for number, name in names.items() if ref.key is not None and name == ref.key]
    result = result or [number for number in names if str(number) == wanted]
    if len(result) != 1:
        wrong = f"{len(result)} {what}s are called" if result else f"holds no {what}"
        why = (
            f"{wrong} {wanted!r}.{'' if result else did_you_mean(wanted, names.values())} It holds: {listed}"
        )
        raise DataError(f"{ref.path}: {why}. Name one by its number if names are not unique.")
    return result[0]
