"""The run's side of an isolated component: its process, what it is asked, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import torch
from huggingface_hub.constants import HF_HUB_CACHE
from pydantic import StringConstraints, TypeAdapter, ValidationError, create_model

from evidcore.errors import ContractError, RunError
from evidcore.registry import Offer
from evidcore_plugin_hub.isolation.limits import Isolated
from evidcore_plugin_hub.isolation.messages import ASKS, FIXABLE, GIVES, REQUEST, Broken, Encoder, Pipe, frame
from evidcore_plugin_hub.trust import pins

log = logging.getLogger(__name__)

START_LIMIT_S = 120.0  # for all but a call: to start, to be built, to look for what it needs
CUT_OFF = ("unshare", "--user", "--map-root-user", "--net")  # begins a command that has no network
ALLOWED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONHOME", "TZ")  # of the environment

_running: weakref.WeakSet[IsolatedProcess] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class Raised:
    """What an isolated component raised."""

    name: Annotated[str, StringConstraints(pattern=r"^\w{1,80}$")]  # it is kept in STATUS
    fixable: str  # which of the errors that a person can fix it is, empty for others
    is_exit: bool
    has_cause: bool
    safe: str
    said: str
    trace: str


_RAISED = TypeAdapter(Raised)


@functools.cache
def network_blocked() -> bool:
    """Tell whether isolated components can reach no network here; warn once where they can."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if not subprocess.run([*CUT_OFF, "true"], capture_output=True, timeout=10).returncode:
            return True
    log.warning("network not blocked for isolated components: `unshare -rn` is refused here")
    return False


@contextlib.contextmanager
def processes_ended() -> Iterator[None]:
    """End the processes of isolated components behind it; one that is asked again starts another."""
    try:
        yield
    finally:
        for one in list(_running):
            one.end()


class IsolatedProcess:
    """A component in a process of its own: started when it is asked, ended where it fails to answer."""

    def __init__(
        self, offer: Offer, table: Mapping[str, Any], given: Mapping[str, Any], where: str,
        limits: Isolated, traits: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Take what it is built from.

        Args:
            offer: the component.
            table: its recipe table.
            given: what the core gives it: paths, and functions that it may ask.
            where: what messages call the table.
            limits: of time and memory.
            traits: the attributes that its contract declares, with their types.
        """
        self.offer, self.limits = offer, limits
        self._table, self._given, self._where, self._traits = table, given, where, traits
        self._lock, self._owner = threading.RLock(), 0
        self._end: Callable[[], Any] = lambda: None
        self._states: tuple[Any, ...] = ()
        self._is_ready = False

    def start(self) -> dict[str, Any]:
        """Start it; return its traits."""
        self._owner = os.getpid()
        starter = _starter(self._owner, network_blocked())
        number, self._pipe = starter.start()
        home = tempfile.mkdtemp(prefix="evid-isolated-")
        self._encode, self._states = Encoder(), (None, None, None)
        self._end = weakref.finalize(self, _end, starter, number, self._pipe, home)
        _running.add(self)
        own: dict[str, Any] = {name: None for name, value in self._given.items() if callable(value)}
        own |= {name: value for name, value in self._given.items() if name not in own}
        if "cache_folder" in own:
            own["cache_folder"] = Path(home, "cache")
        path = [entry or os.getcwd() for entry in sys.path]
        locks = sorted({pin.lock for pin in pins.kept().values()})
        apart = {"HOME": home, "TMPDIR": home, "EVID_CACHE": f"{home}/cache"}
        component = self.offer.kind, self._table, self._where, own, list(self._traits)
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in self._traits.items()}
        form = TypeAdapter(create_model("Traits", **fields))
        return dict(self._answer("build", (path, locks, apart, self.limits.memory_gb, *component), form))

    def ask(self, doing: str, form: TypeAdapter[Any], *arguments: Any) -> Any:
        """Have it do something, and return what it gives.

        Args:
            doing: the name of its method.
            form: the type of what it must give.
            arguments: of the method; plain data.

        Raises:
            ContractError: if it is late, ends, or gives something else; its process has ended then. If it
                raises, with what it raised as the cause.
            EvidError: what it raised itself, where a person can fix that.
        """
        with self._lock:
            if self._owner != os.getpid() or self not in _running:
                self.start()
                if self._is_ready:
                    self.ask("ready", TypeAdapter(Any))
            before, self._states = self._states, _random_states()
            news = [None if new == old else new for old, new in zip(before, self._states, strict=True)]
            found = self._answer(doing, (arguments, news), form)
            self._is_ready |= doing == "ready"
            return found

    def end(self) -> None:
        """End its process and all that it started."""
        _running.discard(self)
        self._end()

    def _answer(self, doing: str, given: Sequence[Any], form: TypeAdapter[Any]) -> Any:
        limit_s = self.limits.time_limit_s if doing == "__call__" else START_LIMIT_S
        with contextlib.ExitStack() as failing:
            failing.callback(self.end)
            try:
                pipe = Pipe(self._pipe, limit_s)
                pipe.write(frame(REQUEST, self._encode((doing, given))))
                kind, text = pipe.take()
                while kind == ASKS:
                    pipe.write(frame(REQUEST, self._encode(self._asked(text))))
                    kind, text = pipe.take()
                found = (form if kind == GIVES else _RAISED).validate_json(text, strict=True)
            except TimeoutError as cause:
                late = f"{self.offer} has not answered in its own process for {limit_s:g} s and was ended"
                raise ContractError(late, ". Raise time_limit_s if it needs longer.") from cause
            except ValidationError as cause:
                wrong = cause.errors(include_url=False)[0]
                place = "".join(f"[{part!r}]" for part in wrong["loc"])
                self._fail(
                    "gave what its contract does not allow",
                    f": {wrong['msg']}{place}, got {wrong['input']!r:.200}",
                )
            except Broken as cause:
                self._fail(str(cause))
            except TypeError as cause:
                self._fail("cannot be told what it is asked", f": {cause}")
            if kind == GIVES:
                failing.pop_all()
                return found
            if found.is_exit:
                self._fail(f"tried to end its process with {found.name}", f": {found.said}")
            if doing != "build":
                failing.pop_all()
            trace = RuntimeError(f"{found.name}: {found.said}\nin its own process:\n{found.trace}")
            if found.fixable in FIXABLE:
                raise FIXABLE[found.fixable](found.safe, found.said) from (trace if found.has_cause else None)
            said = f": {found.said}. Report this to the authors of {self.offer.package}."
            raise ContractError(f"{self.offer} failed in its own process: {found.name}", said) from trace

    def _asked(self, name: bytes) -> Any:
        """Return what the component asks the run for."""
        ask = self._given.get(name.decode("ascii", "replace"))
        if not callable(ask):
            raise Broken("asked for what it is not given")
        return ask()

    def _fail(self, what: str, quoting: str = "") -> NoReturn:
        authors = f"Report this to the authors of {self.offer.package}."
        raise ContractError(f"{self.offer} {what}", f"{quoting}. {authors}") from None


class _Starter:
    """The program that starts the processes: what they stand on is imported once."""

    def __init__(self, cut_off: bool) -> None:
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._control, theirs = socket.socketpair()
        program = [sys.executable, "-P", "-m", "evidcore_plugin_hub.isolation.worker"]
        # a process that a thread started is ended with that thread, so this one stays
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="isolation")
        with theirs:
            self._process = self._thread.submit(
                subprocess.Popen,
                [*(CUT_OFF if cut_off else ()), *program, str(theirs.fileno()), str(os.getpid())],
                env=_environment(), pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2,
                start_new_session=True,
            ).result()  # fmt: skip
        self._control.settimeout(START_LIMIT_S)
        weakref.finalize(self, _close, self._control, self._process, self._owner)

    def start(self) -> tuple[int, socket.socket]:
        """Start a process; return its number and the pipe to it."""
        pipe, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._control, [b"start"], [theirs.fileno()])
                return int(self._control.recv(64)), pipe
        except (OSError, ValueError) as cause:
            pipe.close()
            _starter.cache_clear()  # the next one is another program
            text = "the program that starts processes of isolated components has ended, or does not answer."
            raise RunError(f"{text} What it said is above. `evid resume` starts another.") from cause

    def end(self, number: int) -> None:
        """End a process with its group."""
        if os.getpid() == self._owner:  # a fork leaves it alone
            with self._lock, contextlib.suppress(OSError):  # where the program has ended, all have
                self._control.sendall(str(number).encode())
                self._control.recv(64)


@functools.cache
def _starter(owner: int, cut_off: bool) -> _Starter:
    """Return the program of this process; a fork has its own."""
    return _Starter(cut_off)


def _end(starter: _Starter, number: int, pipe: socket.socket, home: str) -> None:
    starter.end(number)
    pipe.close()
    shutil.rmtree(home, ignore_errors=True)


def _close(control: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    control.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Return all that isolated components are told of the environment; no other name crosses."""
    kept = {name: text for name, text in os.environ.items() if name in ALLOWED or name.startswith("LC_")}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    hub = {"HF_HUB_CACHE": HF_HUB_CACHE, "HF_HUB_OFFLINE": "1"}
    return kept | threads | hub | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


def _random_states() -> tuple[Any, Any, Any]:
    """Return the states of the generators that training draws from."""
    name, keys, *rest = np.random.get_state()
    numpys = name, tuple(np.asarray(keys).tolist()), *rest
    return random.getstate(), numpys, torch.get_rng_state().numpy().tobytes()
