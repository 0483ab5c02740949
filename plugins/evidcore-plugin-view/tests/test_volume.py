"""Three planes and 3D: NIfTI of the scan and its masks, NiiVue's pixels, and what is shown without WebGL."""

import re
import statistics
import time

import nibabel as nib
import numpy as np
import pytest
from evidcore_plugin_view import niivue
from evidcore_plugin_view.niivue import FetchError

from evidcore.api import MaskRef, VolumeRef, read_mask
from evidcore.api import read as read_volume

POINTING = "#task=point&scan=3d"


@pytest.fixture
def pointing(served, cases):
    """The first question that points at something: its line, and its case."""
    number = next(
        number
        for number, row in enumerate(served.routes.runs["a"].index("answers", "04-evaluate").rows())
        if row["task"] == "point"
    )
    return f"a:answers:04-evaluate:{number}", cases["abdomen"]["test"][0]


def drawn_in_3d(reader, overlay):
    """Wait until an overlay is on the canvas."""
    reader.page.wait_for_function(
        "(one) => document.querySelector('.volume')?.dataset.drawn?.split('|').includes(one)",
        arg=overlay,
        timeout=120_000,
    )
    reader.page.mouse.move(2, 2)
    reader.page.wait_for_timeout(500)


@pytest.mark.slow
def test_scan_and_mask_are_nifti_that_hold_nothing_but_voxels_and_grid(served, get, pointing, tmp_path):
    line, case = pointing
    name = sorted(case.masks)[0]
    while get(served, "scene", a=line)[1]["waiting"]:
        time.sleep(0.1)
    ref = VolumeRef(path=case.volumes[0].path)
    volume, result = read_volume(ref), {}
    for what, query in {"volume.nii": {}, "mask.nii": {"overlay": f"case/truth/{name}"}}.items():
        status, body = get(served, what, a=line, **query)
        assert status == 200
        assert case.patient.encode() not in body
        assert case.volumes[0].path.rsplit("/", 1)[-1].encode() not in body
        header = nib.Nifti1Image.from_bytes(body).header
        assert not any(bytes(header[field]).strip(b"\0") for field in ("descrip", "aux_file", "db_name"))
        assert nib.aff2axcodes(nib.Nifti1Image.from_bytes(body).affine) == ("R", "A", "S")
        result[what] = tmp_path / what
        result[what].write_bytes(body)
    again = read_volume(VolumeRef(path=str(result["volume.nii"])))
    assert np.array_equal(again.array, volume.array)
    assert np.allclose(again.affine, volume.affine, atol=1e-3)
    mask = read_mask(MaskRef(path=str(result["mask.nii"])), again)
    assert np.array_equal(mask, read_mask(case.masks[name], volume))


@pytest.mark.slow
@pytest.mark.usefixtures("with_niivue")
def test_three_planes_and_3d_follow_switches_windows_and_clicks(browser, serve, looked, open_page, pointing):
    case = pointing[1]
    name = sorted(case.masks)[0]
    mask_id = f"case/truth/{name}"
    reader = open_page(browser, serve(looked))  # its data sets tell of masks after the scan is drawn
    reader.go(POINTING)
    page = reader.page
    drawn_in_3d(reader, mask_id)
    mask = read_mask(case.masks[name], read_volume(case.volumes[0]))
    areas = [mask.sum(axis=others) for others in ((1, 2), (0, 2), (0, 1))]
    middle = [statistics.median_high(np.flatnonzero(area == area.max())) for area in areas]
    fullest = [areas[0].argmax(), *middle[1:]]  # the box is there
    page.wait_for_selector(f'.volume[data-painted="{" ".join(map(str, fullest))}"]')
    with_mask = reader.shot(".volume")
    assert (with_mask.max(axis=2) > 40).mean() > 0.1  # not blank
    assert np.ptp(with_mask.reshape(-1, 3), axis=0).min() > 100
    greenish = (with_mask[..., 1] - with_mask[..., 0] > 40).sum()
    page.locator(f'input[data-overlay="{mask_id}"]').uncheck()
    page.wait_for_function(f"() => !document.querySelector('.volume').dataset.drawn.includes('{mask_id}')")
    page.wait_for_timeout(300)
    without = reader.shot(".volume")
    assert (without[..., 1] - without[..., 0] > 40).sum() < 0.2 * greenish
    page.locator(f'input[data-overlay="{mask_id}"]').check()
    drawn_in_3d(reader, mask_id)
    assert np.abs(reader.shot(".volume") - with_mask).mean() < 1  # and back
    page.click('[data-window="bone"]')
    page.wait_for_timeout(500)
    assert np.abs(reader.shot(".volume") - with_mask).mean() > 2
    box = page.locator(".volume canvas").bounding_box()
    page.mouse.click(box["x"] + 0.2 * box["width"], box["y"] + 0.3 * box["height"])
    page.wait_for_function("() => /HU/.test(document.querySelector('.under').textContent)")
    told = page.locator(".under").inner_text().replace("\N{MINUS SIGN}", "-")
    value, *place = (float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", told))
    volume = read_volume(case.volumes[0])
    voxel = np.rint(np.linalg.inv(volume.affine) @ [*place, 1.0])[:3].astype(int)
    assert value == pytest.approx(float(volume.array[tuple(voxel)]), abs=0.1)
    assert page.locator(".slice").inner_text().startswith(f"{voxel[0]} /")
    page.click('[data-mode="slices"]')
    reader.painted(voxel[0])
    reader.painted(voxel[1], "coronal")
    reader.painted(voxel[2], "sagittal")
    assert "scan=3d" not in page.url


@pytest.mark.slow
@pytest.mark.usefixtures("with_niivue")
@pytest.mark.parametrize(
    "missing", ["WebGL 2, which this browser does not offer.", "NiiVue, which is not installed"]
)
def test_without_webgl_or_niivue_slices_are_shown_and_a_sentence_says_why(
    chromium, browser, served, open_page, monkeypatch, tmp_path, missing
):
    if missing.startswith("NiiVue"):
        monkeypatch.setattr(niivue, "ASSET", tmp_path / "niivue.js")
        missing += ": run python -m evidcore_plugin_view.niivue."
    reader = open_page(browser if missing.startswith("NiiVue") else chromium("--disable-3d-apis"), served)
    reader.go(POINTING)
    reader.ready()
    assert reader.page.locator(".refusal").inner_text() == f"3D needs {missing} Slices are shown."
    assert (reader.colours().max() > 100, reader.page.locator(".volume").count()) == (True, 0)


def test_an_archive_with_another_hash_is_refused_and_npm_that_is_missing_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "npm").write_text("#!/bin/sh\nprintf other > niivue-0.69.0.tgz\n")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    asset = tmp_path / "niivue.js"
    with pytest.raises(FetchError, match=re.escape(f"{niivue.INTEGRITY} is wanted")):
        niivue.fetch(asset)
    assert not asset.exists()
    (folder / "npm").write_text("#!/bin/sh\necho no network >&2\nexit 7\n")
    with pytest.raises(FetchError, match="exit 7: no network"):
        niivue.fetch(asset)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match=f"npm is not installed, and it fetches {niivue.PACKAGE}"):
        niivue.fetch(asset)
