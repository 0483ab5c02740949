"""The control of consensus and forks: the signs that it shows, with few seeds, and what they rest on."""

import json
import statistics
import sys

import numpy as np
import pytest

from evidcore.api import Case, Prompt, TextPart
from evidcore.registry import factory

SCRIPT = "zoom_control"


@pytest.fixture(scope="module")
def pay(script, tmp_path_factory):
    return script.Looking(tmp_path_factory.mktemp("looking")).consensus


def gain(script, pay, setting, seeds=6, steps=40):
    """Return right looks with consensus minus those without, of each seed."""
    arms = [
        [script.train_looks(setting, seed, steps, script.RATE, arm) for seed in range(seeds)]
        for arm in (pay, None)
    ]
    return [statistics.fmean(item) - statistics.fmean(other) for item, other in zip(*arms, strict=True)]


def test_where_nobody_guesses_right_consensus_changes_no_advantage(script, pay):
    cells, successes = [0, 0, 3, 0, 7], [True, True, False, False, False]
    accuracy = np.array(successes, dtype=float)
    ours, plain = script.advantages(accuracy + pay(cells, successes)), script.advantages(accuracy)
    assert ours == pytest.approx(plain, abs=1e-3)
    assert gain(script, pay, script.GUESSING[0], seeds=2, steps=20) == pytest.approx([0, 0], abs=1e-3)


@pytest.mark.slow
def test_consensus_gains_with_the_majority_and_harms_against_it(script, pay):
    assert statistics.fmean(gain(script, pay, script.GUESSING[1])) > 0.01
    assert statistics.fmean(gain(script, pay, script.GUESSING[4])) < 0


def test_only_what_is_unsure_is_forked(script):
    strategy = factory.build("rollout", script.FORKED, given={"tools": [script.Closer()]}, where="test")
    sampler = script.TableSampler(script.BEGINNINGS[0], np.random.default_rng(0))
    case = Case(id="c", patient=None, volumes=())
    prompts = [Prompt(id=str(item), case=case, task="t", parts=(TextPart(text="?"),)) for item in range(20)]
    episodes = strategy(sampler, prompts, script.ANSWERS)
    forks = {sampler.looked(item)[0] for item in episodes if item.parent is not None}
    assert (len(episodes), forks) == (20 * script.ANSWERS, {0})


@pytest.mark.slow
def test_forks_of_what_is_unsure_gain_where_it_alone_can_succeed(script):
    arms = [
        [script.train_beginnings(script.BEGINNINGS[0], seed, 60, script.RATE, table) for seed in range(6)]
        for table in (script.FORKED, script.PLAIN)
    ]
    right, drawn = (
        [statistics.fmean(statistics.fmean(run[place]) for run in arm) for arm in arms] for place in (0, 1)
    )
    assert right[0] > right[1]
    assert drawn[0] > drawn[1]


def test_the_table_names_settings_and_arms(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["zoom_control.py", "--quick", "--json"])
    script.main()
    names = [item["name"].partition(":")[0] for item in json.loads(capsys.readouterr().out)["figures"]]
    settings = [item.name for item in (*script.GUESSING, *script.BEGINNINGS)]
    assert [name for name in dict.fromkeys(names)] == settings
