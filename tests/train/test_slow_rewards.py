"""When it is said that rewards take too long; that a short stage hears it at its end is in test_timing.py."""

import pytest

from evidcore.train.trl.timing import SlowRewards

JUDGED, SLOW = {"step_s": 2.0, "reward_s/judge": 0.5625}, {"step_s": 10.0, "reward_s/judge": 9.0}


def test_it_is_said_once_with_the_slowest_and_the_figures():
    heard, step = SlowRewards(), {"step_s": 2.0, "reward_s/format": 0.1, "reward_s/judge": 0.7}
    said = [heard.hear({**step, "generate_s": 1.2}, is_last=False) for _ in range(30)]
    assert [index for index, item in enumerate(said) if item] == [9]
    assert said[9] == (
        "rewards took 40 % of the first 10 steps (8.0 of 20.0 s), most of it 'judge' (7.0 s). Training waits "
        "for them: let 'judge' judge a group at once, keep what repeats, or take a faster service for it."
    )


@pytest.mark.parametrize(
    "steps",
    [[{"step_s": 1.0}] * 12, [JUDGED] * 40, [SLOW, *[{"step_s": 10.0, "reward_s/judge": 1.0}] * 30]],
    ids=["no rewards", "28 percent", "made up for"],
)
def test_nothing_is_said_up_to_30_percent_or_without_rewards(steps):
    heard = SlowRewards()
    assert not any(heard.hear(step, is_last=place == len(steps)) for place, step in enumerate(steps, 1))
