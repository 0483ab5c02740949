"""Components in processes of their own: `isolated = true` in the table of a reward, a scorer or a reader.

A fence against what goes wrong in somebody's code: it hangs, takes all memory, exits, or writes into what
others judge by. It is no sandbox: docs/howto/isolation.md says what passes it.
"""

import contextlib
import ctypes
import dataclasses
import functools
import inspect
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import typing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import torch
from annotated_types import Gt, Le
from huggingface_hub.constants import HF_HUB_CACHE
from pydantic import TypeAdapter, ValidationError, create_model

from evidcore.api import DataError, Reader, Reward, Rollout, Score, Scorer, Unscored, find
from evidcore.case import Verdict
from evidcore.contracts import ImageQuestion, contract
from evidcore.contracts.judging import Checked
from evidcore.errors import ContractError, NotDownloadedError, PluginError, RecipeError, RunError
from evidcore.registry import Offer
from evidcore.registry.factory import Mistake, arguments, check_options, options
from evidcore_plugin_hub.trust import pins
from evidcore_plugin_hub.worker import FENCE, Broken, Late, Raised, Worker
from evidcore_plugin_hub.worker import workers_ended as workers_ended

log = logging.getLogger(__name__)

CROSSING = ("recipe_folder", "cache_folder", "vocabulary", "cases")  # given to isolated components too
START_LIMIT_S = 120.0  # for all but a call: to start, to be built, to look for what it needs
ALLOWED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONHOME", "TZ")  # of the environment
FIXABLE = {
    form.__name__: form
    for form in (ContractError, DataError, NotDownloadedError, PluginError, RecipeError, RunError)
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isolated:
    """Limits of a component in a process of its own; `isolated = true` takes these."""

    time_limit_s: Annotated[float, Gt(0), Le(86400)] = 60.0  # of a call
    memory_gb: Annotated[float, Gt(0), Le(10000)] = 4.0  # beside what the core itself takes


def resolved(value: Any) -> dict[str, Any]:
    """Return a checked `isolated` with its defaults."""
    return dataclasses.asdict(Isolated(**arguments(Isolated, {} if value is True else value, "isolated")))


def check(kind: str, table: Mapping[str, Any], where: str) -> Iterator[Mistake]:
    """Yield what is wrong with `isolated` in a component's table."""
    value = table["isolated"]
    if isinstance(value, Mapping):
        for item in check_options(options(Isolated), value, where):
            yield dataclasses.replace(item, key=("isolated", *item.key))
    elif value is not True:
        text = f"must be true, false, or a table {{ time_limit_s = 60.0, memory_gb = 4.0 }}, got {value!r}."
        yield Mistake(where=where, key=("isolated",), text=text)
    with contextlib.suppress(PluginError):  # reported where the component is named
        for key, text in _needs_run(kind, table, ()):
            yield Mistake(where=where, key=key, text=text)


Key = tuple[str | int, ...]


def _needs_run(kind: str, table: Mapping[str, Any], at: Key) -> Iterator[tuple[Key, str]]:
    """Yield what a component needs that stays in the run's process: what the core gives it, and services."""
    offer = find(kind, str(table.get("use")))
    for item in inspect.signature(offer.load()).parameters.values():
        if item.kind is item.POSITIONAL_OR_KEYWORD and item.name not in CROSSING:
            text = f"not for {offer}: it asks the core for {item.name!r}, which stays in the run's process."
            yield at or ("isolated",), f"{text} Leave `isolated` out."
    for name, option in options(offer.load(), kind).items():
        value = table.get(name, option.default)
        each = [((*at, name), value)]
        if option.is_list and isinstance(value, list | tuple):
            each = [((*at, name, index), entry) for index, entry in enumerate(value)]
        for key, entry in each if option.kind else ():
            if isinstance(entry, str):
                text = f"service {entry!r} stays in the run's process, and {offer} is isolated."
                yield key, f"{text} Give a table of its own, {{ use = … }}, or leave `isolated` out."
            elif isinstance(entry, Mapping):
                if entry.get("isolated"):
                    yield (*key, "isolated"), f"it is in the process of {offer} already. Leave it out here."
                yield from _needs_run(str(option.kind), entry, key)


@functools.cache
def network_blocked() -> bool:
    """Tell whether isolated components can reach no network here; warn once where they can."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if not subprocess.run([*FENCE, "true"], capture_output=True, timeout=10).returncode:
            return True
    log.warning("network not blocked for isolated components: `unshare -rn` is refused here")
    return False


class IsolatedProcess:
    """A component in a process of its own: started when it is asked, ended where it fails to answer.

    `given` are paths, and functions that it may ask; `traits` what its contract declares, with types.
    """

    def __init__(
        self, offer: Offer, table: Mapping[str, Any], given: Mapping[str, Any], where: str,
        traits: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.offer, self.limits = offer, Isolated(**resolved(table["isolated"]))
        self._table = {key: value for key, value in table.items() if key != "isolated"}
        self._given, self._where, self._traits = given, where, traits
        self._lock, self._owner, self._is_ready = threading.RLock(), 0, False
        self._clear: Callable[[], Any] = lambda: None

    def start(self) -> dict[str, Any]:
        """Start it; return its traits."""
        self._clear()
        self._owner = os.getpid()
        if not (is_fenced := network_blocked()):  # else a user namespace of its own keeps it from that
            ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: root alone reads /proc/<this run>/environ then
        server, before = "evidcore_plugin_hub.isolated:Server", FENCE if is_fenced else ()
        self.worker = Worker(server, before=before, environment=_environment(), given=self._given)
        self.home = tempfile.mkdtemp(prefix="evid-isolated-")
        self._clear = weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)
        given = {name: None if callable(value) else value for name, value in self._given.items()}
        if "cache_folder" in given:
            given["cache_folder"] = Path(self.home, "cache")
        locks = sorted({pin.lock for pin in pins.kept().values()})
        folders = {"HOME": self.home, "TMPDIR": self.home, "EVID_CACHE": f"{self.home}/cache"}
        component = self.offer.kind, self._table, self._where, given, list(self._traits)
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in self._traits.items()}
        form = TypeAdapter(create_model("Traits", **fields))
        return dict(self._answer("build", (locks, folders, self.limits.memory_gb, *component), form))

    def ask(self, method: str, form: TypeAdapter[Any], *given: Any) -> Any:
        """Have it do something, and return what it gives, which must be of a type.

        Raises:
            ContractError: if it is late, ends, or gives something else; its process has ended then. If it
                raises, with what it raised as the cause.
            EvidError: what it raised itself, where a person can fix that.
        """
        with self._lock:
            if self._owner != os.getpid() or not self.worker.is_running:
                self.start()
                if self._is_ready:
                    self.ask("ready", TypeAdapter(Any))
            states = random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes()
            result = self._answer("call", (method, given, states), form)
            self._is_ready |= method == "ready"
            return result

    def end(self) -> None:
        """End its process and all that it started."""
        self.worker.end()
        self._clear()

    def _answer(self, method: str, given: tuple[Any, ...], form: TypeAdapter[Any]) -> Any:
        limit_s = self.limits.time_limit_s if (method, given[0]) == ("call", "__call__") else START_LIMIT_S
        try:
            return self.worker.ask(method, *given, form=form, limit_s=limit_s)
        except Late as cause:
            self.end()
            late = f"{self.offer} has not answered in its own process for {limit_s:g} s and was ended"
            raise ContractError(late, ". Raise time_limit_s if it needs longer.") from cause
        except ValidationError as cause:
            wrong = cause.errors(include_url=False)[0]
            place = "".join(f"[{part!r}]" for part in wrong["loc"])
            what = "gave what its contract does not allow"
            self._fail(what, f": {wrong['msg']}{place}, got {wrong['input']!r:.200}")
        except Broken as cause:
            self._fail(str(cause))
        except (TypeError, AttributeError, pickle.PicklingError) as cause:
            self._fail("cannot be told what it is asked", f": {cause}")
        except Raised as cause:
            error, fixable = cause, next((item for item in cause.classes if item in FIXABLE), "")
        if error.is_exit:
            self._fail(f"tried to end its process with {error.name}", f": {error.message}")
        if method == "build":
            self.end()
        trace = RuntimeError(f"{error.name}: {error.message}\nin its own process:\n{error.trace}")
        if fixable:
            raise FIXABLE[fixable](error.safe, error.message) from (trace if error.has_cause else None)
        said = f": {error.message}. Report this to the authors of {self.offer.package}."
        raise ContractError(f"{self.offer} failed in its own process: {error.name}", said) from trace

    def _fail(self, what: str, quoting: str = "") -> NoReturn:
        self.end()
        authors = f"Report this to the authors of {self.offer.package}."
        raise ContractError(f"{self.offer} {what}", f"{quoting}. {authors}") from None


def _environment() -> dict[str, str]:
    """Return all variables of the environment that cross."""
    passed = {name: text for name, text in os.environ.items() if name in ALLOWED or name.startswith("LC_")}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    path = os.pathsep.join(filter(None, sys.path))
    hub = {"HF_HUB_CACHE": HF_HUB_CACHE, "HF_HUB_OFFLINE": "1"}
    return passed | threads | hub | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


Number = int | float


@dataclasses.dataclass
class _Score:
    value: Number
    parts: dict[str, Number]
    reason: str


@dataclasses.dataclass
class _Unscored:
    kind: Literal["not-applicable", "failed"]
    reason: str


_VERDICTS: TypeAdapter[Any] = TypeAdapter(list[_Score | _Unscored | None])
_CHECKED = TypeAdapter(list[Checked])
_NUMBERS = TypeAdapter(list[Number | None])
_TEXTS = TypeAdapter(list[str | None])


class _Isolated:
    """What the three have in common: the process, and what the component says of itself."""

    def __init__(self, process: IsolatedProcess) -> None:
        self._process = process
        vars(self).update(process.start())

    def ready(self) -> None:
        """Ask the component whether anything is missing."""
        self._process.ask("ready", TypeAdapter(Any))

    def _each(self, form: TypeAdapter[Any], count: int, *given: Any) -> Any:
        result = self._process.ask("__call__", form, *given)
        if len(result) != count:
            raise ContractError(f"{self._process.offer} gave {len(result)} answers to {count}.")
        return result


class IsolatedReward(_Isolated, Reward):
    """A reward in a process of its own."""

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Have it judge; what calls it counts the verdicts and holds them to its bounds."""
        result = self._process.ask("__call__", _VERDICTS, rollouts, earlier)
        return [item and (Score if isinstance(item, _Score) else Unscored)(**vars(item)) for item in result]

    def checks(self, gold: Sequence[Rollout]) -> Sequence[Checked]:
        """Return what it finds of itself."""
        result: list[Checked] = self._process.ask("checks", _CHECKED, gold)
        return result


class IsolatedScorer(_Isolated, Scorer):
    """A scorer in a process of its own."""

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Have it compare."""
        result: list[float | None] = self._each(_NUMBERS, len(candidates), candidates, references, questions)
        return result


class IsolatedReader(_Isolated, Reader):
    """A reader in a process of its own."""

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Have it read."""
        result: list[str | None] = self._each(_TEXTS, len(questions), questions)
        return result


_KINDS: Mapping[str, type[IsolatedReward | IsolatedScorer | IsolatedReader]] = {
    "reward": IsolatedReward, "scorer": IsolatedScorer, "reader": IsolatedReader,
}  # fmt: skip


def isolate(
    offer: Offer, table: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> Reward | Scorer | Reader:
    """Return a component that is built and asked in a process of its own, given what can cross."""
    crossing = {name: given[name] for name in CROSSING if name in given}
    traits = {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) is typing.ClassVar else hint
        for name, hint in typing.get_type_hints(contract(offer.kind)).items()
    }
    return _KINDS[offer.kind](IsolatedProcess(offer, table, crossing, where, traits))
