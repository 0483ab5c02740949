"""What does not fit into memory is told from its header, with the need and what is free."""

import gzip
import os
import re
import resource

import nibabel
import numpy as np
import psutil
import pytest
from evidcore_plugin_doctor.inspection import VOXEL_BYTES, free_bytes, refuse_oversized

from evidcore.api import DataError, VolumeRef
from evidcore.data import Geometry


def promise(path, shape_xyz):
    """Write a header before a few packed zeros: unpacking must not be tried."""
    header = nibabel.Nifti1Header()
    header.set_data_shape(shape_xyz)
    header.set_data_dtype(np.int16)
    header.set_zooms((0.7, 0.7, 1.0))
    header.set_sform(np.diag([-0.7, -0.7, 1.0, 1.0]), 1)
    header["magic"], header["vox_offset"] = b"n+1", 352
    path.write_bytes(gzip.compress(header.binaryblock + bytes(1000)))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_scan_too_large_for_memory_is_a_fault_of_its_case(home, tools, processes):
    """Below what a header may state, and beyond the address space that a shell or scheduler allows."""
    promise(home.add("large"), (1000, 1000, 2000))
    huge = home.folder / "huge.nii"
    promise(huge, (1000, 1000, 2000))
    huge.write_bytes(gzip.decompress(huge.read_bytes()))
    os.truncate(huge, 352 + 4 * 10**9)  # a sparse file: hardly any of it lies on the disk
    home.add("fine", tools.torso(1), masks={"lung": "huge.nii"})
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        limit = psutil.Process().memory_info().vms + 2 * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        (fault, mask), summary = home.check(processes=processes)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert (fault.case, fault.check, fault.severity) == ("large", "file", "error")
    assert re.search(r"2000 x 1000 x 1000 voxels .* take 22.4 GiB .* [0-2]\.\d GiB are free", fault.text)
    assert (mask.case, mask.text[:49]) == ("fine", "'lung': is too large for the memory that is left.")
    assert summary.volumes == 1


def test_processes_share_what_is_free():
    side = int((0.7 * free_bytes() / VOXEL_BYTES) ** (1 / 3))
    geometry = Geometry(shape_zyx=(side, side, side), affine=np.eye(4))
    ref = VolumeRef(path="scan.nii.gz")
    refuse_oversized(ref, geometry, 1)
    with pytest.raises(DataError, match=r"scan.nii.gz: is too large for memory: .* for each of 4 processes"):
        refuse_oversized(ref, geometry, 4)
