import math
import os
import threading
import time

import pytest
import torch

from evidcore.api import Cache, Crop, prepare
from evidcore.data import content
from evidcore.errors import RunError
from evidcore.model import bank as bank_module
from evidcore.model.bank import FeatureBank
from evidcore.registry import factory

SIZE = (8, 16, 16)


@pytest.fixture
def cases(cases):
    return cases[:4]


@pytest.fixture
def encoder(small):
    return small.model.model.encoder


def handles_of(bank, cases):
    return [bank.handle(Crop(volume=case.volumes[0]), SIZE) for case in cases]


def filled(encoder, cases, **options):
    """Return a bank of its own that has encoded the cases, and their patches."""
    bank = FeatureBank(encoder.input, **options)
    [(_, patches)] = bank.patches(handles_of(bank, cases), encoder)
    return bank, patches


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
    blank = bank.handle(Crop(volume=cases[0].volumes[0], blank=True), SIZE)
    [(_, patches)] = bank.patches([handles[0], blank], encoder)
    assert not torch.allclose(patches.features[0], patches.features[1])
    with pytest.raises(RunError, match="image handle 4711 is not known in this process"):
        bank.patches([4711], encoder)


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
    others = {name: weight.detach() * 1.5 for name, weight in encoder.state_dict().items()}
    encoder.load_state_dict(others, assign=True)  # new tensors, whose versions are as low
    assert not torch.equal(after, bank.patches(handles, encoder)[0][1].features)


def test_memory_stays_within_its_bound_and_the_least_recently_used_leaves(encoder, cases):
    item = filled(encoder, cases[:1])[1].features.nbytes
    bank = FeatureBank(encoder.input, memory_bytes=2 * item)
    first, second, third, _ = handles_of(bank, cases)
    bank.patches([first, second], encoder)
    bank.patches([first], encoder)
    bank.patches([third], encoder)  # pushes out the second
    bank.patches([first, third], encoder)
    assert bank.encoded == 3
    bank.patches([second], encoder)
    assert bank.encoded == 4


def test_half_precision_rounds_and_halves_the_memory(encoder, cases):
    (full, exact), (half, rounded) = filled(encoder, cases), filled(encoder, cases, precision="float16")
    assert rounded.features.dtype == exact.features.dtype
    torch.testing.assert_close(rounded.features, exact.features.half().float(), rtol=0, atol=0)
    assert half._bytes * 2 == full._bytes


def test_features_on_disk_are_read_by_the_next_process_for_the_same_code_and_weights(
    encoder, cases, tmp_path
):
    _, written = filled(encoder, cases, cache=Cache("features", tmp_path))
    other, _ = filled(encoder, cases, cache=Cache("features", tmp_path), made_by=lambda _: "other options")
    assert other.encoded == 4
    second, read = filled(encoder, cases, cache=Cache("features", tmp_path))
    assert second.encoded == 0
    torch.testing.assert_close(read.features, written.features, rtol=0, atol=0)
    assert read.grid_zyx == written.grid_zyx
    with torch.no_grad():
        next(encoder.parameters()).add_(0.1)
    third, _ = filled(encoder, cases, cache=Cache("features", tmp_path))
    assert third.encoded == 4


def test_the_format_of_a_file_is_looked_for_once_when_a_crop_is_prepared(encoder, cases, monkeypatch):
    bank = FeatureBank(encoder.input)
    handles = handles_of(bank, cases)
    bank.pixels(handles)  # small volumes stay in memory
    asked, real = [], content.format_of
    monkeypatch.setattr(content, "format_of", lambda path: asked.append(path) or real(path))
    bank.pixels(handles[-1:])
    assert len(asked) == 1


def test_a_set_that_does_not_fit_keeps_its_first_part_and_drives_other_encoders_out(
    encoder, cases, tmp_path, monkeypatch
):
    def use(number, shown=2):
        with torch.no_grad():
            next(encoder.parameters()).fill_(number)
        return filled(encoder, cases[:shown], cache=Cache("features", tmp_path))[0].encoded

    def files():
        return set((tmp_path / "features").glob("*-*"))

    assert use(0.1) == 2
    before = files()
    size = next(iter(before)).stat().st_size
    for file in before:
        os.utime(file, (1, 1))
    monkeypatch.setenv("EVID_CACHE_GB", f"{2.5 * size / 1e9}")
    assert use(0.2, 4) == 4
    assert not files() & before
    assert use(0.2, 4) == 2, "the first two are found again"


def test_a_volume_alone_has_the_features_that_it_has_among_others(cases, tmp_path):
    encoder = factory.build("encoder", {"use": "vit3d"}, given={}, where="test")
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for weight in encoder.parameters():
            weight.normal_(0, 0.05)

    def features(cases):
        bank = FeatureBank(encoder.input)
        handles = [bank.handle(Crop(volume=case.volumes[0]), encoder.input.size_zyx) for case in cases]
        [(_, patches)] = bank.patches(handles, encoder)
        assert bank.encoded == len(cases)
        return patches.features

    torch.testing.assert_close(features(cases[:1]), features(cases[:3])[:1], rtol=0, atol=0)


def test_an_encoder_in_training_is_run_each_time_with_gradients(encoder, cases):
    bank = FeatureBank(encoder.input)
    encoder.requires_grad_(True)
    [(_, patches)] = bank.patches(handles_of(bank, cases), encoder, live=True)
    patches.features.sum().backward()
    assert next(encoder.parameters()).grad.abs().sum() > 0
    bank.patches(handles_of(bank, cases), encoder, live=True)
    assert bank.encoded == 8


@pytest.fixture
def prepared(monkeypatch):
    """Which handles were prepared, in which threads."""
    threads, real = {}, bank_module.prepare

    def noted(crop, spec, size_zyx, handle):
        assert handle not in threads, "prepared twice"
        threads[handle] = threading.current_thread().name
        return real(crop, spec, size_zyx, handle)

    monkeypatch.setattr(bank_module, "prepare", noted)
    return threads


@pytest.mark.parametrize("live", [False, True], ids=["frozen", "in training"])
def test_what_is_prefetched_is_used_once_and_gives_the_same_bits(encoder, cases, prepared, two_threads, live):
    bank = FeatureBank(encoder.input)
    first, second, third, _ = handles_of(bank, cases)
    for handle in (first, second):
        bank.prefetch(handle)
    while len(prepared) < 2:  # begun before anyone asks
        time.sleep(0.001)
    [(_, prefetched)] = bank.patches([first, second, third], encoder, live=live)
    assert {name.split("_")[0] for name in prepared.values()} == {"prefetch"}
    other = FeatureBank(encoder.input)
    prepared.clear()
    [(_, alone)] = other.patches(handles_of(other, cases[:3]), encoder, live=live)
    torch.testing.assert_close(prefetched.features, alone.features, rtol=0, atol=0)


def test_features_that_are_kept_need_no_input(encoder, cases, prepared, two_threads, tmp_path):
    bank = FeatureBank(encoder.input, cache=Cache("features", tmp_path))
    handles = handles_of(bank, cases)
    bank.patches(handles[:1], encoder)
    bank.prefetch(handles[0])  # lies in memory
    bank.clear()
    bank.prefetch(handles[0])  # on disk
    assert list(prepared) == handles[:1]
    again = FeatureBank(encoder.input, cache=Cache("features", tmp_path))
    prepared.clear()
    again.prefetch(handles_of(again, cases)[0])  # it has not looked there yet
    again.patches(handles[:1], encoder)
    assert again.encoded == 0
    assert not again._prefetched._begun


def test_input_that_is_prefetched_is_bounded(encoder, cases, prepared, two_threads, monkeypatch):
    item = 4 * encoder.input.channels * math.prod(SIZE)
    monkeypatch.setattr(bank_module, "PREFETCH_BYTES", 2 * item + item // 2)
    bank = FeatureBank(encoder.input)
    handles = handles_of(bank, cases)
    for handle in handles:
        bank.prefetch(handle)
    assert len(bank._prefetched._begun) == 2
    bank.forget(handles[:1])
    bank.prefetch(handles[2])
    bank.pixels(handles[1:])
    assert not bank._prefetched._begun
