"""What forms no volume is refused by name."""

import contextlib
import tomllib
from pathlib import Path

import pydicom
import pytest
from evidcore_plugin_dicom.series import NEEDED
from pydicom.dataset import Dataset
from read_scans import SHAPE, opened, refusal, scan

from evidcore.api import DataError, VolumeRef, read


def test_missing_images_are_counted_and_placed(write_series):
    def change(image: Dataset, number: int) -> str | None:
        return "leave out" if number in {2, 5, 6} else None

    message = refusal(write_series(scan((10, 5, 6)), change=change))
    assert "series: 3 of 10 images are missing, the first between 3.00 and 9.00 mm along the" in message
    assert "where images lie 3.00 mm apart. Copy the series again." in message


def second(**values):
    return lambda number: values if number == 1 else {}


@pytest.mark.parametrize(
    ("changed", "shown"),
    [(lambda number: {"ImagePositionPatient": [0, 0, 3]} if number == 2 else {},
      "1 of 4 images lie where another does, the first at 3.00 mm along the normal: 97.dcm and 98"),
     (lambda number: {"ImagePositionPatient": [0, 0, 3 * number + (1.2 if number > 1 else 0)]},
      "the images lie at unequal distances, 3.00 to 4.20 mm along the normal. Resample"),
     (second(ImagePositionPatient=[0.7, 0, 3]),
      "the one at 3.00 mm along the normal is 0.70 voxels off. Take the reconstruction"),
     (second(ImageOrientationPatient=[1, 0, 0, 0, 0, -1]),
      "differ in direction: (1, 0, 0, 0, 1, 0) in 96.dcm, (1, 0, 0, 0, 0, -1) in 98.dcm"),
     (second(PixelSpacing=[0.7, 0.8]), "differ in pixel spacing: (2, 1) in 96.dcm, (0.7, 0.8) in 98.dcm"),
     (second(Rows=4, PixelData=bytes(48)), "differ in size: (6, 5) in 96.dcm, (6, 4) in 98.dcm. Move"),
     (lambda _: {"Rows": 24000, "Columns": 24000}, "states shape 24000x24000x4, 4.61 GB of voxels; at most"),
     (lambda _: {"Rows": 12000, "Columns": 12000}, "1.15 GB of voxels in files of 0.002 MB, over 1000")],
)  # fmt: skip
def test_images_that_do_not_form_one_stack_are_refused(write_series, changed, shown):
    assert shown in refusal(write_series(scan(), values=changed))


def test_distances_that_are_rounded_differently_are_read(write_series):
    rounded = lambda number: {"ImagePositionPatient": [0, 0, round(0.625 * number, 1)]}  # noqa: E731
    volume = opened(write_series(scan((9, 5, 6)), spacing_mm_zyx=(0.625, 1, 1), values=rounded))
    assert volume.spacing_mm_zyx == pytest.approx((0.625, 1, 1))


def test_a_series_of_one_image_is_refused(write_series):
    message = refusal(write_series(scan((1, 5, 6))))
    assert "series: is a 2D image, 6x5 in a series of 1; a volume has at least 2 images" in message


HEADERS = tomllib.loads(Path(__file__).with_name("refused_headers.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "value", "shown"), HEADERS["refused"])
def test_a_header_that_does_not_do_is_refused_with_its_value(write_series, name, value, shown):
    def change(image: Dataset, number: int) -> None:
        if value == "nothing":
            delattr(image, name)
        elif value == "many":
            image.add(pydicom.DataElement(0x00281053, "LO", value))
        else:
            setattr(image, name, [Dataset()] if value == [{}] else value)

    message = refusal(write_series(scan(), change=change))
    assert shown in message
    assert message.split(": ")[0].endswith((".dcm", "series"))


@pytest.mark.filterwarnings("ignore:.*Number of Frames:UserWarning")  # pydicom warns besides
@pytest.mark.parametrize("value", [None, [2, 3], ["a", "b"], "a"])
def test_a_value_of_another_type_is_read_or_refused_by_name(write_series, value):
    for name in NEEDED:
        values = {name: value}
        with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):  # pydicom writes none of it
            folder = write_series(scan(), name, values=lambda number, values=values: values)
            with contextlib.suppress(DataError):
                read(VolumeRef(path=str(folder)))


@pytest.mark.parametrize(
    ("name", "value"), [("Modality", "MR"), ("RescaleType", "MGML"), ("RescaleType", "US")]
)
def test_other_units_are_read_as_arbitrary_and_unspecified_ones_as_hounsfield_units(
    write_series, name, value
):
    folder = write_series(scan(), values=lambda number: {name: value})
    assert opened(folder, intensity="hu" if value == "US" else "arbitrary").shape_zyx == SHAPE


@pytest.mark.parametrize(("name", "content"), [("96.dcm", b""), ("empty", b""), ("95.dcm", b"no image")])
def test_a_lost_image_is_not_left_aside(write_series, name, content):
    folder = write_series(scan())
    (folder / name).write_bytes(content)
    message = refusal(folder)
    assert f"{folder}/{name}: lies in a DICOM folder and holds no DICOM, {len(content)} bytes" in message


def test_a_file_that_is_no_dicom_is_named(tmp_path):
    (tmp_path / "a.dcm").write_bytes(b"\x08\x00" + bytes(range(200)))
    with pytest.raises(DataError, match=r"a\.dcm: "):
        opened(tmp_path / "a.dcm")
