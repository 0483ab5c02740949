"""The audit of segmenters on real CT, tried on generated files that lie as the real ones do."""

import sys

import nibabel
import numpy as np
import pytest

from evidcore.testing import volume_case


@pytest.fixture
def script(benchmark):
    return benchmark("segmenters")


@pytest.fixture
def shared(tmp_path, monkeypatch):
    folder = tmp_path / "shared"
    scan = folder / "ibsi_validation" / "STS_1"
    scan.mkdir(parents=True)
    case = volume_case(tmp_path, 0)
    image = nibabel.load(case.volumes[0].path)
    nibabel.save(image, scan / "CT_image.nii.gz")
    mask = np.load(tmp_path / "case-0.npz")["lung nodule"]
    nibabel.save(
        nibabel.Nifti1Image(mask.astype(np.uint8).transpose(2, 1, 0), image.affine), scan / "CT_mask.nii.gz"
    )
    (folder / "medsam2").mkdir()
    pixels = np.clip((np.asarray(image.dataobj).transpose(2, 1, 0) + 1000) / 8, 0, 255).astype(np.uint8)
    np.savez(
        folder / "medsam2" / "CT_Lesion_1.npz",
        imgs=pixels, gts=mask.astype(np.uint8), spacing=np.array([0.8, 0.9, 5.0]),
    )  # fmt: skip
    monkeypatch.setenv("EVID_SHARED_DATA", str(folder))
    return folder


def test_both_sets_are_audited(script, shared, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["segmenters.py", "--segmenter", "region-growing", "--jitter", "0.5"])
    script.main()
    said = capsys.readouterr().out
    assert "sarcoma: 1 CTs" in said
    assert "lesions: 1 CTs" in said
    assert said.count("region-growing  oracle box") >= 2
    assert said.count("box moved 50 %") >= 2


def test_a_crop_keeps_its_voxels_and_spacing(script, shared, tmp_path):
    ((name, volume, mask),) = script.lesions(shared, tmp_path)
    assert (name, mask) == ("CT_Lesion_1", "lesion=CT_Lesion_1_gts.nii")
    image = nibabel.load(tmp_path / volume)
    assert image.header.get_zooms() == pytest.approx((0.8, 0.9, 5.0))
    with np.load(shared / "medsam2" / "CT_Lesion_1.npz") as crop:
        assert np.array_equal(np.asarray(image.dataobj).transpose(2, 1, 0), crop["imgs"])


def test_without_scans_it_says_what_to_set(script, tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_SHARED_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="set EVID_SHARED_DATA"):
        script.main()
