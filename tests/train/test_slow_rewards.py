"""When it is said that rewards take too long: once, after enough steps, naming the slowest."""

import pytest

from evidcore.train.trl.timing import SlowRewards


def hear(figures, steps, last=False):
    heard = SlowRewards()
    return [heard.hear(figures, is_last=last and step == steps - 1) for step in range(steps)]


def test_it_is_said_once_with_the_slowest_and_the_figures():
    said = hear({"step_s": 2.0, "reward_s/format": 0.1, "reward_s/judge": 0.7, "generate_s": 1.2}, 30)
    assert [index for index, item in enumerate(said) if item] == [9]
    assert said[9] == (
        "rewards took 40 % of the first 10 steps (8.0 of 20.0 s), most of it 'judge' (7.0 s). Training waits "
        "for them: let 'judge' judge a group at once, keep what repeats, or take a faster service for it."
    )


@pytest.mark.parametrize("reward_s", [0.0, 0.3, 0.5625])
def test_nothing_is_said_up_to_30_percent_or_without_rewards(reward_s):
    assert hear({"step_s": 1.0, "data_s": 1.0}, 12, last=True) == [None] * 12
    assert hear({"step_s": 2.0, "reward_s/judge": reward_s}, 40) == [None] * 40


def test_a_short_stage_hears_it_at_its_end():
    said = hear({"step_s": 1.0, "reward_s/judge": 0.5}, 3, last=True)
    assert said[:2] == [None, None]
    assert said[2].startswith("rewards took 50 % of the first 3 steps (1.5 of 3.0 s)")


def test_slow_first_steps_that_are_made_up_for_are_not_spoken_of():
    heard = SlowRewards()
    assert heard.hear({"step_s": 10.0, "reward_s/judge": 9.0}, is_last=False) is None
    assert [heard.hear({"step_s": 10.0, "reward_s/judge": 1.0}, is_last=False) for _ in range(30)] == [
        None
    ] * 30
