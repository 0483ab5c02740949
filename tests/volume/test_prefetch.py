from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from evidcore.case import Crop, VolumeRef
from evidcore.contracts import EncoderInput
from evidcore.errors import DataError
from evidcore.volume import prepare
from evidcore.volume.prefetch import Prefetched, prefetch


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_results_come_in_order(threads):
    def work(number):
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(prefetch(work, range(20), threads=threads)) == [number * number for number in range(20)]


def test_no_more_is_begun_than_twice_the_threads():
    begun = []
    results = prefetch(lambda number: begun.append(number) or number, iter(range(100)), threads=2)
    for taken in range(1, 6):
        next(results)
        assert len(begun) <= taken + 3
    results.close()
    assert len(begun) <= 9


def test_work_runs_beside_the_one_who_waits():
    meet = threading.Barrier(2, timeout=20)
    assert list(prefetch(lambda _: meet.wait() >= 0, range(4), threads=2)) == [True] * 4


def test_an_error_comes_in_its_place_and_stops_the_rest():
    begun = []

    def work(number):
        begun.append(number)
        if number == 3:
            raise DataError("case-3.nii: broken")
        return number

    results = prefetch(work, range(1000), threads=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match=r"case-3\.nii: broken"):
        next(results)
    assert len(begun) < 12


def test_prepared_inputs_are_the_same_bits_with_and_without(write):
    noise = np.random.default_rng(0)
    spec = EncoderInput(size_zyx=(8, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 1000.0),))
    crops = [
        Crop(
            volume=VolumeRef(
                path=str(write(noise.integers(-900, 900, (9, 30, 31)).astype(np.int16), f"{n}.nii"))
            )
        )
        for n in range(6)
    ]
    alone = [prepare(crop, spec) for crop in crops]
    beside = list(prefetch(lambda crop: prepare(crop, spec), crops, threads=3))
    for one, other in zip(alone, beside, strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_what_is_begun_is_made_while_the_caller_goes_on(two_threads):
    meet = threading.Barrier(2, timeout=20)
    prefetched = Prefetched()
    prefetched.begin("one", lambda: meet.wait() >= 0, most=1)
    meet.wait()  # the caller is not held up, or nobody would come
    assert prefetched.take("one").result() is True
    assert prefetched.take("one") is None


def test_no_more_is_held_than_asked_and_nothing_twice(two_threads):
    begun, prefetched = [], Prefetched()
    for key in (1, 2, 2, 3):
        prefetched.begin(key, begun.append, key, most=2)
    assert [prefetched.take(key) is not None for key in (1, 2, 3)] == [True, True, False]
    prefetched.begin(3, begun.append, 3, most=2)  # there is room again
    prefetched.take(3).result()
    assert sorted(begun) == [1, 2, 3]


def test_what_is_dropped_leaves_room_and_is_not_made_where_it_had_not_begun(two_threads):
    go, made, prefetched = threading.Event(), [], Prefetched()
    for key in range(2):  # as many as there are threads
        prefetched.begin(key, go.wait, 20, most=3)
    prefetched.begin(2, made.append, 2, most=3)
    prefetched.drop(2)
    prefetched.begin(3, made.append, 3, most=3)
    go.set()
    prefetched.take(3).result()
    assert made == [3]


def test_with_one_thread_nothing_is_begun(two_threads):
    torch.set_num_threads(1)
    prefetched = Prefetched()
    prefetched.begin(1, int, most=1)
    assert prefetched.take(1) is None
