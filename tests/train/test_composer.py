import copy
import dataclasses
import json
import logging
import math
import os
import random
import re
import signal
import subprocess
import time

import numpy as np
import pytest
import torch

from evidcore.api import Answer, Box, DataError, Reward, Rollout, Score, Unscored
from evidcore.case import Action, Evidence, Turn
from evidcore.errors import ContractError, RecipeError, RunError
from evidcore.registry import Offer, blame
from evidcore.reward import composer
from evidcore.reward.composer import FailedCall, NamedReward, RewardComposer, check_start, figures, record


class Given(Reward):
    """Says what it was given."""

    def __init__(self, answers):
        self.answers = answers
        self.earlier = None

    def __call__(self, rollouts, earlier):
        self.earlier = earlier
        return self.answers


class Raises(Reward):
    def __init__(self, make):
        self.make = make

    def __call__(self, rollouts, earlier):
        raise self.make()


@pytest.fixture
def rollouts(bench):
    """Two groups of three."""
    prompts, answers = [bench.source()[group].prompt for group in range(2)], map(str, range(6))
    return [
        Rollout(prompt=prompts[index // 3], group=index // 3, text=text, answer=Answer(text=text))
        for index, text in enumerate(answers)
    ]


def named(answers, name="mine", **changed):
    if isinstance(answers, list):
        answers = [Score(value=item) if isinstance(item, float) else item for item in answers]
    reward = Given(answers)
    return NamedReward(name=name, reward=reward, package="their-package 1.2", **changed)


class Meddler(Reward):
    """Does something with what it is shown, or with the process."""

    def __init__(self, act):
        self.act = act

    def __call__(self, rollouts, earlier):
        self.act(rollouts, earlier)
        return [Score(value=1.0)] * len(rollouts)


def asked(rollouts, act, **keys):
    first = named([1.0] * 6, "first")
    meddler = NamedReward(name="mine", reward=Meddler(act), package="evid-mine 1")
    return RewardComposer([first, meddler], **keys)(rollouts)


def answered(rollouts):
    """Return the rollouts with an answer that holds all that an answer can."""
    evidence, action = Evidence(slices={"nodule": 3}), Action(tool="zoom", arguments={"box": [0, 0, 9, 9]})
    turns = (Turn(text="?", actions=(action,), reply=()),)
    return [
        dataclasses.replace(item, turns=turns, answer=Answer(text="x", evidence=evidence, value={"a": [1]}))
        for item in rollouts
    ]


WRITES = {
    "reference": lambda one, _: one.prompt.reference.update(letter="A"),
    "options": lambda one, _: one.prompt.reference["options"].sort(),
    "option": lambda one, _: one.prompt.reference["options"].__setitem__(0, one.text),
    "masks": lambda one, _: one.prompt.case.masks.setdefault("liver", None),
    "notes": lambda one, _: one.prompt.case.notes.clear(),
    "slices": lambda one, _: one.answer.evidence.slices.pop("nodule"),
    "value": lambda one, _: one.answer.value["a"].append(2),
    "arguments": lambda one, _: one.turns[0].actions[0].arguments["box"].reverse(),
    "parts": lambda _, earlier: earlier["first"][0].parts.update(hit=0.0),
}


@pytest.mark.parametrize("place", WRITES)
def test_a_reward_cannot_write_into_what_it_is_shown(rollouts, place):
    with pytest.raises(ContractError, match=r"failed with TypeError: this (dict|list) is shown"):
        asked(answered(rollouts), lambda shown, earlier: WRITES[place](shown[0], earlier))


FORCED = {
    "prompt 'PROMPT'": lambda one, _: dict.update(one.prompt.reference, letter="forced"),
    "an answer to prompt 'PROMPT'": lambda one, _: object.__setattr__(one.answer, "choice", "A"),
    "the verdicts of 'first'": lambda _, earlier: object.__setattr__(earlier["first"][0], "value", 0.0),
}


@pytest.mark.parametrize("what", FORCED)
def test_a_reward_that_changes_what_others_judge_by_all_the_same_is_named(rollouts, what):
    said = re.escape(what.replace("PROMPT", rollouts[-1].prompt.id))
    with pytest.raises(ContractError, match=rf"evid-mine 1: reward 'mine' changed {said}, by which others"):
        asked(rollouts, lambda shown, earlier: FORCED[what](shown[-1], earlier))


def test_a_reward_may_work_on_a_copy(rollouts):
    def act(shown, earlier):
        mine = copy.deepcopy(shown[0])
        mine.prompt.reference["options"].sort()
        mine.prompt.reference["letter"] = "A"
        dict(shown[0].prompt.reference)["letter"] = "A"

    before = repr(rollouts)
    assert asked(rollouts, act).counted["mine"] == [1.0] * 6
    assert repr(rollouts) == before


def test_what_a_reward_does_to_the_process_ends_with_its_call(rollouts, capfd):
    def state():
        drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        return drawn, signal.getsignal(signal.SIGTERM), signal.getitimer(signal.ITIMER_REAL)

    def act(shown, earlier):
        print("printed")  # noqa: T201
        subprocess.run(["echo", "by a program"], check=True)
        random.random(), np.random.seed(1), torch.manual_seed(1)
        signal.setitimer(signal.ITIMER_REAL, 3600)
        torch.set_num_threads(torch.get_num_threads() + 1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    before, threads = state(), torch.get_num_threads()
    asked(rollouts, act)
    assert state() == before
    assert torch.get_num_threads() == threads
    said = capfd.readouterr()
    assert (said.out, "by a program" in said.err) == ("", True)


def test_a_process_that_a_reward_forks_does_not_go_on_as_a_second_run(rollouts, tmp_path):
    asked(rollouts, lambda *_: os.fork())
    (tmp_path / f"{os.getpid()}").touch()  # a second run would leave a second file
    assert os.wait()[1] == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{os.getpid()}"]


def test_totals_are_weighted_sums(rollouts):
    first = named([1.0, 0.0, 1.0, 0.0, 0.0, 1.0], "first", weight=0.5)
    second = named([0.0, 0.25, 0.5, 0.75, 1.0, 1.0], "second", weight=2.0)
    judgement = RewardComposer([first, second])(rollouts)
    assert judgement.totals([first, second]) == pytest.approx([0.5, 0.5, 1.5, 1.5, 2.0, 2.5])


def test_a_missing_verdict_is_the_mean_of_its_scored_siblings(rollouts):
    reward = named([1.0, None, 0.5, Unscored(kind="failed", reason="no mask"), None, None])
    judgement = RewardComposer([reward])(rollouts)
    assert judgement.counted["mine"] == [1.0, 0.75, 0.5, 0.0, 0.0, 0.0]
    kinds = [score.kind for score in judgement.verdicts["mine"] if isinstance(score, Unscored)]
    assert kinds == ["not-applicable", "failed", "not-applicable", "not-applicable"]


@pytest.mark.parametrize(
    ("gate", "gated", "counted"),
    [
        # second group: the fourth has no gate, the fifth no verdict; the sixth alone counts, and is closed
        ([1.0, 0.0, 0.5, None, 1.0, 0.0], [0.9, 0.8, 0.7, 0.6, None, None], [0.9, 0.0, 0.7, 0.0, 0.0, 0.0]),
        # a gate without verdict is filled as a missing verdict is
        ([None, 1.0, 1.0, 1.0, 1.0, 1.0], [0.1, 0.4, 0.8, 1.0, 1.0, 1.0], [0.6, 0.4, 0.8, 1.0, 1.0, 1.0]),
        # a missing verdict behind an open gate: the closed one of its group counts as the 0 that it is
        ([1.0, 1.0, 1.0, 0.0, 1.0, 1.0], [0.9, None, 0.5, 0.6, 0.8, None], [0.9, 0.7, 0.5, 0.0, 0.8, 0.4]),
    ],
)
def test_a_gate_counts_a_reward_only_where_the_other_scored_above_0(rollouts, gate, gated, counted):
    rewards = [named(gate, "gate"), named(gated, "gated", gate="gate")]
    assert RewardComposer(rewards)(rollouts).counted["gated"] == pytest.approx(counted)


def test_each_reward_sees_the_verdicts_before_it(rollouts):
    first, second = named([1.0] * 6, "first"), named([None] * 6, "second")
    third = named([0.0] * 6, "third")
    RewardComposer([first, second, third])(rollouts)
    assert first.reward.earlier == {}
    assert list(third.reward.earlier) == ["first", "second"]
    assert third.reward.earlier["second"] == (Unscored(kind="not-applicable", reason=""),) * 6


@pytest.mark.parametrize("max_failure_rate", [0.0, 0.9])
@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([1.0] * 5, "returned 5 scores for 6 rollouts"),
        ([1.0, 1.0, 1.0, 1.0, math.nan, 1.0], "must be a number below 1e15, got nan"),
        ([1.0, 1.0, 1.0, math.inf, 1.0, 1.0], "must be a number below 1e15, got inf"),
        ([1.0, 1.0, 1.0, 1.5, 1.0, 1.0], "the value 1.5 lies outside the declared bounds 0 to 1"),
        ([1.0, 1.0, 1.0, -5.0, 1.0, 1.0], "the value -5.0 lies outside the declared bounds 0 to 1"),
        ([1.0, 1.0, 1.0, "high", 1.0, 1.0], "must give a Score, an Unscored or None, got str 'high'"),
        *(
            ([1.0, 1.0, 1.0, Score(value=1.0, parts={"recall": part}), 1.0, 1.0],
             f"part 'recall' must be below 1e15, got {part!r}.")
            for part in (math.nan, -math.inf, "high", None)
        ),
        ([1.0, 1.0, 1.0, Unscored(kind="failed", reason="x" * 100_001), 1.0, 1.0], "of at most 100000 char"),
        (0.5, "must return a list of scores, got float 0.5"),
    ],
)  # fmt: skip
def test_a_broken_contract_names_package_reward_and_value(rollouts, answers, message, max_failure_rate):
    with pytest.raises(ContractError, match=r"their-package 1\.2: reward 'mine'") as caught:
        RewardComposer([named(answers)], max_failure_rate=max_failure_rate)(rollouts)
    assert not isinstance(caught.value, FailedCall)
    assert message in str(caught.value)
    if "return" not in message:
        assert repr(rollouts[3].prompt.id) in str(caught.value)


def test_a_raising_reward_is_blamed_with_its_cause(rollouts):
    broken = Raises(lambda: KeyError("glossary.csv"))
    reward = NamedReward(name="broken", reward=broken, package="their-package 1.2")
    item, other = (rollouts[number].prompt.id for number in (0, 3))
    with pytest.raises(ContractError) as caught:
        RewardComposer([reward])(rollouts)
    assert str(caught.value) == (
        "their-package 1.2: reward 'broken' failed with KeyError: 'glossary.csv', over 6 rollouts, among "
        f"them prompt {item!r}: '0'; prompt {item!r}: '2'; prompt {other!r}: '4'. Report this to its authors."
    )
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.safe == "their-package 1.2: reward 'broken' failed with KeyError"  # no answer in it


def test_a_call_that_takes_long_has_its_stack_shown(rollouts, capfd, monkeypatch):
    monkeypatch.setattr(composer, "HANG_S", 0.1)
    assert asked(rollouts, lambda *_: time.sleep(0.5)).counted["mine"] == [1.0] * 6
    shown = capfd.readouterr().err
    assert re.search(r"Timeout .*!", shown)
    assert re.search(r'test_composer.py", line \d+ in __call__', shown)


READER = Offer(kind="reader", name="eyes", package="evid-eyes", version="1.0", target="eyes:It")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: KeyError("glossary.csv"), "KeyError: 'glossary.csv'"),
        (lambda: ValueError("x" * 500), f"ValueError: {'x' * 188}"),
        (lambda: DataError("scan.nii: cannot be read"), "DataError: scan.nii: cannot be read"),
    ],
)
def test_where_calls_may_fail_a_raising_reward_leaves_its_rows_unscored(rollouts, make, reason, caplog):
    broken = NamedReward(name="broken", reward=Raises(make), package="their-package 1.2")
    gated = named([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "gated", gate="broken")
    plain = named([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], "plain")
    judge = RewardComposer([broken, gated, plain], max_failure_rate=0.1)
    with caplog.at_level(logging.WARNING):
        judgement, again = judge(rollouts), judge(rollouts)
    assert judgement.verdicts["broken"] == (Unscored(kind="failed", reason=reason),) * 6
    assert judgement.counted["broken"] == judgement.counted["gated"] == [0.0] * 6
    assert judgement.counted["plain"] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert list(judgement.failed) == list(again.failed) == ["broken"]
    [warning] = caplog.records  # once, with the traceback
    assert "their-package 1.2: reward 'broken' failed with" in warning.getMessage()
    assert warning.getMessage().endswith(
        "Its rows are unscored; the run goes on while at most max_failure_rate = 0.1 of its calls fail."
    )
    assert warning.exc_info[0] is make().__class__


def test_a_component_that_raised_within_a_reward_is_a_failed_call(rollouts):
    def act(*_):
        with blame(READER, "reading"):
            raise OSError("no such device")

    verdict = asked(rollouts, act, max_failure_rate=0.1).verdicts["mine"][0]
    assert verdict.kind == "failed"
    assert "reader 'eyes' from evid-eyes 1.0 failed while reading: OSError: no such device" in verdict.reason


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: RunError("judge: refused the key"), RunError, "judge: refused the key"),
        (lambda: RecipeError("stage: names no service"), RecipeError, "names no service"),
        (lambda: ContractError("reader: gave 2 answers to 3"), ContractError, "gave 2 answers to 3"),
        (KeyboardInterrupt, KeyboardInterrupt, "^$"),
        (lambda: SystemExit(3), ContractError,
         r"their-package 1\.2: reward 'mine' tried to end the process with SystemExit: 3, over 6 rollouts,"
         r" among them prompt .* Let it raise an exception, or return Unscored\."),
    ],
)  # fmt: skip
def test_mistakes_broken_contracts_and_exits_end_the_run_even_where_calls_may_fail(
    rollouts, make, kind, message
):
    reward = NamedReward(name="mine", reward=Raises(make), package="their-package 1.2")
    with pytest.raises(kind, match=message) as caught:
        RewardComposer([reward], max_failure_rate=0.9)(rollouts)
    assert not isinstance(caught.value, FailedCall)


def test_the_share_of_failed_calls_is_taken_over_the_last_20_steps(rollouts):
    mine, other = named([1.0] * 6), named([1.0] * 6, "other")
    judge = RewardComposer([mine, other], max_failure_rate=0.1)
    good, bad = [0.0], [1.0]
    fine = {"other": good * 3}
    judge.check_failed({"mine": bad, **fine}, 1, {"mine": "it broke"})  # 1 of 20, at the first step
    judge.check_failed({"mine": bad * 9 + good * 18 + bad * 2, **fine}, 1, {"mine": "it broke"})
    judge.check_failed({"mine": [2.0, 2.0], **fine}, 2, {"mine": "it broke"})  # 4 of 40, of two processes
    with pytest.raises(ContractError) as caught:
        judge.check_failed({"mine": bad + good * 17 + bad * 2, **fine}, 1, {"mine": "it broke"})
    assert str(caught.value) == (
        "their-package 1.2: reward 'mine': 3 of its 20 calls in the last 20 steps failed (15 %), and "
        "max_failure_rate is 0.1. Mend what fails and go on with `evid resume`, or run with a higher "
        "max_failure_rate. The last: it broke"
    )


def test_compositions_that_mean_nothing_are_refused():
    behind = [named([], "accuracy"), named([], "mine", gate="acuracy")]
    for rewards, said in (
        ([], "needs at least one reward"),
        ([named([]), named([])], "two rewards are called 'mine'"),
        (behind, r"gate = 'acuracy' is no reward before it\. Did you mean 'accuracy'"),
        ([named([], "mine", gate="mine")], "gate = 'mine' is no reward before it"),
    ):
        with pytest.raises(RecipeError, match=said):
            RewardComposer(rewards)


def test_figures_are_those_of_hand_arithmetic_and_a_reward_that_scored_nobody_has_none(rollouts):
    rewards = [named([1.0, 0.0, 0.5, 0.5, 0.5, None])]
    result = figures(record(RewardComposer(rewards)(rollouts), rewards, rollouts, 3))
    assert result["reward/mine"] == pytest.approx(0.5)
    assert result["reward_spread/mine"] == pytest.approx((0.5 / 5) ** 0.5)  # deviations .5 .5 0 0 0
    assert result["dead_groups"] == result["dead_groups/mine"] == 0.5
    assert result["unscored/mine"] == 1
    assert result["reward"] == pytest.approx(0.5)
    rewards = [named([None] * 6)]
    result = figures(record(RewardComposer(rewards)(rollouts), rewards, rollouts, 3))
    assert "reward/mine" not in result
    assert (result["unscored/mine"], result["dead_groups"]) == (6, 1.0)


def test_a_record_is_a_line_for_each_group(rollouts):
    rewards = [named([1.0, None, 0.5, 0.5, 0.5, 0.5])]
    pointing = Evidence(slice=3, boxes=(Box(z=3, y0=1, y1=2, x0=4, x1=6),))
    answer = dataclasses.replace(rollouts[0].answer, evidence=pointing)
    rollouts = [dataclasses.replace(rollouts[0], answer=answer), *rollouts[1:]]
    lines = json.loads(json.dumps(record(RewardComposer(rewards)(rollouts), rewards, rollouts, 3)))
    assert [line["prompt_id"] for line in lines] == [rollouts[0].prompt.id, rollouts[3].prompt.id]
    second = lines[0]["rollouts"][1]
    assert second["text"] == "1"
    assert second["total"] == pytest.approx(0.75)
    assert second["rewards"]["mine"] == {
        "value": None, "parts": {}, "reason": "", "unscored": "not-applicable", "counted": 0.75,
    }  # fmt: skip
    assert lines[0]["images"] == [rollouts[0].prompt.crops()[0].uri()]
    assert second["evidence"] is None
    boxes = [{"z": 3, "y0": 1, "y1": 2, "x0": 4, "x1": 6}]
    assert lines[0]["rollouts"][0]["evidence"] == {"slice": 3, "slices": {}, "boxes": boxes, "mask": None}


@pytest.mark.parametrize(
    ("groups", "outcome"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], "fine"), ([[0.0, 0.0], [0.0, 1.0]], "note"),
        ([[0.3, 0.3], [0.0, 0.0]], "alarm"), ([[1.0, 1.0], [1.0, 1.0]], "alarm"),
    ],
)  # fmt: skip
def test_what_the_start_policy_earns_is_judged_by_its_spread(groups, outcome):
    assert check_start(groups, 1.0).outcome == outcome
