from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from evidcore_plugin_doctor.cache_filling import Filler, Wanted

from evidcore.case import Crop, VolumeRef
from evidcore.contracts import EncoderInput
from evidcore.volume import cache_root, content_key, prepare
from evidcore.volume.input_cache import get_input, put_input

SPEC = EncoderInput(size_zyx=(8, 16, 20), spacing_mm_zyx=None, windows=((-1000.0, 1000.0), (-160.0, 240.0)))
VALUES = np.random.default_rng(0).integers(-1000, 2001, (12, 220, 200)).astype(np.int16)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shown(write) -> Crop:
    return Crop(volume=VolumeRef(path=str(write(VALUES, "scan.nii"))))


def filler(**options) -> Filler:
    return Filler(spec=SPEC, **{"keeps_volumes": True, "began_s": 0.0, **options})


def wanted(crop: Crop, size=(8, 16, 20)) -> Wanted:
    return Wanted(case="a/train/1", volumes=(crop.volume,), shown=((crop, size),))


def test_a_kept_input_is_the_same_bits(shown):
    fresh = prepare(shown, SPEC)
    assert put_input(content_key(shown, SPEC), fresh.numpy())
    np.testing.assert_array_equal(get_input(shown, SPEC, SPEC.size_zyx), fresh.numpy())
    again = prepare(shown, SPEC)
    assert torch.equal(again, fresh)
    again.add_(1)  # it is the caller's own
    assert torch.equal(prepare(shown, SPEC), fresh)


def test_a_kept_input_is_used_and_a_damaged_one_is_made_again(shown, caplog):
    fresh = prepare(shown, SPEC)
    put_input(content_key(shown, SPEC), np.zeros_like(fresh.numpy()))
    assert prepare(shown, SPEC).abs().max() == 0
    (entry,) = (cache_root() / "inputs").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"\1")
    assert torch.equal(prepare(shown, SPEC), fresh)
    assert f"{entry}: slice 1 of 2 has another checksum; it is prepared again from" in caplog.text
    assert not entry.exists()


def test_a_box_reads_its_slices_alone_and_gives_the_same_bits(shown, monkeypatch):
    box = Crop(volume=shown.volume, box_zyx=(3, 5, 20, 120, 0, 200))
    monkeypatch.setenv("EVID_CACHE_GB", "0")
    alone = prepare(box, SPEC)
    monkeypatch.delenv("EVID_CACHE_GB")
    assert torch.equal(prepare(box, SPEC), alone)
    (entry,) = (cache_root() / "volumes").iterdir()
    held = bytearray(entry.read_bytes())
    held[held.index(VALUES[6].tobytes()[:64])] ^= 1
    entry.write_bytes(held)
    assert torch.equal(prepare(box, SPEC), alone)
    assert bytes(held) == entry.read_bytes(), "the damaged slice 6 was not looked at"


def test_a_whole_volume_that_is_kept_gives_the_same_bits(shown):
    alone = prepare(shown, SPEC)
    assert not (cache_root() / "volumes").exists(), "whole volumes are not kept unasked"
    filler()(Wanted(case="", volumes=(shown.volume,), shown=()))
    assert torch.equal(prepare(shown, SPEC), alone)


def test_volume_and_input_are_filled_once(shown):
    first = filler()(wanted(shown))
    assert (first.outcome, first.size_bytes) == ("done", VALUES.nbytes + 2 * 8 * 16 * 20 * 4)
    files = sorted(cache_root().rglob("*.safetensors"))
    assert [path.parent.name for path in files] == ["inputs", "volumes"]
    before = [path.read_bytes() for path in files]
    second = filler()(wanted(shown))
    assert (second.outcome, second.size_bytes) == ("already_there", 0)
    assert [path.read_bytes() for path in files] == before


def test_the_volume_may_be_left_aside(shown):
    assert filler(keeps_volumes=False)(wanted(shown)).outcome == "done"
    assert [path.name for path in cache_root().iterdir() if path.name != "hashes"] == ["inputs"]


def test_an_input_larger_than_its_voxels_is_not_kept(shown):
    large = wanted(shown, size=(16, 220, 200))
    assert filler(keeps_volumes=False)(large).outcome == "not_needed"


def test_what_this_fill_wrote_makes_no_room_for_the_rest_of_it(write, monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "0.0012")  # one of two
    refs = [VolumeRef(path=str(write(VALUES + shift, f"{shift}.nii"))) for shift in range(2)]
    asked = [Wanted(case=str(place), volumes=(ref,), shown=()) for place, ref in enumerate(refs)]
    for _ in range(2):
        outcomes = [filler()(one).outcome for one in asked]
        assert outcomes[1] == "no_room"
    assert outcomes[0] == "already_there", "a second fill does not undo the first"


def test_a_broken_file_leaves_its_case_out_with_the_reason(shown, tmp_path):
    (tmp_path / "cut.nii").write_bytes((tmp_path / "scan.nii").read_bytes()[:-7])
    found = filler()(wanted(Crop(volume=VolumeRef(path=str(tmp_path / "cut.nii")))))
    assert found.outcome == "left_out"
    assert f"{tmp_path / 'cut.nii'}: holds {VALUES.nbytes - 7} bytes of voxels" in found.reason


@pytest.mark.parametrize("keeps_volumes", [True, False])
def test_a_case_whose_file_is_replaced_meanwhile_is_left_out(shown, write, monkeypatch, keeps_volumes):
    write(VALUES[::-1], "scan.nii")  # which no other test holds in memory
    as_usual = Path.read_bytes

    def slowly(path: Path) -> bytes:
        content = as_usual(path)
        if str(path) == shown.volume.path:
            write(VALUES + 1, "scan.nii")
        return content

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", slowly)
        found = filler(keeps_volumes=keeps_volumes)(wanted(shown))
    assert found.outcome == "left_out"
    assert found.reason == (
        f"{shown.volume.path}: changed while it was read. Prepare again once nothing writes to it."
    )
    assert not list(cache_root().rglob("*.safetensors"))


def test_what_is_deleted_for_room_is_told(write, monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "0.0012")  # one of two
    first, second = (
        Wanted(
            case=str(shift), volumes=(VolumeRef(path=str(write(VALUES + shift, f"{shift}.nii"))),), shown=()
        )
        for shift in range(2)
    )
    assert filler()(first).deleted_bytes == 0
    (entry,) = (cache_root() / "volumes").iterdir()
    size_bytes = entry.stat().st_size
    found = filler(began_s=time.time() + 60)(second)
    assert (found.outcome, found.deleted_bytes) == ("done", size_bytes)
