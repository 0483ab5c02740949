"""A program beside this one: what it gives is checked, and how it ends is told."""

import os
import subprocess
import sys
import time

import pytest
from evidcore_plugin_hub.worker import FENCE, Broken, Late, Raised, Worker, how_ended, workers_ended
from pydantic import TypeAdapter, ValidationError


@pytest.fixture(params=[(), FENCE], ids=["beside", "fenced"])
def worker(request):
    made = Worker("planted_server:Server", before=request.param, keeps_errors=True)
    yield made
    made.end()
    assert not made.is_running
    assert made.process.poll() is not None


def test_it_does_one_thing_after_the_other_and_says_what_it_printed(worker):
    form = TypeAdapter(dict[str, int])
    assert worker.ask("add", 1, 2) == {"sum": 3, "call": 1}
    assert worker.ask("add", 4, form=form, limit_s=20) == {"sum": 4, "call": 2}
    assert worker.ask("says", "ü is\nsaid") is None
    assert worker.last_words() == "said"


def test_it_asks_for_what_it_is_given_alone():
    worker = Worker("planted_server:Server", given={"cases": lambda: ["a"], "folder": "/data"})
    assert worker.ask("asks", "cases") == ["a"]
    with pytest.raises(Broken, match="asked for what it is not given"):
        worker.ask("asks", "folder")
    assert not worker.is_running


@pytest.mark.parametrize(
    ("doing", "given", "status", "says"),
    [("ends", 7, 7, "ended its process with status 7"), ("dies", None, -11, "ended its process by SIGSEGV")],
)
def test_how_it_ended_is_told(worker, doing, given, status, says):
    with pytest.raises(Broken, match=says) as caught:
        worker.ask(doing, *([] if given is None else [given]))
    assert caught.value.status == status


def test_one_that_is_late_is_ended(worker):
    start_s = time.monotonic()
    with pytest.raises(Late, match=r"has not answered for 0\.5 s"):
        worker.ask("sleeps", limit_s=0.5)
    assert time.monotonic() - start_s < 30


def test_what_it_raises_is_told_and_it_goes_on(worker):
    with pytest.raises(Raised, match=r"KeyError: 'glossary.csv'") as caught:
        worker.ask("raises")
    assert caught.value.error.classes[:2] == ["KeyError", "LookupError"]
    assert 'raise KeyError("glossary.csv")' in caught.value.error.trace
    with pytest.raises(Raised, match="SystemExit: 4") as caught:
        worker.ask("exits")
    assert caught.value.error.is_exit
    with pytest.raises(Raised, match="must give plain data, got object"):
        worker.ask("gives")
    assert worker.ask("add")["call"] == 1


def test_another_type_than_was_asked_for_ends_it(worker):
    with pytest.raises(ValidationError):
        worker.ask("add", 1, form=TypeAdapter(list[str]))
    assert not worker.is_running


@pytest.mark.parametrize(
    ("serves", "says"),
    [("planted_server:Unbuilt", "no such weights"), ("nowhere:It", "No module named 'nowhere'")],
)
def test_one_that_cannot_be_made_says_why_at_every_request(serves, says):
    worker = Worker(serves)
    for _ in range(2):
        with pytest.raises(Raised, match=says):
            worker.ask("add")
    worker.end()


def test_what_cannot_be_pickled_is_not_asked():
    worker = Worker("planted_server:Server")
    with pytest.raises((AttributeError, TypeError)):
        worker.ask("add", lambda: 0)
    assert not worker.is_running


def test_whether_it_comes_to_its_end_by_itself():
    idle, staying = Worker("planted_server:Server"), Worker("planted_server:Server")
    idle.ask("add")
    staying.ask("stays")
    assert idle.ends_by_itself(20)
    assert not staying.ends_by_itself(0.5)
    assert staying.process.poll() is not None


def test_all_of_a_program_are_ended_behind_what_needed_them():
    with workers_ended():
        worker = Worker("planted_server:Server")
        assert worker.is_running
    assert not worker.is_running


def test_it_ends_with_the_program_that_started_it():
    code = (
        "import os, signal; from evidcore_plugin_hub.worker import Worker;"
        "made = Worker('planted_server:Server'); made.ask('add');"
        "print(made.process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path, check=False)
    over_s = time.monotonic() + 10
    while os.path.exists(f"/proc/{done.stdout.strip()}") and time.monotonic() < over_s:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{done.stdout.strip()}")


def test_an_end_is_put_in_words():
    assert [how_ended(status) for status in (0, 3, -9, -200)] == [
        "with status 0", "with status 3", "by SIGKILL", "by a signal",
    ]  # fmt: skip
