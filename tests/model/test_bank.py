import dataclasses

import pytest
import torch

from evidcore.case import Crop
from evidcore.errors import RunError
from evidcore.model.bank import FeatureBank
from evidcore.volume import prepare

SIZE = (8, 16, 16)


@pytest.fixture
def encoder(small):
    return small.model.model.encoder


def handles_of(bank, cases):
    return [bank.handle(Crop(volume=case.volumes[0]), SIZE) for case in cases]


def test_features_are_those_of_the_encoder_on_prepared_pixels(encoder, cases):
    bank = FeatureBank(encoder.input)
    handles = handles_of(bank, cases)
    [(order, patches)] = bank.patches(handles, encoder)
    pixels = torch.stack([prepare(Crop(volume=case.volumes[0]), encoder.input, SIZE) for case in cases])
    direct = encoder.eval()(pixels)
    assert order == handles
    assert patches.grid_zyx == direct.grid_zyx
    torch.testing.assert_close(patches.features, direct.features, rtol=0, atol=0)
    torch.testing.assert_close(patches.centres_mm, direct.centres_mm)


def test_a_volume_is_encoded_once_and_again_only_when_the_weights_changed(encoder, cases):
    bank = FeatureBank(encoder.input)
    handles = handles_of(bank, cases)
    for _ in range(3):
        bank.patches(handles, encoder)
    assert bank.encoded == 4
    before = bank.patches(handles, encoder)[0][1].features
    with torch.no_grad():
        next(encoder.parameters()).mul_(1.5)
    after = bank.patches(handles, encoder)[0][1].features
    assert bank.encoded == 8
    assert not torch.equal(before, after)


def test_memory_stays_within_its_bound_and_the_least_recently_used_leaves(encoder, cases):
    probe = FeatureBank(encoder.input)
    one = probe.patches(handles_of(probe, cases[:1]), encoder)[0][1].features.nbytes
    bank = FeatureBank(encoder.input, memory_bytes=2 * one)
    first, second, third, _ = handles_of(bank, cases)
    bank.patches([first, second], encoder)
    bank.patches([first], encoder)
    bank.patches([third], encoder)  # pushes out the second
    bank.patches([first, third], encoder)
    assert bank.encoded == 3
    bank.patches([second], encoder)
    assert bank.encoded == 4


def test_half_precision_rounds_and_halves_the_memory(encoder, cases):
    full, half = FeatureBank(encoder.input), FeatureBank(encoder.input, precision="float16")
    exact = full.patches(handles_of(full, cases), encoder)[0][1].features
    rounded = half.patches(handles_of(half, cases), encoder)[0][1].features
    assert rounded.dtype == exact.dtype
    torch.testing.assert_close(rounded, exact.half().float(), rtol=0, atol=0)
    assert half._bytes * 2 == full._bytes


def test_features_on_disk_are_read_by_the_next_process_with_the_same_weights_only(encoder, cases, tmp_path):
    first = FeatureBank(encoder.input, folder=tmp_path)
    written = first.patches(handles_of(first, cases), encoder)[0][1]
    second = FeatureBank(encoder.input, folder=tmp_path)
    read = second.patches(handles_of(second, cases), encoder)[0][1]
    assert second.encoded == 0
    torch.testing.assert_close(read.features, written.features, rtol=0, atol=0)
    assert read.grid_zyx == written.grid_zyx
    with torch.no_grad():
        next(encoder.parameters()).add_(0.1)
    third = FeatureBank(encoder.input, folder=tmp_path)
    third.patches(handles_of(third, cases), encoder)
    assert third.encoded == 4


def test_a_damaged_file_is_made_again(encoder, cases, tmp_path):
    first = FeatureBank(encoder.input, folder=tmp_path)
    first.patches(handles_of(first, cases[:1]), encoder)
    [file] = tmp_path.rglob("*.pt")
    file.write_bytes(file.read_bytes()[:40])
    second = FeatureBank(encoder.input, folder=tmp_path)
    second.patches(handles_of(second, cases[:1]), encoder)
    assert second.encoded == 1


def test_an_encoder_in_training_is_run_each_time_with_gradients(encoder, cases):
    bank = FeatureBank(encoder.input)
    encoder.requires_grad_(True)
    [(_, patches)] = bank.patches(handles_of(bank, cases), encoder, live=True)
    patches.features.sum().backward()
    assert next(encoder.parameters()).grad.abs().sum() > 0
    bank.patches(handles_of(bank, cases), encoder, live=True)
    assert bank.encoded == 8


def test_a_blank_crop_has_a_handle_and_features_of_its_own(encoder, cases):
    bank = FeatureBank(encoder.input)
    crop = Crop(volume=cases[0].volumes[0])
    own, blank = bank.handle(crop, SIZE), bank.handle(dataclasses.replace(crop, blank=True), SIZE)
    assert own != blank
    [(_, patches)] = bank.patches([own, blank], encoder)
    assert not torch.allclose(patches.features[0], patches.features[1])


def test_a_handle_that_was_never_made_is_named(encoder):
    with pytest.raises(RunError, match="image handle 4711 is not known in this process"):
        FeatureBank(encoder.input).patches([4711], encoder)
