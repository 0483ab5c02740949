"""Each second counts once, in the innermost open part; checked on a clock that counts its own readings."""

import itertools

import pytest
import torch

from evidcore.compute.clock import Clock


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def __call__(self) -> float:
        return self.at_s


@pytest.fixture
def hands():
    return Hands()


def test_inner_parts_stop_the_outer_one(hands):
    clock = Clock(hands)
    hands.at_s += 9
    clock.restart()
    hands.at_s += 1
    with clock.part("generate"):
        hands.at_s += 2
        with clock.part("data"):
            hands.at_s += 4
        hands.at_s += 8
        with clock.part("reward/format"):
            hands.at_s += 16
    with clock.part("data"):
        hands.at_s += 32
    assert clock.lap() == {
        "other_s": 1.0, "generate_s": 10.0, "data_s": 36.0, "reward_s/format": 16.0, "step_s": 63.0,
    }  # fmt: skip


def test_a_whole_part_takes_what_others_take_inside(hands):
    clock = Clock(hands)
    with clock.part("proof", whole=True):
        with clock.part("generate"):
            hands.at_s += 3
        hands.at_s += 1
    with clock.part("generate"):
        hands.at_s += 5
    assert clock.lap() == {"other_s": 0.0, "proof_s": 4.0, "generate_s": 5.0, "step_s": 9.0}


def test_laps_follow_each_other_without_a_gap_even_within_a_part(hands):
    clock = Clock(hands)
    clock.enter("update")
    hands.at_s += 2
    first = clock.lap()
    hands.at_s += 3
    clock.leave()
    hands.at_s += 4
    assert first["step_s"] == first["update_s"] == 2.0
    assert clock.lap() == {"update_s": 3.0, "other_s": 4.0, "step_s": 7.0}


def test_a_part_closes_where_its_block_fails(hands):
    clock = Clock(hands)

    def fail():
        with clock.part("score"):
            hands.at_s += 2
            raise ValueError(42)

    with pytest.raises(ValueError, match="42"):
        fail()
    hands.at_s += 1
    assert clock.lap() == {"other_s": 1.0, "score_s": 2.0, "step_s": 3.0}


def test_parts_add_up_to_the_step_however_they_lie_in_one_another():
    rng = torch.Generator().manual_seed(3)
    clock = Clock(itertools.count().__next__)
    readings, depth = 0, 0
    for _ in range(20):
        for turn in torch.randint(0, 2, (50,), generator=rng).tolist():
            if turn and depth < 4:
                clock.enter(f"part-{depth}")
                depth += 1
            elif depth:
                clock.leave()
                depth -= 1
            else:
                continue
            readings += 1
        taken = clock.lap()
        assert taken.pop("step_s") == sum(taken.values()) == readings + 1
        readings = 0
