"""A program beside this one: what it gives is checked, and how it ends is told. More is in isolation/."""

import os
import pickle
import subprocess
import sys
import time

import psutil
import pytest
from evidcore_plugin_hub.worker import FENCE, Broken, Raised, Worker, how_ended, workers_ended
from pydantic import TypeAdapter, ValidationError

SERVER = "planted_server:Server"


@pytest.fixture(params=[(), FENCE], ids=["beside", "fenced"])
def worker(request):
    made = Worker(SERVER, before=request.param, keeps_errors=True)
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


def test_a_signal_that_ended_it_is_told():
    worker = Worker(SERVER)
    with pytest.raises(Broken, match="ended its process by SIGSEGV") as caught:
        worker.ask("dies")
    assert caught.value.status == -11
    assert not worker.is_running


def test_what_it_raises_is_told_and_it_goes_on(worker):
    with pytest.raises(Raised, match=r"KeyError: 'glossary.csv'") as caught:
        worker.ask("raises")
    assert caught.value.classes[:2] == ["KeyError", "LookupError"]
    assert 'raise KeyError("glossary.csv")' in caught.value.trace
    with pytest.raises(Raised, match="SystemExit: 4") as caught:
        worker.ask("exits")
    assert caught.value.is_exit
    with pytest.raises(Raised, match="must give plain data, got object"):
        worker.ask("gives")
    assert worker.ask("add")["call"] == 1


NO_PICKLE = (AttributeError, TypeError, pickle.PicklingError)
WRONG = [(1, TypeAdapter(list[str]), ValidationError), (lambda: 0, None, NO_PICKLE)]


@pytest.mark.parametrize(("given", "form", "error"), WRONG)
def test_another_type_than_was_asked_for_and_what_cannot_cross_end_it(given, form, error):
    worker = Worker(SERVER)
    with pytest.raises(error):
        worker.ask("add", given, form=form)
    assert not worker.is_running


def test_one_that_cannot_be_made_says_why_at_every_request():
    with workers_ended():
        worker = Worker("planted_server:Unbuilt")
        for _ in range(2):
            with pytest.raises(Raised, match="no such weights"):
                worker.ask("add")
        assert worker.is_running
    assert not worker.is_running


def test_whether_it_comes_to_its_end_by_itself():
    idle, staying = Worker(SERVER), Worker(SERVER)
    idle.ask("add")
    staying.ask("stays")
    assert idle.ends_by_itself(20)
    assert not staying.ends_by_itself(0.5)
    assert staying.process.poll() is not None


@pytest.mark.parametrize("fence", [(), FENCE], ids=["beside", "fenced"])
def test_it_ends_with_the_program_that_started_it_whatever_it_does(fence):
    code = (
        "import os, signal, threading, time; from evidcore_plugin_hub.worker import Worker;"
        f"made = Worker('planted_server:Server', before={fence!r}); made.ask('add');"
        "threading.Thread(target=made.ask, args=('sleeps',), daemon=True).start(); time.sleep(0.5);"
        "print(os.getsid(made.process.pid), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    path = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path, check=False)
    session, over_s = int(done.stdout), time.monotonic() + 10

    def left():
        return [item.pid for item in psutil.process_iter() if session_of(item) == session]

    while left() and time.monotonic() < over_s:
        time.sleep(0.05)
    assert left() == []


def session_of(process):
    try:
        return 0 if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return 0


def test_an_end_is_put_in_words():
    words = ["with status 0", "with status 3", "by SIGKILL", "by a signal"]
    assert [how_ended(status) for status in (0, 3, -9, -200)] == words
