"""Structure sets on the grid of their volume."""

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from evidcore_plugin_dicom.contours import fill
from matplotlib.path import Path as Polygon
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ImplicitVRLittleEndian, RTStructureSetStorage
from read_scans import opened, refused

from evidcore.api import MaskRef, VolumeRef, read_mask
from evidcore.data import volume_cache

SHAPE = (6, 12, 14)
SPACING = (3.0, 2.0, 1.0)


def structure_set(
    path: Path, regions: Mapping[str, list[np.ndarray]] | list[Any], kind: str = "CLOSED_PLANAR"
) -> str:
    """Write a structure set of named regions; a contour is (corner, xyz) in mm."""
    regions = list(regions.items()) if isinstance(regions, Mapping) else regions
    whole = Dataset()
    whole.file_meta = FileMetaDataset()
    whole.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    whole.SOPClassUID = whole.file_meta.MediaStorageSOPClassUID = RTStructureSetStorage
    whole.SOPInstanceUID = whole.file_meta.MediaStorageSOPInstanceUID = "1.2.7"
    whole.Modality = "RTSTRUCT"
    whole.StructureSetROISequence, whole.ROIContourSequence = Sequence(), Sequence()
    for number, (name, contours) in enumerate(regions, start=1):
        region, drawn = Dataset(), Dataset()
        region.ROINumber, region.ROIName = number, name
        drawn.ReferencedROINumber, drawn.ContourSequence = number, Sequence()
        for corners in contours:
            contour = Dataset()
            contour.ContourGeometricType, contour.NumberOfContourPoints = kind, len(corners)
            contour.ContourData = [round(float(value), 4) for value in np.ravel(corners)]
            drawn.ContourSequence.append(contour)
        whole.StructureSetROISequence.append(region)
        whole.ROIContourSequence.append(drawn)
    whole.save_as(path, enforce_file_format=True)
    return str(path)


def rectangle(z: float, y: tuple[float, float], x: tuple[float, float]) -> np.ndarray:
    """Corners on one axial slice, in voxels, as x, y, z in mm."""
    corners = ((y[0], x[0]), (y[0], x[1]), (y[1], x[1]), (y[1], x[0]))
    return np.array([[column * 1.0, row * 2.0, z * 3.0] for row, column in corners])


def test_contours_fill_the_voxels_whose_centres_they_enclose(write_series, tmp_path):
    volume = opened(write_series(np.zeros(SHAPE, np.int16), "images", SPACING))
    outer, hole = rectangle(2, (1.5, 8.5), (2.5, 10.5)), rectangle(2, (3.5, 5.5), (4.5, 6.5))
    island, other = rectangle(2, (9.5, 11.4), (0.6, 3.4)), rectangle(4, (0.5, 2.5), (0.5, 1.5))
    path = structure_set(tmp_path / "rs.dcm", {"lesion": [outer, hole, island, other]})
    expected = np.zeros(SHAPE, bool)
    expected[2, 2:9, 3:11], expected[2, 4:6, 5:7] = True, False
    expected[2, 10:12, 1:4], expected[4, 1:3, 1] = True, True
    np.testing.assert_array_equal(read_mask(MaskRef(path=path, key="lesion"), volume), expected)


LARGE, SMALL = ((1.5, 8.5), (2.5, 10.5)), ((3.5, 5.5), (4.5, 6.5))  # 56 voxels, 4 of them
ACROSS, FAR = ((5.5, 10.5), (8.5, 12.5)), ((4.1, 4.9), (5.1, 5.9))  # 20, 6 of them in LARGE; no centre


@pytest.mark.parametrize(
    ("drawn", "united", "flipped"),
    [
        ([LARGE, LARGE], 56, 0),
        ([SMALL, LARGE, SMALL], 52, 56),
        ([LARGE, ACROSS], 70, 64),
        ([ACROSS, SMALL, LARGE, FAR], 66, 60),
        ([LARGE, (*LARGE, 0.15)], 56, 56),
        ([LARGE, (*SMALL, 0.01)], 52, 52),
        ([LARGE, (*SMALL, 0.15)], 56, 56),
    ],
)
def test_contours_that_overlap_are_united_and_those_within_others_are_holes(
    write_series, tmp_path, drawn, united, flipped
):
    volume = opened(write_series(np.zeros(SHAPE, np.int16), "images", SPACING))
    contours = [rectangle(2 + sum(off), y, x) for y, x, *off in drawn]
    for kind, count in {"CLOSED_PLANAR": united, "CLOSEDPLANAR_XOR": flipped}.items():
        path = structure_set(tmp_path / "rs.dcm", {"lesion": contours}, kind)
        assert read_mask(MaskRef(path=path), volume).sum() == count


def test_a_zigzag_over_all_rows_is_filled_in_bounded_memory_or_refused(write_series, tmp_path):
    volume = opened(write_series(np.zeros((6, 1200, 4), np.int16), "images", (3, 1, 1)))
    zigzag = np.array([[1 + k % 2, 1199 * (k % 2), 6] for k in range(90_000)])
    path = structure_set(tmp_path / "rs.dcm", {"lesion": [zigzag]})
    said = "rs.dcm: region 1 crosses the rows of its volume more than 100000000 times"
    assert said in refused(MaskRef(path=path), volume)
    tracemalloc.start()
    fill(zigzag[:20_000, 1::-1].astype(float), (1200, 4))
    assert tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()


def test_contours_on_sagittal_images_are_filled_across_them(write_series, tmp_path):
    volume = opened(write_series(np.zeros(SHAPE, np.int16), "images", SPACING, "PSR"))
    edges = [(0.5, 1.5), (0.5, 7.5), (4.5, 7.5), (4.5, 1.5)]
    corners = np.array([[5.0, y * 2.0, z * 3.0] for z, y in edges])
    path = structure_set(tmp_path / "rs.dcm", {"lesion": [corners]})
    expected = np.zeros(SHAPE, bool)
    expected[1:5, 2:8, 5] = True
    np.testing.assert_array_equal(read_mask(MaskRef(path=path), volume), expected)


@pytest.mark.parametrize("seed", range(8))
def test_a_polygon_is_filled_as_matplotlib_fills_it(seed):
    # second opinion on curves that cross themselves too: matplotlib winds, so only simple ones are compared
    random = np.random.default_rng(seed)
    angles = np.sort(random.uniform(0, 2 * np.pi, 25))
    radii = random.uniform(3, 14, 25)
    corners = np.stack([15 + radii * np.sin(angles), 13 + radii * np.cos(angles)], axis=1)
    grid = np.array(list(np.ndindex(30, 28)))
    inside = Polygon(corners).contains_points(grid).reshape(30, 28)
    np.testing.assert_array_equal(fill(corners, (30, 28)), inside)


def test_a_polygon_that_crosses_itself_is_filled_where_a_ray_leaves_it_an_odd_number_of_times():
    bow = np.array([[0.5, 0.5], [6.5, 6.5], [6.5, 0.5], [0.5, 6.5]])
    filled = fill(bow, (8, 8))
    for row, column in np.ndindex(8, 8):
        crossings = 0
        for (r0, c0), (r1, c1) in zip(bow, np.roll(bow, -1, axis=0), strict=True):
            if (r0 > row) != (r1 > row):
                crossings += c0 + (row - r0) * (c1 - c0) / (r1 - r0) <= column
        assert filled[row, column] == (crossings % 2 == 1)
    assert 0 < filled.sum() < 36


def test_neighbouring_polygons_share_no_voxel_and_leave_none_out():
    left = fill(np.array([[0, 0], [0, 4], [8, 4], [8, 0]], float), (9, 9))
    right = fill(np.array([[0, 4], [0, 8], [8, 8], [8, 4]], float), (9, 9))
    assert not (left & right).any()
    assert (left | right)[:8, 1:8].all()


def test_a_region_is_named_by_name_or_number(write_series, tmp_path):
    volume = opened(write_series(np.zeros(SHAPE, np.int16), "images", SPACING))
    item, two = rectangle(1, (1.5, 3.5), (1.5, 3.5)), rectangle(2, (1.5, 4.5), (1.5, 4.5))
    path = structure_set(tmp_path / "rs.dcm", {"heart": [item], "lung": [two], "empty": []})
    assert read_mask(MaskRef(path=path, key="heart"), volume).sum() == 4
    assert read_mask(MaskRef(path=path, key="2"), volume).sum() == 9
    assert read_mask(MaskRef(path=path, label=2), volume).sum() == 9
    assert read_mask(MaskRef(path=path, label=3), volume).sum() == 0
    alone = structure_set(tmp_path / "one.dcm", {"heart": [item]})
    assert read_mask(MaskRef(path=alone), volume).sum() == 4
    assert "holds 3 regions: 1 'heart', 2 'lung', 3 'empty'. Name one" in refused(MaskRef(path=path), volume)
    assert "holds no region 'hart'. Did you mean 'heart'? It holds: 1 'heart', 2" in refused(
        MaskRef(path=path, key="hart"), volume
    )
    assert "holds no region '7'. It holds" in refused(MaskRef(path=path, label=7), volume)
    assert "key 'heart' and label 1 both pick a" in refused(MaskRef(path=path, key="heart", label=1), volume)
    twins = structure_set(tmp_path / "two.dcm", [("lung", [item]), ("lung", [two])])
    assert "2 regions are called 'lung'. It holds: 1 'lung', 2 'lung'. Name one by its number" in refused(
        MaskRef(path=twins, key="lung"), volume
    )


def test_a_region_of_another_patient_or_frame_of_reference_is_refused(write_series, tmp_path):
    stated = {"PatientID": "SECRET-1", "FrameOfReferenceUID": "1.5"}
    folder = write_series(np.zeros(SHAPE, np.int16), "images", SPACING, values=lambda number: stated)
    region = rectangle(1, (1.5, 3.5), (1.5, 3.5))
    whole = pydicom.dcmread(structure_set(tmp_path / "rs.dcm", {"lesion": [region], "other": [region]}))
    lesion, other = whole.StructureSetROISequence
    whole.ReferencedFrameOfReferenceSequence = [Dataset()]
    ref = MaskRef(path=str(tmp_path / "rs.dcm"), key="lesion")
    ways = (opened(folder), volume_cache.get_or_put(VolumeRef(path=str(folder))).volume())
    for held, name, value in (
        (whole, "PatientID", "SECRET-2"),
        (lesion, "ReferencedFrameOfReferenceUID", "1.6"),
        (whole, "FrameOfReferenceUID", "1.6"),
        (whole.ReferencedFrameOfReferenceSequence[0], "FrameOfReferenceUID", "1.6"),
    ):
        setattr(held, name, value)
        other.ReferencedFrameOfReferenceUID = "1.5"  # each region may have its own
        whole.save_as(ref.path)
        for volume in ways:
            message = refused(ref, volume)
            assert f"another {name.removeprefix('Referenced')} than the images of its volume. Name" in message
            assert "SECRET" not in message
        setattr(held, name, None)
    whole.PatientID, lesion.ReferencedFrameOfReferenceUID = stated.values()
    whole.save_as(ref.path)
    assert [read_mask(ref, volume).sum() for volume in ways] == [4, 4]


def test_contours_off_the_grid_are_refused(write_series, tmp_path):
    volume = opened(write_series(np.zeros(SHAPE, np.int16), "images", SPACING))

    def wrong(*contours: np.ndarray, kind: str = "CLOSED_PLANAR") -> str:
        path = structure_set(tmp_path / "rs.dcm", {"lesion": list(contours)}, kind)
        return refused(MaskRef(path=path), volume)

    good = rectangle(1, (1.5, 3.5), (1.5, 3.5))
    assert (
        "a contour lies 0.40 slices off the nearest slice of its volume 6x12x14 voxels of 3x2x1 mm"
        in wrong(good, rectangle(2.4, (1.5, 3.5), (1.5, 3.5)))
    )
    assert "1 of 2 contours lie outside the volume 6x12x14 voxels" in wrong(
        good, rectangle(7, (1, 3), (1, 3))
    )
    assert "1 of 1 contours lie outside the volume" in wrong(rectangle(1, (-2, 3), (1, 3)))
    for z in (-1, -0.8, 5.8, 6):
        assert "1 of 2 contours lie outside the volume" in wrong(good, rectangle(z, (1.5, 3.5), (1.5, 3.5)))
    assert "region 1 has a contour of type 'POINT', which encloses nothing; expected" in wrong(
        good, kind="POINT"
    )
    assert "region 1 has a contour of 2 readable corners, expected at least 3" in wrong(good[:2])


def test_a_region_that_leaves_slices_out_is_refused_and_parts_that_lie_apart_are_read(write_series, tmp_path):
    volume = opened(write_series(np.zeros((12, 12, 14), np.int16), "images", SPACING))
    for drawn, between in (((1, 3, 5, 7), 1), ((0, 3, 6), 2), ((1, 2, 3, 9, 10), 0), ((1, 9), 0)):
        contours = [rectangle(z, *LARGE) for z in drawn]
        ref = MaskRef(path=structure_set(tmp_path / "rs.dcm", {"lesion": contours}))
        if between:
            assert f"region 1 was drawn on one of {between + 1} slices, and goes on in" in refused(
                ref, volume
            )
        else:
            assert np.flatnonzero(read_mask(ref, volume).any((1, 2))).tolist() == [*drawn]


def test_contours_that_are_rounded_beyond_the_outermost_slices_lie_on_them(write_series, tmp_path):
    volume = opened(write_series(np.zeros(SHAPE, np.int16), "images", SPACING))
    ends = [rectangle(z, (1.5, 3.5), (1.5, 3.5)) for z in (-0.2, 5.2)]
    mask = read_mask(MaskRef(path=structure_set(tmp_path / "rs.dcm", {"lesion": ends})), volume)
    assert mask.sum(axis=(1, 2)).tolist() == [4, 0, 0, 0, 0, 4]


def test_a_real_structure_set_is_the_mask_of_the_nifti_file(real_data):
    volume = opened(real_data / "ibsi_validation_dicom/STS_019/CT/image")
    drawn = real_data / "ibsi_validation_dicom/STS_019/CT/mask/RS.dcm"
    contours = read_mask(MaskRef(path=str(drawn), key="GTV_Mass_CT"), volume)
    mask = read_mask(MaskRef(path=str(real_data / "ibsi_validation/STS_019/CT_mask.nii.gz")), volume)
    assert 2 * (contours & mask).sum() / (contours.sum() + mask.sum()) >= 0.97
