"""Find components that installed packages offer, without importing any of them.

A package offers a component by an entry point in the group `evidcore.<kind>`. Listing reads installed
metadata only; `Offer.load` is the one place where a plugin's code starts to run. `factory` turns a recipe's
table and a signature into a component. Imported by every room that builds components.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, ClassVar

from evidcore.errors import ContractError, EvidError, PluginError, Stopped, did_you_mean, is_disk_full

if TYPE_CHECKING:
    from importlib import metadata  # takes a quarter of the time of `evid --help`, which lists nothing

KIND_NAMES = (
    "dataset", "encoder", "bridge", "reweighter", "reward", "segmenter", "view", "task", "rollout", "sampler",
    "tool", "reader", "labeler", "scorer", "metric", "format", "evaluation", "audit", "condition", "language",
    "stage", "observer", "command", "page",
)  # fmt: skip
_PREFIX = "evidcore."
LOCK = "evid.lock"  # beside a recipe: what it uses of the Hub
MOST_OF_A_PACKAGE = 1000
NAME = re.compile(r"[a-z][a-z0-9]*([-.][a-z0-9]+)*")
_WATCHING = "evidcore_trust"
_WATCHES = "evidcore-plugin-hub"  # the package that brings them
_OF_OURS = re.compile(r"evidcore_plugin_[\w.]+")
_TARGET = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_KEY = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_KEY}(?:\s*+\.\s*+{_KEY}){{50}}")
_CARD = re.compile(r"^```toml card\s*\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """One component that one installed package offers: a row of `evid plugins`."""

    kind: str
    name: str
    package: str
    version: str
    target: str  # "module:attribute", not imported
    apart: ClassVar[Any] = None  # itself, where its code is loaded in a process of its own

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} from {self.package} {self.version}"

    def fault(self) -> str | None:
        """Return why it cannot be loaded, as far as that shows without running it; None if nothing shows."""
        if self.kind not in KIND_NAMES:
            return f"no component kind is called {self.kind!r}.{did_you_mean(self.kind, KIND_NAMES)}"
        if not NAME.fullmatch(self.name):
            return "a component's name has small letters, digits and dashes"
        if not _TARGET.match(self.target):
            return f"the entry point must read 'module:attribute', got {self.target!r}"
        module = self.target.partition(":")[0]
        folders = None
        parts = module.split(".")
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            try:
                if folders is None:  # at top level editable installs have finders of their own
                    result = (finder.find_spec(name, None) for finder in sys.meta_path)
                    spec = next(filter(None, result), None)
                else:  # without importing its parents
                    spec = PathFinder.find_spec(name, list(folders))
            except PluginError as cause:  # it is pinned, and not what was pinned
                return str(cause)
            if spec is None:
                return f"there is no module {name!r}; reinstall it with `pip install {self.package}`"
            folders = spec.submodule_search_locations
        return None

    def load(self) -> Callable[..., Any]:
        """Import and return the factory."""
        from importlib import metadata

        if self.package != "evidcore" and (pins := watch("pins")) is not None:
            pins.compare(self.package)
        try:
            factory = metadata.EntryPoint(self.name, self.target, _PREFIX + self.kind).load()
        except EvidError:
            raise
        except Exception as cause:  # a plugin may fail in any way while it is imported
            text = f"{self} could not be imported: {type(cause).__name__}: {cause}. Reinstall it "
            text += f"(`pip install --force-reinstall {self.package}`) or tell its authors."
            raise PluginError(text) from cause
        if not callable(factory):
            raise PluginError(f"{self}: {self.target} must be a class or a function, got {factory!r}.")
        return factory  # type: ignore[no-any-return]  # checked one line above


def normal(package: str) -> str:
    """Return a package name as pip compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


@functools.lru_cache(maxsize=1)
def _offering(
    places: tuple[tuple[str, int], ...],
) -> list[tuple[metadata.Distribution, str, metadata.PackageMetadata]]:
    """Return the distributions here that have entry points of ours, the first on the path, each read once."""
    from importlib import metadata

    result: dict[str, tuple[metadata.Distribution, str, metadata.PackageMetadata]] = {}
    for dist in metadata.distributions():
        with contextlib.suppress(UnicodeDecodeError):  # `broken` names it
            if "evidcore" not in (dist.read_text("entry_points.txt") or ""):
                continue
        message = dist.metadata
        name = str(message["Name"] or getattr(dist, "_path", "unknown"))
        result.setdefault(normal(name), (dist, name, message))
    return [*result.values()]


def offers(kind: str | None = None) -> list[Offer]:
    """List every installed component (of `kind`), sorted by kind, name and package."""
    return [row for row in _offers(places()) if kind in (None, row.kind)]


def places() -> tuple[tuple[str, int], ...]:
    """Return where packages are looked for, each folder with when something was last installed there."""
    result = []
    for entry in sys.path:
        with contextlib.suppress(OSError):  # an entry need not exist
            result.append((entry, os.stat(entry or ".").st_mtime_ns))
    return tuple(result)


@functools.lru_cache(maxsize=8)  # a recipe asks a hundred times, and reading takes tens of milliseconds
def _offers(places: tuple[tuple[str, int], ...]) -> tuple[Offer, ...]:
    rows = []
    for dist, package, message in _offering(places):
        entries, fault = _entries(dist)
        if fault:  # stops nobody else; `broken` names it
            continue
        version = str(message["Version"] or "unknown version")
        rows += [
            Offer(
                kind=entry.group.removeprefix(_PREFIX), name=entry.name, package=package, version=version,
                target=entry.value,
            )
            for entry in entries
        ]  # fmt: skip
    order = {name: index for index, name in enumerate(KIND_NAMES)}
    rows.sort(key=lambda row: (order.get(row.kind, len(order)), row.name, row.package))
    return tuple(rows)


def _entries(dist: metadata.Distribution, group: str = _PREFIX) -> tuple[list[metadata.EntryPoint], str]:
    """Return the entry points of ours that a package has, or why they cannot be listed."""
    try:
        result = [entry for entry in dist.entry_points if entry.group.startswith(group)]
    except Exception as cause:  # whatever the parser says of somebody's file
        return [], f"entry_points.txt cannot be read ({type(cause).__name__}: {cause})"
    if len(result) > MOST_OF_A_PACKAGE:
        return [], f"it offers {len(result)} components; at most {MOST_OF_A_PACKAGE} of a package are listed"
    return result, ""


def broken() -> dict[str, str]:
    """Return the packages whose entry points or card cannot be read, each with the reason."""
    result = {}
    for dist, package, message in _offering(places()):
        if fault := _entries(dist)[1]:
            result[package] = fault
            continue
        try:
            card_in(_readme(message), f"{package} {message['Version']}")
        except PluginError as cause:
            result[package] = str(cause)
    return result


def card(package: str) -> dict[str, Any]:
    """Return the `toml card` block of the README in the package's metadata, empty if it has none."""
    from importlib import metadata

    try:
        dist = metadata.distribution(package)
    except metadata.PackageNotFoundError as cause:
        raise PluginError(f"{package}: not installed. `pip install {package}`.") from cause
    return card_in(_readme(dist.metadata), f"{package} {dist.version}")


def _readme(message: metadata.PackageMetadata) -> str:
    body = message.get_payload() if hasattr(message, "get_payload") else ""
    return str(message["Description"] or "") or str(body or "")


def card_in(text: str, where: str) -> dict[str, Any]:
    """Return the `toml card` block of a README, empty if it has none."""
    import tomllib

    block = _CARD.search(re.sub(r"^(?: {7}\||        )", "", text.replace("\r\n", "\n"), flags=re.MULTILINE))
    if block is None:
        return {}
    try:
        return parse_toml(block.group(1))
    except tomllib.TOMLDecodeError as cause:
        text = f"{where}: the card in its README is not TOML ({cause}). Tell its authors."
        raise PluginError(text) from cause


def parse_toml(text: str) -> dict[str, Any]:
    """Return a TOML text as tables.

    Raises:
        TOMLDecodeError: if it is not TOML, or no person wrote it: the parser has no bounds of its own.
    """
    import tomllib

    if _LONG_KEY.search(text):
        raise tomllib.TOMLDecodeError("a key has more than 50 parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (RecursionError, ValueError) as cause:
        raise tomllib.TOMLDecodeError("lists nest too deep, or a number has over 4300 digits") from cause


def downloads(table: Mapping[str, Any], components: Collection[str] | None = None) -> list[str]:
    """Return what a card says is downloaded.

    An item of `downloads` in a card is a text, or `{ of = [components], text = "…" }`. Those that name no
    component belong to all.
    """
    result = []
    for item in table.get("downloads", ()):
        if isinstance(item, str):
            result.append(item)
        elif components is None or set(item["of"]) & set(components):
            result.append(str(item["text"]))
    return result


def find(kind: str, name: str) -> Offer:
    """Return the one offer that `name` or `package/name` stands for.

    Raises:
        PluginError: if no installed package offers it, or more than one does.
    """
    rows = offers(kind)
    package, _, bare = name.rpartition("/")
    hits = [row for row in rows if row.name == bare and normal(package) in ("", normal(row.package))]
    ours = [row for row in hits if is_ours(row.package)]
    if len(hits) == 1 or len(ours) == 1:  # a name of ours stays ours, whatever else is installed
        return (ours or hits)[0]
    if hits:
        choices = " or ".join(repr(f"{row.package}/{row.name}") for row in hits)
        raise PluginError(f"{len(hits)} installed packages have a {kind} called {name!r}. Write {choices}.")
    installed = sorted({row.name for row in rows})
    elsewhere = known_elsewhere(kind)
    source = elsewhere.get(bare, "")
    if name.startswith("hub:"):  # with that package its name would be another by now
        remedy = f" A component of the Hub needs `pip install {_WATCHES}`."
    elif package and normal(package) != source:  # a recipe's word is no reason to recommend anybody's package
        pins = watch("pins")
        pin = None if pins is None else pins.kept().get(normal(package))
        if any(normal(row.package) == normal(package) for row in offers()):
            remedy = f" {package} is installed and has none."
        elif pin is not None:
            remedy = f" Install what {pin.lock} pins: `evid install {pin.source}`."
        else:
            remedy = f" No package {package!r} is known here; whoever gave you the recipe can say where it"
            remedy += " comes from."
    elif source:
        remedy = f" It comes with `pip install {source}`."
    else:
        remedy = did_you_mean(bare, {*installed, *elsewhere})
        if watch("names") is None:  # which would know the package
            remedy += ' `pip install "evidcore[all]"` brings all that evidcore has.'
    for other in set(elsewhere) - set(installed):
        if f"{other!r}?" in remedy:
            remedy += f" It comes with `pip install {elsewhere[other]}`."
    raise PluginError(f"no {kind} is called {name!r}.{remedy} Installed: {', '.join(installed) or 'none'}.")


def known_elsewhere(kind: str) -> dict[str, str]:
    """Return the components of this repository's other packages, each with its package."""
    names = watch("names")
    return {} if names is None else dict(names.known_elsewhere(kind))


def is_ours(package: str) -> bool:
    """Tell whether a package is of this repository by its name, which nothing from the Hub may have."""
    return normal(package) == "evidcore" or normal(package).startswith("evidcore-plugin-")


def watch(name: str, needed_for: str = "") -> Any:
    """Return the module with which an installed package watches over the code of others; None without one.

    A package names it by an entry point in the group `evidcore_trust`:

    - `pins` compares packages with what a lock pins, before any of their code is loaded.
    - `isolation` has a component in a process of its own.
    - `rewards` judges the rewards of a stage before anything is trained on them.
    - `names` knows this repository's packages, and names that can be mistaken for others.

    Only modules called `evidcore_plugin_…` are taken. No package from the Hub may bring one, so nothing that
    was downloaded has a say in what is loaded.
    """
    target = _watches(places()).get(name)
    if target is None and needed_for:
        raise PluginError(f"{needed_for} needs a package that is not installed. `pip install {_WATCHES}`.")
    return None if target is None else importlib.import_module(target)


@functools.lru_cache(maxsize=8)
def _watches(places: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Return the modules that watch over the code of others, by name."""
    return {
        entry.name: entry.value
        for dist, _, _ in _offering(places)
        for entry in _entries(dist, _WATCHING)[0]
        if _OF_OURS.fullmatch(entry.value)
    }


@contextlib.contextmanager
def blame(offer: Offer, doing: str, error: type[EvidError] = ContractError) -> Iterator[None]:
    """Turn a plain exception of plugin code into an `error` whose first line names whom to write to.

    Errors that a person can fix, a full disk, and `Stopped` pass as they are.

    Args:
        offer: the component whose code runs inside.
        doing: what it was asked, e.g. "scoring 16 rollouts of step 3".
        error: `ContractError` while it runs, `PluginError` while it is built.
    """
    try:
        yield
    except BaseException as cause:
        if not is_code_fault(cause):
            raise
        raise error(*_report(cause, f"{offer} failed while {doing}", offer.package)) from cause


def package_error(cause: BaseException) -> ContractError | None:
    """Blame what nothing blamed on the package, not the core, whose code is innermost in the traceback."""
    packages = {row.target.partition(":")[0].partition(".")[0]: row for row in offers()}
    for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
        module = str(frame.f_globals.get("__name__"))
        offer = packages.get(module.partition(".")[0])
        if offer is not None and offer.package != "evidcore" and is_code_fault(cause):
            where = f"{offer.package} {offer.version} failed in {module}, line {line}"
            return ContractError(*_report(cause, where, offer.package))
    return None


def is_code_fault(cause: BaseException) -> bool:
    """Tell whether an exception is its code's fault: nothing that a person mends, no full disk, no Ctrl-C."""
    if isinstance(cause, KeyboardInterrupt):  # plain, it is Ctrl-C where nothing else makes that `Stopped`
        is_plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return not is_plain and not isinstance(cause, Stopped)
    return not isinstance(cause, EvidError | GeneratorExit) and not is_disk_full(cause)


def _report(cause: BaseException, what: str, package: str) -> tuple[str, str]:
    """Return what is said of a component's exception; its own words, which may be of a patient, apart."""
    message = f": {cause}. Report this to the authors of {package}; the traceback is below."
    return f"{what}: {type(cause).__name__}", message
