"""Anatomy, not shape, proves orientation: where organs lie in real scans of every kind of file."""

from pathlib import Path

import nibabel
import numpy as np
import pytest

from evidcore.api import MaskRef, VolumeRef, read, read_mask
from evidcore.data import Volume

# Labels of the organs in the label map that comes with the scan.
SPLEEN, LIVER, RIGHT_LUNG, BLADDER, VERTEBRA, AORTA = 1, 5, 14, 21, 28, 52
ORGANS = (SPLEEN, LIVER, RIGHT_LUNG, BLADDER, VERTEBRA, AORTA)


@pytest.fixture
def organs(real_data) -> Path:
    return real_data / "totalsegmentator/example_seg_fast_force_split.nii.gz"


@pytest.fixture
def scan(real_data) -> Path:
    return real_data / "totalsegmentator/example_ct.nii.gz"


def anatomy(volume: Volume, masks: dict[int, np.ndarray]) -> None:
    """Check a scan of the trunk in body axes: z upwards, y backwards, x to the left."""
    z, y, x = np.array([np.argwhere(masks[label]).mean(axis=0) for label in ORGANS]).T
    place = {label: (z[number], y[number], x[number]) for number, label in enumerate(ORGANS)}
    assert place[LIVER][2] < place[SPLEEN][2] - 20, "the liver lies on the patient's right"
    assert place[RIGHT_LUNG][2] < place[VERTEBRA][2]
    assert place[VERTEBRA][1] > place[AORTA][1], "the spine lies behind the aorta"
    assert place[RIGHT_LUNG][0] > place[BLADDER][0] + 50, "the lungs lie above the bladder"
    liver, lung, spine = (volume.array[masks[label]].mean() for label in (LIVER, RIGHT_LUNG, VERTEBRA))
    assert 20 < liver < 200
    assert lung < -500
    assert spine > liver, "bone is denser"


def reoriented(file: Path, path: Path, axes: str) -> str:
    image, codes = nibabel.load(file), nibabel.orientations.axcodes2ornt(axes)
    turn = nibabel.orientations.ornt_transform(nibabel.io_orientation(image.affine), codes)
    nibabel.save(image.as_reoriented(turn), path)
    return str(path)


@pytest.mark.parametrize("axes", ["RAS", "LPS", "SAL"])
def test_organs_lie_where_they_belong_in_files_of_any_axes(scan, organs, tmp_path, axes):
    volume = read(VolumeRef(path=reoriented(scan, tmp_path / "scan.nii", axes)))
    labels = reoriented(organs, tmp_path / "organs.nii", "LPS")
    masks = {label: read_mask(MaskRef(path=labels, label=label), volume) for label in ORGANS}
    anatomy(volume, masks)
