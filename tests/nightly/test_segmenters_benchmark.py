"""The audit of segmenters on real CT, tried on generated files that lie as the real ones do."""

import sys

import nibabel
import numpy as np
import pytest
from evidcore_plugin_segmenters.slice_propagator import SlicePropagator
from evidcore_testing import volume_case

SCRIPT = "segmenters"


@pytest.fixture
def shared(tmp_path, monkeypatch):
    folder = tmp_path / "shared"
    for number in range(6):
        scan = folder / "ibsi_validation" / f"STS_{number}"
        scan.mkdir(parents=True)
        case = volume_case(tmp_path, 2 * number)
        image = nibabel.load(case.volumes[0].path)
        nibabel.save(image, scan / "CT_image.nii.gz")
        mask = np.load(tmp_path / f"case-{2 * number}.npz")["lung nodule"].astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(mask.transpose(2, 1, 0), image.affine), scan / "CT_mask.nii.gz")
    (folder / "medsam2").mkdir()
    pixels = np.clip((np.asarray(image.dataobj).transpose(2, 1, 0) + 1000) / 8, 0, 255).astype(np.uint8)
    np.savez(folder / "medsam2" / "CT_Lesion_1.npz", imgs=pixels, gts=mask, spacing=np.array([0.8, 0.9, 5.0]))
    monkeypatch.setenv("EVID_SHARED_DATA", str(folder))
    return folder


def test_all_sets_are_audited(script, shared, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["segmenters.py", "--segmenter", "region-growing", "--jitter", "0.5"])
    script.main()
    said = capsys.readouterr().out
    assert "sarcoma, first half: 3 CTs" in said
    assert "sarcoma, second half: 3 CTs" in said
    assert "crops, test: 1 objects of 1 patients" in said
    assert said.count("region-growing  oracle box") >= 3
    assert said.count("box moved 50 %") >= 3


@pytest.mark.slow
def test_the_propagator_is_audited_on_scans_that_it_has_not_seen(script, shared, monkeypatch, capsys):
    learned_from, fit = [], SlicePropagator.fit

    def spied(self, train, validation, folder, *rest, **options):
        learned_from.append({case.id for case in (*train, *validation)})
        fit(self, train, validation, folder, *rest, **options)

    monkeypatch.setattr(SlicePropagator, "fit", spied)
    monkeypatch.setattr(script, "STEPS", 1)
    monkeypatch.setattr(sys, "argv", ["segmenters.py"])
    script.main()
    assert learned_from == [{"STS_1", "STS_3", "STS_5"}, {"STS_0", "STS_2", "STS_4"}]
    said = capsys.readouterr().out
    first, second = said.split("sarcoma, second half")
    for name, half in (("first", first), ("second", second)):
        assert f"{name}, test: 3 objects" in half
        assert "slice-propagator  oracle box" in half


def test_it_ends_where_the_command_fails(script, shared, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["segmenters.py", "--segmenter", "no-such-segmenter"])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 2
    assert "no-such-segmenter" in capsys.readouterr().err


def test_a_crop_keeps_its_voxels_and_spacing(script, shared, tmp_path):
    ((name, volume, mask),) = script.lesions(shared, tmp_path)
    assert (name, mask) == ("CT_Lesion_1", "lesion=CT_Lesion_1_gts.nii")
    image = nibabel.load(tmp_path / volume)
    assert image.header.get_zooms() == pytest.approx((0.8, 0.9, 5.0))
    with np.load(shared / "medsam2" / "CT_Lesion_1.npz") as crop:
        assert np.array_equal(np.asarray(image.dataobj).transpose(2, 1, 0), crop["imgs"])
