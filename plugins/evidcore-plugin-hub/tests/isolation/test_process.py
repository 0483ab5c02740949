"""A component in a process of its own: what it does ends at its limit, and what it gives is checked."""

import ctypes
import dataclasses
import gc
import os
import random
import re
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from evidcore_plugin_hub import isolation
from evidcore_plugin_hub.worker import workers_ended
from huggingface_hub.constants import HF_TOKEN_PATH

from evidcore.api import DataError
from evidcore.errors import ContractError, PluginError
from evidcore.registry import factory
from evidcore.reward.composer import FailedCall, NamedReward, RewardComposer

pytestmark = pytest.mark.slow
LIMITS = {"time_limit_s": 1.5, "memory_gb": 0.5}
CALM = {"time_limit_s": 60.0}


def build(limits=CALM, kind="reward", use="planted", given=None, **options):
    table = {"use": use, "isolated": limits, **options}
    return factory.build(kind, table, given=given or {}, where="stage.grpo.reward[0]")


def below(number):
    """Return what runs in a process and below it."""
    try:
        top = psutil.Process(number)
        return [one for one in [top, *top.children(recursive=True)] if one.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def zombies():
    """Return how many zombies wait below this program: others on this machine have their own."""
    return sum(one.status() == psutil.STATUS_ZOMBIE for one in psutil.Process().children(recursive=True))


LATE = "has not answered in its own process for 1.5 s and was ended"
NO_MESSAGE = "wrote into its pipe what is no message"
NOT_GIVEN = "asked for what it is not given"
NOT_ALLOWED = "gave what its contract does not allow"
ENDS = {
    **dict.fromkeys(("hangs in C", "stops", "forks", "drips", "closes", "asks"), LATE),
    "asks for the model": NOT_GIVEN, "asks for a path": NOT_GIVEN, "garbage": NO_MESSAGE,
    "says how it ended": NO_MESSAGE, "deep": NOT_ALLOWED, "a long error": NOT_ALLOWED,
    "memory": "failed in its own process: MemoryError",
    "memory of torch": "failed in its own process: RuntimeError",
    "a gigabyte": "gave more than 16777216 bytes", "exits": "ended its process with status 7",
    "raises exit": "tried to end its process with SystemExit",
    "raises": "failed in its own process: KeyError",
}  # fmt: skip


@pytest.mark.parametrize("act", ENDS)
def test_whatever_it_does_ends_and_is_named(act, planted, rollouts):
    limits = LIMITS if ENDS[act] == LATE else {**LIMITS, "time_limit_s": 40.0}  # a busy machine is slow
    reward = build(limits, act=act, given={"recipe_folder": Path("/data"), "cases": list})
    start_s = time.monotonic()
    with pytest.raises(ContractError) as caught:
        reward(rollouts, {})
    assert time.monotonic() - start_s < 50  # less than 60 s, which the planted ones wait
    assert caught.value.safe == f"reward 'planted' from planted-package 1.2 {ENDS[act]}"
    assert "rollouts" not in caught.value.safe
    with pytest.raises(ContractError, match=re.escape(ENDS[act])):  # a fresh process does the same
        reward(rollouts, {})


@pytest.mark.parametrize("act", ["stops", "forks"])
def test_one_that_stops_or_forks_is_late_without_a_fence(act, planted, rollouts, monkeypatch):
    monkeypatch.setattr(isolation, "network_blocked", lambda: False)
    with pytest.raises(ContractError, match=LATE):
        build(LIMITS, act=act)(rollouts, {})
    assert ctypes.CDLL(None).prctl(3) == 0  # PR_GET_DUMPABLE: /proc/<pid>/environ is root's now
    ctypes.CDLL(None).prctl(4, 1)


def test_a_late_call_is_ended_with_all_that_it_started(planted, rollouts):
    gc.collect()  # of tests before
    before = zombies()
    reward = build(LIMITS, act="forks")
    home, number = Path(reward._process.home), reward._process.worker.process.pid
    assert (home.is_dir(), bool(below(number))) == (True, True)
    with pytest.raises(ContractError):
        reward(rollouts, {})
    assert not home.exists()
    over_s = time.monotonic() + 5
    while below(number) and time.monotonic() < over_s:
        time.sleep(0.05)
    assert below(number) == []
    assert zombies() <= before


def test_a_fork_that_comes_back_does_not_answer(planted, rollouts):
    reward = build(act="comes back")
    assert reward(rollouts, {}) == reward(rollouts, {})
    assert len(reward(rollouts, {})) == len(rollouts)


GIVEN = {
    **dict.fromkeys(("numbers", "a text", "a word", "a wrong kind", "a long key"), NOT_ALLOWED),
    "a generator": "must give plain data, got generator",
    "a tensor": "must give plain data, got Tensor",
    "long": "gave more than 16777216 bytes",
}


@pytest.mark.parametrize("gives", GIVEN)
def test_what_it_gives_is_held_to_its_type(gives, planted, rollouts):
    with pytest.raises(ContractError, match=GIVEN[gives]) as caught:
        build(gives=gives)(rollouts, {})
    assert caught.value.__cause__ is None  # so no `max_failure_rate` lets it pass
    assert len(str(caught.value)) < 2500


@pytest.mark.parametrize(("gives", "got"), [("not a number", "nan"), ("a huge number", "inf")])
def test_the_contract_is_checked_by_whoever_composes(gives, got, planted, rollouts):
    named = [NamedReward(name="mine", reward=build(gives=gives))]
    with pytest.raises(ContractError, match=f"the value must be a number below 1e15, got {got}"):
        RewardComposer(named)(rollouts)


def test_what_it_is_shown_is_what_the_run_has(planted, rollouts, earlier):
    said = build(gives="repr")(rollouts, earlier)
    assert [one.reason for one in said] == [repr((one, earlier)) for one in rollouts]
    assert build(gives="same", high=9.0)(rollouts, earlier)[0].value == len({id(x.prompt) for x in rollouts})


def test_it_says_of_itself_what_it_would_say_in_the_run(planted):
    apart, own = build(high=2.5), build(False, high=2.5)
    for name in ("bounds", "judges", "declared", "detects_negation", "compares_group", "audit_exemption"):
        assert getattr(apart, name) == getattr(own, name), name
    assert tuple(apart.requires) == own.requires
    assert str(apart.evid_offer) == str(own.evid_offer)


def test_random_draws_are_those_of_the_run(planted, rollouts):
    apart, own = build(gives="draws"), build(False, gives="draws")
    for seed in (3, 4):
        both = []
        for reward in (apart, own):
            random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
            both.append(reward(rollouts, {}))
        assert both[0] == both[1]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    apart(rollouts, {})
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_it_remembers_between_calls_and_begins_anew_in_another_process(planted, rollouts):
    gc.collect()
    reward = build(gives="calls", high=9.0)
    assert [reward(rollouts, {})[0].value for _ in range(3)] == [1, 2, 3]
    number = reward._process.worker.process.pid
    with workers_ended():
        assert below(number)
    assert below(number) == []
    assert reward(rollouts, {})[0].value == 1


def test_no_variable_crosses_but_those_that_are_listed(planted, rollouts, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MY_API_KEY", "secret")
    told = dict(line.split("=", 1) for line in build(gives="environment")(rollouts, {})[0].reason.split("\n"))
    listed = {*isolation.ALLOWED, *isolation._environment(), "HOME", "TMPDIR", "EVID_CACHE"}
    listed.add("GDCM_RESOURCES_PATH")  # gdcm sets it where it is imported, in the program itself
    assert {name for name in told if not name.startswith("LC_")} <= listed
    assert "secret" not in str(told)
    assert (told["HF_HUB_OFFLINE"], told["HOME"] == os.environ["HOME"]) == ("1", False)


FILES = {"token", "write", "move", "link"}  # what Landlock keeps from it
PROCESSES = {"environs", "signal", "network"}  # `unshare` does that, and Landlock too where it is new


@pytest.mark.parametrize("landlock", [True, False])
@pytest.mark.parametrize("unshare", [True, False])
def test_what_the_fence_keeps_out_by_what_the_system_allows(
    unshare, landlock, planted, rollouts, tmp_path, monkeypatch
):
    if (unshare and not isolation.network_blocked()) or (landlock and isolation.landlock.version() < 6):
        pytest.skip("this system has no such fence")
    monkeypatch.setattr(isolation, "network_blocked", lambda: unshare)
    for name in ("token", "moved"):
        (tmp_path / name).touch()
    if not landlock:
        (tmp_path / "none.py").write_text("import os, sys\nos.execvp(sys.argv[3], sys.argv[3:])\n")
        monkeypatch.setattr(isolation.landlock, "__file__", str(tmp_path / "none.py"))
    assert HF_TOKEN_PATH in isolation.SECRETS
    monkeypatch.setattr(isolation, "SECRETS", (str(tmp_path / "token"),))
    command, secret = ["sleep", "60"], {"HF_TOKEN": "hf_secret", "PATH": os.environ["PATH"]}
    with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(command, env=secret) as other:
        asked = (dataclasses.replace(rollouts[0], text=f"{tmp_path}:{server.getsockname()[1]}"),)
        done = set(build(gives="breaks out")(asked, {})[0].reason.split())
        other.kill()
    ctypes.CDLL(None).prctl(4, 1)
    if unshare or landlock:
        assert done == (set() if landlock else FILES)
    else:  # the run itself root alone can read
        assert done - {"environ", "memory", "files"} == FILES | PROCESSES


def test_the_run_answers_what_it_asks(planted, rollouts, tmp_path):
    cases = [rollouts[0].prompt.case]
    given = {
        "vocabulary": lambda: ("lung nodule",), "cases": lambda: cases, "recipe_folder": tmp_path,
        "cache_folder": tmp_path / "cache", "policy": object(),
    }  # fmt: skip
    said = build(use="asking", given=given)(rollouts, {})[0].reason
    assert said.startswith(f"(('lung nodule',), ['{cases[0].id}'], {tmp_path!r}, ")
    assert str(tmp_path / "cache") not in said


def test_what_a_person_can_fix_stays_that(planted, rollouts):
    with pytest.raises(DataError) as caught:
        build(act="data")(rollouts, {})
    assert (caught.value.safe, str(caught.value)) == ("terms.csv: ", "terms.csv: is empty")


def test_what_is_wrong_while_it_is_built_names_the_place(planted):
    with pytest.raises(PluginError, match=r"asks the core for 'vocabulary'; a reward is given"):
        build(use="asking")


def test_a_start_that_takes_too_long_is_ended(planted, monkeypatch):
    build()  # its description is known from here on
    monkeypatch.setattr(isolation, "START_LIMIT_S", 0.001)
    with pytest.raises(ContractError, match=r"has not answered in its own process for 0\.001 s"):
        build()


def test_failed_calls_are_counted_where_some_may_fail(planted, rollouts):
    late = NamedReward(name="late", reward=build(LIMITS, act="loops"), package="planted-package 1.2")
    with pytest.raises(ContractError, match="has not answered") as caught:
        RewardComposer([late])(rollouts)
    assert not isinstance(caught.value, FailedCall)
    judged = RewardComposer([late], max_failure_rate=0.5)(rollouts)
    assert "has not answered in its own process for 1.5 s" in judged.failed["late"]
    assert {one.kind for one in judged.verdicts["late"]} == {"failed"}
    left = NamedReward(name="left", reward=build(act="exits"))
    with pytest.raises(ContractError, match="ended its process with status 7"):
        RewardComposer([left], max_failure_rate=0.5)(rollouts)


def test_a_component_that_nobody_holds_ends(planted, rollouts):
    reward = build()
    assert (home := Path(reward._process.home)).is_dir()
    del reward
    gc.collect()
    assert not home.exists()


def test_one_that_was_made_ready_is_ready_in_another_process(planted):
    scorer = build(kind="scorer", use="planted-scorer", needs_ready=True)
    with pytest.raises(ContractError, match="failed in its own process: AssertionError"):
        scorer(["a"], ["b"])
    scorer.ready()
    assert scorer(["a"], ["b"]) == [1.0]
    scorer._process.end()
    assert scorer(["a"], ["b"]) == [1.0]
