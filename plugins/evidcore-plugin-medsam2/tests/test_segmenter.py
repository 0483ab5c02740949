import numpy as np
import pytest
import torch
from evidcore_plugin_medsam2.pixels import greys, pixels, to_slice
from evidcore_plugin_medsam2.segmenter import MedSam2
from evidcore_testing import check_segmenter
from evidcore_testing.data import save_nifti
from seeded import SMALL_PX, seeded_model, small_config
from stock import StockSession

from evidcore.api import Box, DataError, VolumeRef
from evidcore.contracts import BoxPrompt, MaskPrompt, PointPrompt

SHAPE = (7, 60, 90)
BOX = BoxPrompt(box=Box(z=3, y0=20, y1=40, x0=30, x1=60))
POINT = PointPrompt(z=2, y=30, x=44)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))


def segmenter(home, **options):
    return MedSam2(home, home / "cache", folder="small", **options)


def scan(home, name="scan.nii.gz", **marks):
    return VolumeRef(path=str(home / name), **marks)


class Passes:
    """Counts how often a part of the network is run."""

    def __init__(self, segmenter, part):
        self.count = 0
        getattr(segmenter.network().model, part).register_forward_hook(self.more)

    def more(self, *_):
        self.count += 1


def test_it_keeps_the_contract(home):
    shown = np.zeros(SHAPE[1:], dtype=bool)
    shown[22:38, 34:56] = True
    check_segmenter(segmenter(home), scan(home), [BOX, POINT, MaskPrompt(z=1, mask=shown)])


def test_a_mask_is_what_the_stock_session_finds_in_the_windowed_volume(home, values):
    made = segmenter(home, propagate="box")
    result = made.session(scan(home)).mask([BOX])
    shown = [pixels(greys(plane, -160, 240), SMALL_PX) for plane in values]
    logits = StockSession(made.network().model, torch.stack(shown), SHAPE[1:]).track(BOX)
    wanted = to_slice(torch.from_numpy(logits), SHAPE[1:]).numpy()
    assert (result == wanted).mean() > 0.9999
    assert 0.01 < wanted.mean() < 0.99


def test_each_slice_is_encoded_once_and_each_prompt_answered_once(home):
    made = segmenter(home)
    encoded, followed = Passes(made, "vision_encoder"), Passes(made, "memory_attention")
    made.session(scan(home)).mask([BOX], (2, 5))
    assert (encoded.count, followed.count) == (3, 2)  # the window's slices alone
    made.session(scan(home)).mask([BOX, BOX], (2, 5))
    assert (encoded.count, followed.count) == (3, 2)
    made.session(scan(home)).mask([POINT])
    assert (encoded.count, followed.count) == (7, 2 + 6)
    made.session(scan(home)).mask([BOX])  # another window is another question
    assert (encoded.count, followed.count) == (7, 8 + 6)


def test_what_is_kept_stays_below_its_limit_and_changes_no_mask(home):
    roomy = segmenter(home)
    wanted = roomy.session(scan(home)).mask([BOX])
    one_slice = roomy.session(scan(home)).look([0]).size_bytes
    tight = segmenter(home, kept_gb=2.5 * one_slice / 1e9)
    np.testing.assert_array_equal(tight.session(scan(home)).mask([BOX]), wanted)
    assert 0 < tight.cache.bytes <= 2.5 * one_slice
    none = segmenter(home, kept_gb=0.0)
    np.testing.assert_array_equal(none.session(scan(home)).mask([BOX]), wanted)
    assert none.cache.bytes == 0


def test_features_in_half_precision_take_half_the_room_and_move_few_voxels(home):
    exact, half = segmenter(home), segmenter(home, half_features=True)
    item, other = (made.session(scan(home)).mask([BOX]) for made in (exact, half))
    assert (item == other).mean() > 0.99
    masks = np.packbits(item).nbytes
    assert half.cache.bytes - masks == (exact.cache.bytes - masks) / 2


def test_features_outlive_the_process_where_the_recipe_says_so(home, tmp_path):
    def made(**options):
        options = {"folder": "small", "on_disk": True, **options}
        return MedSam2(home, tmp_path, **options)

    first = made()
    wanted = first.session(scan(home)).mask([BOX], (2, 5))
    files = sorted((tmp_path / "medsam2").glob("*-*"))
    assert len(files) == 3
    later = made()
    encoded = Passes(later, "vision_encoder")
    np.testing.assert_array_equal(later.session(scan(home)).mask([BOX], (2, 5)), wanted)
    assert encoded.count == 0
    for other in ({"window_hu": (-100.0, 100.0)}, {"half_features": True}):
        made(**other).session(scan(home)).mask([BOX], (3, 4))
    assert len(list((tmp_path / "medsam2").glob("*-*"))) == 5  # each sees something else


def test_features_of_another_checkpoint_are_not_taken_for_ones_own(home, tmp_path):
    other = seeded_model(small_config())
    with torch.no_grad():
        for weight in other.vision_encoder.parameters():
            weight.mul_(-1.0)
    other.save_pretrained(tmp_path / "other")

    def mask(**options):
        return MedSam2(home, tmp_path, **options).session(scan(home)).mask([BOX], (3, 4))

    mask(folder="small", on_disk=True)
    wanted = mask(folder=str(tmp_path / "other"))
    assert (wanted != mask(folder="small")).any()
    np.testing.assert_array_equal(mask(folder=str(tmp_path / "other"), on_disk=True), wanted)


def test_volumes_of_equal_content_share_what_is_kept(home, tmp_path):
    made = segmenter(home)
    encoded = Passes(made, "vision_encoder")
    made.session(scan(home)).mask([BOX])
    (tmp_path / "copy.nii.gz").write_bytes((home / "scan.nii.gz").read_bytes())
    made.session(scan(tmp_path, "copy.nii.gz")).mask([BOX])
    assert encoded.count == SHAPE[0]
    made.session(scan(home, intensity="arbitrary")).mask([BOX])
    assert encoded.count == 2 * SHAPE[0]


def test_arbitrary_intensities_are_shown_by_their_percentiles(home, tmp_path, values):
    array = values.astype(np.float32)
    low, high = np.percentile(array, [0.5, 99.5])
    save_nifti(tmp_path / "mr.nii.gz", array / 1024)  # a power of two: the greys are the same to the bit
    save_nifti(tmp_path / "same.nii.gz", array)
    hu = segmenter(home, window_hu=(float(low), float(high))).session(scan(tmp_path, "same.nii.gz"))
    mr = segmenter(home).session(scan(tmp_path, "mr.nii.gz", intensity="arbitrary"))
    np.testing.assert_array_equal(mr.look([3]).coarse, hu.look([3]).coarse)


def test_a_volume_of_one_value_is_grey_and_no_error(home, tmp_path):
    save_nifti(tmp_path / "flat.nii.gz", np.full(SHAPE, 7, dtype=np.int16))
    session = segmenter(home).session(scan(tmp_path, "flat.nii.gz", intensity="arbitrary"))
    assert session.mask([BOX]).shape == SHAPE


def test_bytes_are_taken_as_they_are_and_nothing_else_is(home, tmp_path, values):
    shown = np.stack([greys(plane, -160, 240) for plane in values])
    save_nifti(tmp_path / "bytes.nii.gz", shown)
    session = segmenter(home, arbitrary="bytes").session(
        scan(tmp_path, "bytes.nii.gz", intensity="arbitrary")
    )
    np.testing.assert_array_equal(session.mask([BOX]), segmenter(home).session(scan(home)).mask([BOX]))
    session = segmenter(home, arbitrary="bytes").session(scan(home, intensity="arbitrary"))
    least, most = values[3].min(), values[3].max()
    with pytest.raises(DataError, match=rf"slice 3 has values from {least} to {most}, .+ takes 0 to 255"):
        session.mask([BOX])
