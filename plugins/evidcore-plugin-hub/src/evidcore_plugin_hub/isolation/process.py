"""The run's side of an isolated component: its process, what it is asked, and how it ends."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from huggingface_hub.constants import HF_HUB_CACHE
from pydantic import TypeAdapter, ValidationError, create_model

from evidcore.errors import ContractError, DataError, NotHere, PluginError, RecipeError, RunError
from evidcore.registry import Offer
from evidcore_plugin_hub.isolation.limits import Isolated
from evidcore_plugin_hub.isolation.messages import Encoder
from evidcore_plugin_hub.trust import pins
from evidcore_plugin_hub.worker import Broken, Late, Raised, Worker

log = logging.getLogger(__name__)

START_LIMIT_S = 120.0  # for all but a call: to start, to be built, to look for what it needs
CUT_OFF = ("unshare", "--user", "--map-root-user", "--net")  # begins a command that has no network
ALLOWED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONHOME", "TZ")  # of the environment
FIXABLE = {
    form.__name__: form for form in (ContractError, DataError, NotHere, PluginError, RecipeError, RunError)
}


@functools.cache
def network_blocked() -> bool:
    """Tell whether isolated components can reach no network here; warn once where they can."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if not subprocess.run([*CUT_OFF, "true"], capture_output=True, timeout=10).returncode:
            return True
    log.warning("network not blocked for isolated components: `unshare -rn` is refused here")
    return False


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
        self._lock, self._owner, self._is_ready = threading.RLock(), 0, False
        self._clear: Callable[[], Any] = lambda: None
        self._states: tuple[Any, ...] = ()

    def start(self) -> dict[str, Any]:
        """Start it; return its traits."""
        self._clear()
        self._owner, self._states = os.getpid(), (None, None, None)
        self.worker = Worker(
            "evidcore_plugin_hub.isolation.server:Server", before=CUT_OFF if network_blocked() else (),
            environment=_environment(), apart=True, encode=Encoder(), given=self._given,
        )  # fmt: skip
        self.home = tempfile.mkdtemp(prefix="evid-isolated-")
        self._clear = weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)
        own = {name: None if callable(value) else value for name, value in self._given.items()}
        if "cache_folder" in own:
            own["cache_folder"] = Path(self.home, "cache")
        locks = sorted({pin.lock for pin in pins.kept().values()})
        apart = {"HOME": self.home, "TMPDIR": self.home, "EVID_CACHE": f"{self.home}/cache"}
        component = self.offer.kind, dict(self._table), self._where, own, list(self._traits)
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in self._traits.items()}
        form = TypeAdapter(create_model("Traits", **fields))
        return dict(self._answer("build", (locks, apart, self.limits.memory_gb, *component), form))

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
            if self._owner != os.getpid() or not self.worker.is_running:
                self.start()
                if self._is_ready:
                    self.ask("ready", TypeAdapter(Any))
            before, self._states = self._states, _random_states()
            news = [None if new == old else new for old, new in zip(before, self._states, strict=True)]
            found = self._answer("call", (doing, arguments, news), form)
            self._is_ready |= doing == "ready"
            return found

    def end(self) -> None:
        """End its process and all that it started."""
        self.worker.end()
        self._clear()

    def _answer(self, method: str, given: tuple[Any, ...], form: TypeAdapter[Any]) -> Any:
        is_call = method == "call" and given[0] == "__call__"
        limit_s = self.limits.time_limit_s if is_call else START_LIMIT_S
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
            told, fixable = cause.told, next((one for one in cause.told.lines if one in FIXABLE), "")
        if told.is_exit:
            self._fail(f"tried to end its process with {told.name}", f": {told.said}")
        if method == "build":
            self.end()
        trace = RuntimeError(f"{told.name}: {told.said}\nin its own process:\n{told.trace}")
        if fixable:
            raise FIXABLE[fixable](told.safe, told.said) from (trace if told.has_cause else None)
        said = f": {told.said}. Report this to the authors of {self.offer.package}."
        raise ContractError(f"{self.offer} failed in its own process: {told.name}", said) from trace

    def _fail(self, what: str, quoting: str = "") -> NoReturn:
        self.end()
        authors = f"Report this to the authors of {self.offer.package}."
        raise ContractError(f"{self.offer} {what}", f"{quoting}. {authors}") from None


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
