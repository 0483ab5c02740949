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
from evidcore.volume.prefetch import prefetch


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
