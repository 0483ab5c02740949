"""A DICOM series as a volume: its files found, its images stacked, its voxels decoded."""

import dataclasses
import itertools
import math
import os
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames
from pydicom.pixels.utils import _get_jpg_parameters, get_nr_frames, pixel_array
from pydicom.uid import UID, JPEG2000TransferSyntaxes, JPEGLSTransferSyntaxes, JPEGTransferSyntaxes

from evidcore.api import DataError, VolumeRef
from evidcore.data import Array, FileGrid, Stored, refuse_shape
from evidcore.data.stored import AGAIN, refuse_substitute
from evidcore.errors import did_you_mean
from evidcore_plugin_dicom.frames import Frame, frames_of
from evidcore_plugin_dicom.headers import MISTAKES, SEGMENTATIONS, files_in, is_dicom, read_dataset, shown
from evidcore_plugin_dicom.stack import stack

NOT_HU = {"MR", "PT", "NM", "US", "Parametric Map Storage"}  # modalities and a class
HAS_UNIT = {"CT", "PT", "NM"}  # HU, activity, counts: rescaled values are as they were measured
HU_TYPES = {"", "HU", "US"}  # of RescaleType; US: unspecified, which scanners write of HU
SHARED = ("PatientID", "FrameOfReferenceUID")  # by all images of a series, and by their masks
# what is the same in images of one phase, echo or kind; MR may take every other slice in one acquisition
PHASES = ("ContrastBolusAgent", "EchoTime", "EchoNumbers", "TemporalPositionIdentifier", "ImageType")
CT_PHASES = (*PHASES, "AcquisitionNumber")
NEEDED = (
    "SOPClassUID", "Modality", *SHARED, "PatientSex", "PatientAge", "SeriesInstanceUID", "SeriesNumber",
    "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns", "BitsAllocated",
    "PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient", "ModalityLUTSequence", "RescaleSlope",
    "RescaleIntercept", "RescaleType", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
    *CT_PHASES,
)  # fmt: skip
MOST_RATIO = 1000  # of a scan's voxels to its files, in bytes; real ones are packed 2 to 50 times
SMALL_BYTES = 1 << 28  # of voxels; a label map may hold next to nothing


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Header:
    """One image file of a series and what its header says."""

    path: str
    dataset: Dataset

    @property
    def series(self) -> str:
        """The SeriesInstanceUID."""
        return str(self.dataset.get("SeriesInstanceUID", ""))

    @property
    def is_image(self) -> bool:
        """Whether it holds voxels of a scan, as structure sets, segmentations and directories do not."""
        return "Rows" in self.dataset and self.dataset.get("SOPClassUID") not in SEGMENTATIONS

    @property
    def stands_alone(self) -> bool:
        """Whether the file needs no other of its folder."""
        return not self.is_image or int(self.dataset.get("NumberOfFrames") or 1) > 1


def stands_alone(path: str) -> bool:
    """Tell a DICOM file that is whole by itself from one image of a series."""
    return Header(path=path, dataset=read_dataset(path, only=NEEDED)).stands_alone


def open_series(ref: VolumeRef) -> Stored:
    """Read the headers of a series: a folder, one file of it, or one file of several frames.

    Slope and intercept are applied image by image. Structure sets, segmentations, directories and files of
    other formats in the folder are left aside. MONOCHROME1 says that low values are to be displayed white: it
    changes none here (in SimpleITK it does), and is passed on where values have no unit, since such a scan
    may be a negative of others.

    Raises:
        DataError: if there is no series or more than one, or it forms no volume; names what and where.

    Source: DICOM PS3.3, C.7.6.3.1.2.
    """
    headers = _headers(ref)
    for header in headers:
        held = header.dataset
        for name, value in {"Modality": held.get("Modality"), "SOPClassUID": _class(held).name}.items():
            if ref.intensity == "hu" and value in NOT_HU:
                raise _no_hu(header.path, name, value)
        count, colours = held.get("SamplesPerPixel") or 1, held.get("PhotometricInterpretation")
        if count != 1 or colours == "PALETTE COLOR":
            why = f"is in colours ({colours}, {count} values a voxel), expected greys"
            raise DataError(f"{header.path}: {why}. Take the original series, not a secondary capture.")
        if held.get("ModalityLUTSequence"):
            why = f"{header.path}: scales its values by a table (ModalityLUTSequence)"
            raise DataError(f"{why}, expected RescaleSlope and RescaleIntercept. Take the original series.")
    stated = headers[0].dataset
    patient = {what: str(stated.get(f"Patient{what.capitalize()}") or "") for what in ("sex", "age")}
    has_unit = ref.intensity == "hu" or stated.get("Modality") in HAS_UNIT
    for name in SHARED if has_unit else (*SHARED, "PhotometricInterpretation"):
        named = [(str(header.dataset.get(name) or "").strip(), header.path) for header in headers]
        first = {value: Path(path).name for value, path in reversed(named) if value}  # others are passed over
        if len(first) > 1:
            item, other = sorted(first.values())[:2]
            why = f"the images of the series state {len(first)} values of {name}"
            remedy = "Find out whose each image is, and put what belongs together into a folder of its own."
            raise DataError(f"{ref.path}: {why}, the first two in {item} and {other}. {remedy}")
        patient[name] = next(iter(first), "")
    frames = [frame for header in headers for frame in frames_of(header.dataset, header.path)]
    for frame in frames:
        if ref.intensity == "hu" and frame.unit.upper() not in HU_TYPES:
            raise _no_hu(frame.path, "RescaleType", frame.unit)
    ordered, grid = stack(frames, ref.path)
    by_path = {header.path: header.dataset for header in headers}
    for name in CT_PHASES if stated.get("Modality") == "CT" else PHASES:
        _refuse_mixed(ref.path, name, [str(by_path[frame.path].get(name) or "") for frame in ordered])
    bits = max(int(header.dataset.get("BitsAllocated") or 16) for header in headers)
    refuse_packed(grid.shape, bits, ref.path, *(header.path for header in headers))
    return Stored(
        grid=grid,
        load=lambda: _voxels(ordered, grid),
        slope=np.array([frame.slope for frame in ordered]),  # broadcast along the images, the last axis
        intercept=np.array([frame.intercept for frame in ordered]),
        patient=patient,
    )


def _refuse_mixed(path: str, name: str, values: Sequence[str]) -> None:
    """Stop where images of two phases lie between each other, as of two that were put into one series."""
    runs, counts = [value for value, _ in itertools.groupby(values)], Counter(values)
    if len(runs) > len(counts) > 1 and min(counts.values()) > 1:
        why = f"images of {len(counts)} phases or echoes lie between each other, by their {name}"
        raise DataError(f"{path}: {why}. Put each into a folder of its own.")


def _no_hu(path: str, name: str, value: str | None) -> DataError:
    why = f"its {name} is {value!r}, which has no Hounsfield units"
    return DataError(f"{path}: {why}. Set intensity = 'arbitrary' on the data set.")


def _class(dataset: Dataset) -> UID:
    """Return the class of a file; a directory (DICOMDIR) has one in its meta group alone."""
    return UID(str(dataset.get("SOPClassUID") or dataset.file_meta.get("MediaStorageSOPClassUID") or ""))


def _headers(ref: VolumeRef) -> list[Header]:
    """Return the image files of the series that a reference means."""
    path = Path(ref.path)
    if path.is_file():
        given = Header(path=ref.path, dataset=read_dataset(ref.path, only=NEEDED))
        if not given.is_image:
            why = f"holds no scan but {given.dataset.get('Modality', 'no image')!r}"
            remedy = "Name the folder of the images; structure sets and segmentations are named as masks."
            raise DataError(f"{ref.path}: {why}. {remedy}")
        if ref.key is not None and given.series != ref.key:
            why = f"belongs to series {given.series}, not {ref.key}"
            raise DataError(f"{ref.path}: {why}. Leave the key out.")
        if given.stands_alone:
            return [given]
        return [header for header in _images(path.parent) if header.series == given.series]
    images = _images(path)
    if not images:
        remedy = "Name the folder of one series, or one file."
        raise DataError(f"{ref.path}: is a folder without DICOM images. {remedy}")
    held: dict[str, list[Header]] = {}
    for header in images:
        held.setdefault(header.series, []).append(header)
    if ref.key is None and len(held) == 1:
        return images
    if ref.key in held:
        return held[ref.key]
    listed = "; ".join(
        f"{series} ({group[0].dataset.get('Modality', '?')}, {len(group)} files)"
        for series, group in held.items()
    )
    if ref.key is None:
        why = f"holds {len(held)} series: {listed}"
        raise DataError(f"{ref.path}: {why}. Name one as key, or put each in its own folder.")
    why = f"holds no series {ref.key!r}.{did_you_mean(ref.key, held)}"
    raise DataError(f"{ref.path}: {why} It holds: {listed}. Correct the key.")


def _images(folder: Path) -> list[Header]:
    """Return the DICOM images directly in a folder, by name."""
    paths = [str(file) for file in files_in(folder) if _is_of_series(file)]
    headers = [Header(path=path, dataset=read_dataset(path, only=NEEDED)) for path in paths]
    for header in headers:
        held = header.dataset
        if "Rows" in held:
            continue
        uid = _class(held)
        is_other = uid.keyword and "Image" not in uid.keyword
        is_makers_own = uid and uid.is_private and header.series  # the series stands well behind the class
        if not is_other and not is_makers_own:  # it may be a lost image
            why = f"lies in a DICOM folder and has no Rows, though its class is {shown(uid.name)}"
            raise DataError(f"{header.path}: {why}. The file is cut off within its header. {AGAIN}")
    return [header for header in headers if header.is_image]


def _is_of_series(file: Path) -> bool:
    """Tell DICOM from other files; what should be DICOM by its name and is not may be a lost image."""
    if is_dicom(file):
        return True
    size = file.stat().st_size
    if size == 0 or file.suffix.lower() == ".dcm":
        refuse_substitute(file)
        raise DataError(f"{file}: lies in a DICOM folder and holds no DICOM, {size} bytes. {AGAIN}")
    return False


def _voxels(ordered: list[Frame], grid: FileGrid) -> Array:
    """Return the stored values (column, row, image)."""
    by_file: dict[str, list[tuple[int, Frame]]] = {}
    for place, frame in enumerate(ordered):
        by_file.setdefault(frame.path, []).append((place, frame))
    stacked: Array = np.empty((0,))
    for path, wanted in by_file.items():
        decoded = decode(read_dataset(path, voxels=True), path)
        several = decoded if decoded.ndim == 3 else decoded[None]
        if not stacked.size:
            stacked = np.empty(grid.shape[::-1], decoded.dtype)  # image, row, column
        elif not np.can_cast(decoded.dtype, stacked.dtype):
            stacked = stacked.astype(np.result_type(stacked, decoded))
        for place, frame in wanted:
            stacked[place] = several[frame.number]
    return stacked.transpose(2, 1, 0)


def decode(dataset: Dataset, path: str) -> Array:
    """Return a file's voxels as stored: (row, column), or (frame, row, column).

    Raises:
        DataError: if they are cut off or damaged, or nothing here decodes them.
    """
    try:
        refuse_other_size(dataset)
        return pixel_array(dataset)
    except MISTAKES as cause:
        syntax, why = dataset.file_meta.TransferSyntaxUID.name, " ".join(str(cause).split())
        raise DataError(f"{path}: its voxels cannot be decoded ({syntax}: {why}). {AGAIN}") from cause


def refuse_packed(shape: tuple[int, ...], bits: int, path: str, *files: str) -> None:
    """Stop at headers that state more voxels than files hold: a decoder would make room for them."""
    refuse_shape(shape, path, max(1, bits // 8))
    stated, present = math.prod(shape) * max(1, bits // 8), sum(map(os.path.getsize, files))
    if stated > max(SMALL_BYTES, MOST_RATIO * present):
        why = f"states {stated / 1e9:.3g} GB of voxels in files of {present / 1e6:.1g} MB"
        raise DataError(f"{path}: {why}, over {MOST_RATIO} times as much, which no image is. {AGAIN}")


def refuse_other_size(dataset: Dataset) -> None:
    """Stop at an encoded frame that states another size than the header: a decoder would make room for it."""
    syntax, stated = dataset.file_meta.TransferSyntaxUID, (dataset.Rows, dataset.Columns)
    if syntax not in [*JPEG2000TransferSyntaxes, *JPEGLSTransferSyntaxes, *JPEGTransferSyntaxes]:
        return
    for frame in generate_frames(dataset.PixelData, number_of_frames=get_nr_frames(dataset)):
        if syntax in JPEG2000TransferSyntaxes:  # Xsiz, Ysiz, XOsiz, YOsiz behind the markers SOC and SIZ
            right, bottom, left, top = struct.unpack_from(">4I", frame, frame.index(b"\xff\x4f\xff\x51") + 8)
            rows, columns = bottom - top, right - left
        else:
            rows, columns = map(_get_jpg_parameters(frame).get, ("height", "width"))
        if (rows, columns) != stated:
            raise ValueError(f"a frame is encoded as {rows} x {columns}, the header says {stated}")
