"""A file format that somebody else wrote: installed by pip, then opened wherever the core opens a scan."""

import os
import subprocess
import sys

import numpy as np
import pytest
import SimpleITK
from evidcore_testing import check_construction, check_format

from evidcore.api import MaskRef, VolumeRef, find, read, read_mask
from evidcore.data import Geometry, Volume, save_mask, volume_cache
from evidcore.data.reading import read_error
from evidcore.registry.factory import build

VALUES = np.random.default_rng(0).integers(-1000, 1500, (20, 180, 160)).astype(np.int16)  # 1.2 MB
SPACING = (3.0, 2.0, 1.5)


@pytest.fixture(autouse=True)
def site(example_site, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(example_site)
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))
    return example_site


def write(path, array, *, packed=True):
    """Write a (z, y, x) array by another library."""
    image = SimpleITK.GetImageFromArray(array)
    image.SetSpacing(SPACING[::-1])
    image.SetOrigin((-5.0, 7.0, 11.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    SimpleITK.WriteImage(image, str(path), packed)
    return str(path)


@pytest.mark.parametrize("packed", [True, False])
def test_it_keeps_the_contract_of_a_format(tmp_path, packed):
    ref = VolumeRef(path=write(tmp_path / "scan" / "a.mha", VALUES, packed=packed))
    labels = (VALUES % 5).astype(np.uint8)
    mask = MaskRef(path=write(tmp_path / "labels" / "a.mha", labels, packed=packed), label=3)
    affine = np.diag([*SPACING, 1.0])
    affine[:3, 3] = (11.0, 7.0, -5.0)
    expected = Volume(array=VALUES, geometry=Geometry(shape_zyx=VALUES.shape, affine=affine), intensity="hu")
    check_construction(find("format", "mha").load())
    check_format(
        build("format", {"use": "mha"}, given={}, where="t"), ref, expected, mask=mask, inside=labels == 3
    )


def test_axes_turn_as_itk_says(tmp_path):
    image = SimpleITK.GetImageFromArray(VALUES)
    image.SetDirection((0, 0, 1, -1, 0, 0, 0, 1, 0))
    image.SetSpacing((1.0, 2.0, 3.0))
    SimpleITK.WriteImage(image, str(tmp_path / "a.mha"))
    SimpleITK.WriteImage(image, str(tmp_path / "a.nii"))
    mha, nii = (read(VolumeRef(path=str(tmp_path / name))) for name in ("a.mha", "a.nii"))
    np.testing.assert_array_equal(mha.array, nii.array)
    assert mha.geometry.fits(nii.geometry)


def test_the_core_reads_caches_and_saves_beside_it(tmp_path):
    ref = VolumeRef(path=write(tmp_path / "a.mha", VALUES))
    np.testing.assert_array_equal(read(ref).array, VALUES)
    assert volume_cache.get_or_put(ref).is_on_disk
    np.testing.assert_array_equal(volume_cache.get_or_put(ref).slice(7), VALUES[7])
    assert read_error(ref, tmp_path / "cache") is None
    save_mask(VALUES > 0, ref, tmp_path / "m.nii.gz")
    np.testing.assert_array_equal(read_mask(MaskRef(path=str(tmp_path / "m.nii.gz")), read(ref)), VALUES > 0)


@pytest.mark.slow
def test_a_data_set_of_such_files_passes_evid_data_check_in_two_processes(site, tmp_path):
    folder = tmp_path / "data"
    rows = ["id,volume,patient,split,masks"]
    for number in range(3):
        values = np.random.default_rng(number).integers(-1000, 1500, VALUES.shape).astype(np.int16)
        write(folder / f"{number}.mha", values)
        write(folder / f"m{number}.mha", (values > 1200).astype(np.uint8))
        rows.append(f"case-{number},{number}.mha,p{number},train,lesion=m{number}.mha#1")
    (folder / "cases.csv").write_text("\n".join(rows))
    command = [sys.executable, "-m", "evidcore", "data", "check", folder, "--processes", "2"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "data: 3 cases (train 3), 3 patients, 3 volumes, 3 masks" in done.stdout + done.stderr
