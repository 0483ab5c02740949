"""Components in processes of their own: `isolated = true` in the table of a reward, a scorer or a reader.

A fence against what goes wrong in somebody's code: it hangs, takes all memory, exits, or writes into what
others judge by. It is no sandbox: docs/howto/isolation.md says what passes it.
"""

import contextlib
import ctypes
import dataclasses
import functools
import inspect
import json
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

from annotated_types import Gt, Le, MaxLen
from huggingface_hub.constants import HF_HUB_CACHE, HF_STORED_TOKENS_PATH, HF_TOKEN_PATH
from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError, create_model

from evidcore.api import DataError, Reader, Reward, Rollout, Score, Scorer, Unscored, find
from evidcore.case import Verdict
from evidcore.contracts import ImageQuestion, contract
from evidcore.contracts.judging import Checked
from evidcore.errors import ContractError, NotDownloadedError, PluginError, RecipeError, RunError, printable
from evidcore.registry import Offer, card, factory
from evidcore_plugin_hub import landlock
from evidcore_plugin_hub.isolated import CROSSING
from evidcore_plugin_hub.trust import pins
from evidcore_plugin_hub.worker import FENCE, PROTOCOL, Broken, Late, Raised, Worker
from evidcore_plugin_hub.worker import workers_ended as workers_ended

log = logging.getLogger(__name__)

START_LIMIT_S = 120.0  # for all but a call: to start, to be built, to look for what it needs
ALLOWED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "PYTHONHOME", "TZ")  # of the environment
SECRETS = (  # what no isolated component reads where there is Landlock
    HF_TOKEN_PATH, HF_STORED_TOKENS_PATH, "~/.netrc", "~/.ssh", "~/.aws", "~/.git-credentials",
    "~/.kaggle", "~/.pypirc",
)  # fmt: skip
_NEEDS = "Give an interpreter of Python 3.11 or later: `{} -m pip install evidcore-plugin-hub=="
_NEEDS += f"{PROTOCOL.rpartition(' ')[2]}` brings what it needs, beside the component's package."
_Word = Annotated[str, MaxLen(300)]
_Text = Annotated[str, MaxLen(4000)]
_FIXABLE = (ContractError, DataError, NotDownloadedError, PluginError, RecipeError, RunError)
FIXABLE = {form.__name__: form for form in _FIXABLE}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Isolated:
    """Limits of a component in a process of its own; `isolated = true` takes these."""

    time_limit_s: Annotated[float, Gt(0), Le(86400)] = 60.0  # of a call
    memory_gb: Annotated[float, Gt(0), Le(10000)] = 4.0  # beside what the core itself takes
    python: str = ""  # the interpreter of another environment, from the recipe's folder; empty: this one's


def resolved(value: Any) -> dict[str, Any]:
    """Return a checked `isolated` with its defaults; without an interpreter where it names none."""
    limits = Isolated(**factory.arguments(Isolated, {} if value is True else value, "isolated"))
    return {key: item for key, item in dataclasses.asdict(limits).items() if item != ""}


def check(value: Any) -> list[tuple[factory.Path, str]]:
    """Return what is wrong with `isolated` in a component's table, each with its key."""
    if value is True:
        return []
    if not isinstance(value, Mapping):
        text = "must be true, false, or a table { time_limit_s = 60.0, memory_gb = 4.0 }, got"
        return [(("isolated",), f"{text} {value!r}.")]
    wrong = factory.check_options(factory.options(Isolated), value)
    return [(("isolated", *item.key), item.text) for item in wrong]


class _Option(BaseModel):
    """A key of a component's table, as its own process tells."""

    kind: _Word | None
    is_list: bool
    required: bool
    default: JsonValue


class _Row(BaseModel):
    """A line of `evid show`."""

    name: str
    type: str
    required: bool
    default: JsonValue


class _Listing(BaseModel):
    """What `evid show` prints."""

    about: str
    options: list[_Row]
    fit_options: list[_Row]


class Description(BaseModel):
    """What its own process tells of a component and of a table that names it; nothing of it is believed."""

    package: _Word
    version: _Word
    target: _Word
    code: _Word
    versions: dict[_Word, _Word]  # of its environment
    asks: Annotated[list[_Word], MaxLen(100)]  # of the core
    options: Annotated[dict[_Word, _Option], MaxLen(1000)]
    listing: _Listing
    form: dict[str, JsonValue]  # its schema, which nothing here follows
    wrong: Annotated[list[tuple[Annotated[list[str | int], MaxLen(50)], _Text]], MaxLen(1000)]
    table: dict[str, JsonValue]  # with defaults; empty where anything is wrong


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfferApart(Offer):
    """A component whose code is loaded in processes of its own alone."""

    python: str = ""  # the interpreter of its environment; "": this one's

    @property
    def apart(self) -> Any:
        return self

    def card(self) -> dict[str, Any]:
        """Return the card of its package, if that is installed here."""
        return {} if self.python else card(self.package)

    def elsewhere(self) -> Mapping[str, Any]:
        """Return hash and versions, `code` and `versions`, where it has an environment of its own."""
        described = self.describe() if self.python else None
        return {} if described is None else {"code": described.code, "versions": described.versions}

    def describe(
        self, table: Mapping[str, Any] | None = None, services: Mapping[str, str] | None = None
    ) -> Description:
        """Ask a process of its own what the component is, and what is wrong with a table.

        Raises:
            PluginError: if it cannot be loaded, or tells something else.
        """
        given = [{**(table or {}), "use": f"{self.package}/{self.name}"}, services]
        return _describe(self.kind, self.python, json.dumps(given, default=lambda _: None), tuple(sys.path))

    def listing(self) -> dict[str, Any]:
        """Return what `evid show` prints of it."""
        return self.describe().listing.model_dump()

    def form(self) -> factory.Form:
        """Return the form of a table that names it, which its own process checks."""
        return _Form(self)

    def load(self) -> Callable[..., Any]:
        """Return a stand-in with the names of its parameters; none of its code is loaded here."""
        described, place = self.describe(), inspect.Parameter

        def made(*_: Any, **__: Any) -> Any:
            raise PluginError(f"{self} is built in a process of its own.")

        types: dict[str, Any] = {}
        for name, item in described.options.items():
            hint: Any = contract(str(item.kind)) or Any
            types[name] = tuple[hint, ...] if item.is_list else hint
        named = [
            place(name, place.KEYWORD_ONLY, default=place.empty if item.required else item.default)
            for name, item in described.options.items()
        ]
        asked = [place(name, place.POSITIONAL_OR_KEYWORD) for name in described.asks]
        made.__annotations__ = types
        made.__signature__ = inspect.Signature([*asked, *named])  # type: ignore[attr-defined]
        return made


class _Form(factory.Form):
    """The form of a table whose component stays in its own process; the core's keys are checked here."""

    def __init__(self, offer: OfferApart) -> None:
        whole = factory.form_of(offer.load(), offer.kind)
        core = {name: item for name, item in whole.keys.items() if name not in whole.known}
        super().__init__(whole.known, own=core)
        self._offer, self._core = offer, factory.Form({}, own=core, is_open=True)
        self.schema, self.leaves_open = offer.describe().form, offer.kind == "stage"

    def check(self, table: Mapping[str, Any], context: factory.Components) -> dict[str, Any]:
        """Return the values of a table: of its keys, and of components that stand where it has none."""
        given = {name: value for name, value in table.items() if name in self.known or name not in self.keys}
        described = self._offer.describe(given, context.services)
        wrong = [(tuple(key), printable(text)) for key, text in described.wrong]
        values = factory.together(wrong, lambda: self._core.check(table, context))
        return values | {name: value for name, value in described.table.items() if name in self.known}


def offered(isolated: Any) -> Callable[[str, str], OfferApart]:
    """Return what finds the components of a table whose `isolated` this is, and loads none of their code."""
    python = str(isolated.get("python", "")) if isinstance(isolated, Mapping) else ""

    def find_apart(kind: str, name: str) -> OfferApart:
        if not python:
            return apart(find(kind, name))
        described = _describe(kind, python, json.dumps([{"use": name}, None]), tuple(sys.path))
        return OfferApart(
            kind=kind, name=name.rpartition("/")[2], package=described.package, version=described.version,
            target=described.target, python=python,
        )  # fmt: skip

    return find_apart


def apart(offer: Offer) -> OfferApart:
    """Return a component that is installed here, loaded in processes of its own alone."""
    return OfferApart(**vars(offer))


@functools.lru_cache(maxsize=256)  # every look at a recipe asks
def _describe(kind: str, python: str, question: str, _: tuple[str, ...]) -> Description:
    table, services = json.loads(question)
    with tempfile.TemporaryDirectory(prefix="evid-isolated-") as home:
        worker = _worker(python, home, keeps_errors=True)
        try:
            given = _locks(), Isolated().memory_gb, kind, table, services, bool(python)
            form = TypeAdapter(Description)
            result: Description = worker.ask("describe", *given, form=form, limit_s=START_LIMIT_S)
        except Raised as cause:
            text = printable(cause.safe + cause.message)
            known = cause.name == "PluginError"
            raise PluginError(text if known else f"{table['use']}: {cause.name}: {text}") from cause
        except (Broken, Late, ValidationError) as cause:
            words = str(cause), worker.last_words()
            reason = cause.title if isinstance(cause, ValidationError) else ", ".join(filter(None, words))
            where, needs = (f"{python}: ", f" {_NEEDS.format(python)}") if python else ("", "")
            text = f"{where}cannot look at {kind} {table['use']!r} in its own process, which"
            raise PluginError(f"{text} {printable(reason)}.{needs}") from cause
        finally:
            worker.end()
    return result


def _worker(python: str, home: str, **options: Any) -> Worker:
    """Start a process that writes into `home` alone, where the system allows that.

    Raises:
        PluginError: if `python` is not among the interpreters that the user's trust.toml lists.
    """
    if python and (program := os.path.abspath(python)) not in pins.trust()["python"]:
        text = (
            f"isolated.python: {program} would be run, as the recipe says, and you do not list it. If it is"
        )
        raise PluginError(f'{text} yours, write python = ["{program}"] in {pins.trust_file()}.')
    if not (is_fenced := network_blocked()):  # else a user namespace of its own keeps it from that
        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: root alone reads /proc/<this run>/environ then
    secrets = [os.path.realpath(os.path.expanduser(path)) for path in SECRETS]
    known = os.pathsep.join(path for path in secrets if os.path.exists(path))
    before = [*(FENCE if is_fenced else ()), sys.executable, "-I", "-S", landlock.__file__, home, known]
    serves = "evidcore_plugin_hub.isolated:Server"
    folders = {"HOME": home, "TMPDIR": home, "EVID_CACHE": f"{home}/cache"}
    return Worker(serves, before=before, environment=_environment(python) | folders, python=python, **options)


def _locks() -> list[Path]:
    return sorted({pin.lock for pin in pins.kept().values()})


def blocked() -> dict[str, bool]:
    """Return what isolated components are kept from on this system."""
    return {"network_blocked": network_blocked(), "files_blocked": files_blocked()}


@functools.cache
def files_blocked() -> bool:
    """Tell whether isolated components write into their own folders alone; warn once where they do not."""
    if not (has := landlock.version() > 0):
        log.warning("files not blocked for isolated components: this system has no Landlock")
    return has


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
        self, offer: OfferApart, table: Mapping[str, Any], given: Mapping[str, Any], where: str,
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
        self.home = tempfile.mkdtemp(prefix="evid-isolated-")
        self.worker = _worker(self.offer.python, self.home, given=self._given)
        self._clear = weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)
        given = {name: None if callable(value) else value for name, value in self._given.items()}
        if "cache_folder" in given:
            given["cache_folder"] = Path(self.home, "cache")
        component = self.offer.kind, self._table, self._where, given, list(self._traits)
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in self._traits.items()}
        form = TypeAdapter(create_model("Traits", **fields))
        return dict(self._answer("build", (_locks(), self.limits.memory_gb, *component), form))

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
            import numpy as np
            import torch

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
            place = "".join(f"[{part!r:.99}]" for part in wrong["loc"])
            what = "gave what its contract does not allow"
            self._fail(what, f": {wrong['msg']:.200}{place:.999}, got {wrong['input']!r:.200}")
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


def _environment(python: str = "") -> dict[str, str]:
    """Return all variables of the environment that cross, into another one without the path of this."""
    passed = {name: text for name, text in os.environ.items() if name in ALLOWED or name.startswith("LC_")}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    path = {} if python else {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    hub = {"HF_HUB_CACHE": HF_HUB_CACHE, "HF_HUB_OFFLINE": "1"}
    return passed | threads | hub | path | {"CUDA_VISIBLE_DEVICES": ""}


_VERDICTS: TypeAdapter[Any] = TypeAdapter(list[Score | Unscored | None])
_CHECKED = TypeAdapter(list[Checked])
_NUMBERS = TypeAdapter(list[int | float | None])
_TEXTS = TypeAdapter(list[str | None])


class _Isolated:
    """What the three have in common: the process, and what the component says of itself."""

    def __init__(self, process: IsolatedProcess) -> None:
        self._process = process
        vars(self).update(process.start())

    def ready(self) -> None:
        """Ask the component whether anything is missing."""
        self._process.ask("ready", TypeAdapter(Any))

    def _each(self, form: TypeAdapter[Any], count: int, *given: Any) -> list[Any]:
        result: list[Any] = self._process.ask("__call__", form, *given)
        if len(result) != count:
            raise ContractError(f"{self._process.offer} gave {len(result)} answers to {count}.")
        return result


class IsolatedReward(_Isolated, Reward):
    """A reward in a process of its own."""

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Have it judge; what calls it counts the verdicts and holds them to its bounds."""
        return [*self._process.ask("__call__", _VERDICTS, rollouts, earlier)]

    def checks(self, gold: Sequence[Rollout]) -> Sequence[Checked]:
        return [*self._process.ask("checks", _CHECKED, gold)]


class IsolatedScorer(_Isolated, Scorer):
    """A scorer in a process of its own."""

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        return self._each(_NUMBERS, len(candidates), candidates, references, questions)


class IsolatedReader(_Isolated, Reader):
    """A reader in a process of its own."""

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        return self._each(_TEXTS, len(questions), questions)


_KINDS: Mapping[str, type[IsolatedReward | IsolatedScorer | IsolatedReader]] = {
    "reward": IsolatedReward, "scorer": IsolatedScorer, "reader": IsolatedReader,
}  # fmt: skip


def isolate(
    offer: OfferApart, table: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> Reward | Scorer | Reader:
    """Return a component that is built and asked in a process of its own, given what can cross."""
    crossing = {name: given[name] for name in CROSSING if name in given}
    traits = {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) is typing.ClassVar else hint
        for name, hint in typing.get_type_hints(contract(offer.kind)).items()
    }
    return _KINDS[offer.kind](IsolatedProcess(offer, table, crossing, where, traits))
