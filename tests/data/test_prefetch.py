import threading

import pytest
import torch

from evidcore.api import DataError
from evidcore.data.prefetch import Prefetched, thread_count


def test_what_is_begun_is_made_while_the_caller_goes_on(two_threads):
    meet = threading.Barrier(2, timeout=20)
    prefetched = Prefetched()
    prefetched.begin("one", lambda: meet.wait() >= 0, most=1)
    meet.wait()  # the caller is not held up, or nobody would come
    assert prefetched.take("one", lambda: "made anew") is True
    assert prefetched.take("one", lambda: "made anew") == "made anew"


def test_no_more_is_held_than_asked_and_nothing_twice(two_threads):
    begun, prefetched = [], Prefetched()
    for key in (1, 2, 2, 3):
        prefetched.begin(key, begun.append, key, most=2)
    assert [prefetched.take(key, lambda: "made anew") for key in (1, 2, 3)] == [None, None, "made anew"]
    prefetched.begin(3, begun.append, 3, most=2)  # there is room again
    prefetched.take(3, lambda: None)
    assert sorted(begun) == [1, 2, 3]


def test_what_is_dropped_leaves_room_and_is_not_made_where_it_had_not_begun(two_threads):
    go, made, prefetched = threading.Event(), [], Prefetched()
    for key in range(2):  # as many as there are threads
        prefetched.begin(key, go.wait, 20, most=3)
    prefetched.begin(2, made.append, 2, most=3)
    prefetched.drop(2)
    prefetched.begin(3, made.append, 3, most=3)
    go.set()
    prefetched.take(3, lambda: None)
    assert made == [3]


def test_what_went_wrong_is_told_where_the_result_is_asked_for(two_threads):
    def broken():
        raise DataError("case-3.nii: broken")

    prefetched = Prefetched()
    prefetched.begin(3, broken)
    with pytest.raises(DataError, match=r"case-3\.nii: broken"):
        prefetched.take(3, int)


def test_threads_are_as_many_as_torch_uses_up_to_eight_and_one_begins_nothing(two_threads):
    for count, expected in ((2, 2), (20, 8)):
        torch.set_num_threads(count)
        assert thread_count() == expected
    torch.set_num_threads(1)
    prefetched, made_by = Prefetched(), []
    prefetched.begin(1, lambda: made_by.append("begun"))
    prefetched.take(1, lambda: made_by.append("taken"))
    assert made_by == ["taken"]
