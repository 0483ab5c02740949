"""DICOM and NRRD keep the contract of a format."""

from pathlib import Path

import nrrd
import numpy as np
import pytest
from evidcore_plugin_dicom.dicom import Dicom
from evidcore_plugin_dicom.nrrd import Nrrd
from evidcore_plugin_dicom.phantom import write_series
from evidcore_testing import check_written

from evidcore.api import VolumeRef


def write_nrrd(path, array):
    header = {"space": "LPS", "space directions": np.diag([1.0, 2.0, 3.0]), "encoding": "raw"}
    nrrd.write(path, array.T, header)
    return VolumeRef(path=path)


def write_dicom(path, array):
    folder = Path(path).parent
    write_series(folder, array)
    return VolumeRef(path=str(folder))


@pytest.mark.parametrize(
    ("format", "ending", "write"),
    [(Dicom, "dcm", write_dicom), (Nrrd, "nrrd", write_nrrd), (Nrrd, "nhdr", write_nrrd)],
)
def test_a_format_keeps_the_contract(format, ending, write, tmp_path):
    check_written(format(), ending, write, tmp_path)
