"""A policy that several processes answer for: what each is dealt, and what comes of it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from evidcore.api import DataError
from evidcore.compute.processes import Processes
from evidcore.model.policy import VLMPolicy
from evidcore.runs import shared_policy
from evidcore.runs.shared_policy import Opener, serve, worker_group


class Tells(VLMPolicy):
    """Answers with the prompt and who it is; made without a model."""

    def __init__(self, says):
        super().__init__(says, None, prompts_per_pass=4, dtype=torch.bfloat16)
        self.opening = f"opening of {says}"


@pytest.fixture
def in_processes(monkeypatch):
    """Return a function that runs one function per rank, each in a thread that takes itself for a process."""

    class Together(Processes):
        def __init__(self, count):
            self.count, self.here = count, threading.local()
            self.barrier, self.held = threading.Barrier(count), [None] * count

        @property
        def rank(self):
            return self.here.rank

        def exchange(self, value):
            self.held[self.rank] = value
            self.barrier.wait(10)
            found = list(self.held)
            self.barrier.wait(10)
            return found

        def gather(self, value):
            found = self.exchange(value)
            return found if self.is_first else []

        def share(self, value):
            return self.exchange(value)[0]

        def wait(self):
            self.barrier.wait(10)

    def run(*functions, generate=None):
        together = Together(len(functions))

        def tell(self, prompts, **how):
            return [f"{one} by {self.model}{together.rank} {how}" for one in prompts]

        monkeypatch.setattr(shared_policy, "processes", lambda: together)
        monkeypatch.setattr(VLMPolicy, "generate", generate or tell)
        monkeypatch.setattr(
            VLMPolicy, "log_likelihoods",
            lambda self, prompts, completions: [[float(len(text))] for text in completions],
        )  # fmt: skip

        def one(rank):
            together.here.rank = rank
            try:
                return functions[rank]()
            except Exception:
                together.barrier.abort()  # as a process that is gone: the others' wait breaks
                raise

        with ThreadPoolExecutor(len(functions)) as pool:
            begun = [pool.submit(one, rank) for rank in range(len(functions))]
            return [item.result(20) for item in begun]

    return run


class Aloud(Tells):
    """A policy with a way of its own to answer, as one with a rollout."""

    def generate(self, prompts, **how):
        return [text.upper() for text in super().generate(prompts, **how)]


def make(*, says="own"):
    return (Aloud if says == "aloud" else Tells)(says)


def test_prompts_are_dealt_out_and_answers_stand_in_their_order(in_processes):
    def first():
        with worker_group():
            own, blind = (opener := Opener(make)).open(), opener.open(says="blind")
            texts = blind.generate(["a", "b", "c", "d", "e"], max_new_tokens=3)
            aloud = opener.open(says="aloud").generate(["a", "b"], max_new_tokens=1)
            alone = own.generate(["a"], max_new_tokens=1)
            assert (own.dtype, own.opening) == (torch.bfloat16, "opening of own")  # a proof asks as it does
            return texts, alone, own.log_likelihoods(["a", "b"], ["x", "yy"]), aloud

    def other():
        serve(make)

    assert type(Opener(make).open()) is Tells  # one process opens the policy itself
    texts, alone, likelihoods, aloud = in_processes(first, other, other)[0]
    assert [text.split(" {")[0] for text in aloud] == ["A BY ALOUD0", "B BY ALOUD1"]
    assert [text.split(" {")[0] for text in texts] == [
        "a by blind0", "b by blind0", "c by blind1", "d by blind1", "e by blind2",
    ]  # fmt: skip
    assert texts[0].endswith("{'max_new_tokens': 3}")
    assert alone[0].startswith("a by own0")  # fewer prompts than processes
    assert likelihoods == [[1.0], [2.0]]


def test_the_others_leave_after_the_first_when_it_fails(in_processes):
    left = []

    def first():
        with worker_group():
            Opener(make).open()
            raise ValueError("no volumes")

    def other():
        with pytest.raises(SystemExit):
            serve(make)
        left.append(True)

    with pytest.raises(ValueError, match="no volumes"):
        in_processes(first, other)
    assert left == [True]


class Unsendable(Exception):
    """Cannot be read back: its constructor wants what it does not keep."""

    def __init__(self, case, slices):
        super().__init__(f"{case} has {slices} slices")


@pytest.mark.parametrize(
    ("raised", "seen", "message"),
    [(DataError("case-3 has no slices"), DataError, "case-3 has no slices"),
     (Unsendable("case-3", 0), RuntimeError, "Unsendable: case-3 has 0 slices")],
)  # fmt: skip
def test_an_error_in_anothers_share_is_raised_in_the_first(in_processes, raised, seen, message):
    def first():
        with worker_group(), pytest.raises(seen, match=message) as kept:
            Opener(make).open().generate(["a", "broken"], max_new_tokens=1)
        return "".join(kept.value.__notes__)

    def other():
        serve(make)

    def generate(self, prompts, **how):
        if "broken" in prompts:
            raise raised
        return list(prompts)

    notes = in_processes(first, other, generate=generate)[0]
    assert notes.startswith("in process 1:\nTraceback")
    assert notes.rstrip().endswith(message)
