"""What a package from the Hub must be before any of its code runs: the files that `evid install` looked at.

`evid.lock` beside a recipe pins packages. Their modules are imported by a finder of ours: it compares every
file with RECORD and RECORD with the lock, and runs the very bytes that it compared. So neither bytecode that
was cached nor a module of the same name earlier on the path takes their place.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import json
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidcore.cache import plain_file
from evidcore.errors import PluginError, RunError
from evidcore.registry import LOCK, normal, offers, parse_toml
from evidcore_plugin_hub.trust.names import is_known

if TYPE_CHECKING:
    from importlib import metadata

SOURCE = re.compile(r"hub:(?P<repository>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})")
_NAMED = re.compile(r"(?:hub:)?(?:[\w.-]+(?:/[\w.-]+(?:@[0-9a-f]{40})?)?)")
_OF_INSTALLER = re.compile(r"[^/]+\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|uv_cache\.json)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pin:
    """A package of the Hub as it was looked at: a table of evid.lock."""

    package: str
    version: str
    source: str  # hub:OWNER/NAME@COMMIT
    record: str  # `record_digest` of its wheel
    modules: tuple[str, ...]  # its top-level modules
    lock: Path  # where it is pinned
    table: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)  # all that the lock says of it

    def __str__(self) -> str:
        return f"{self.package} {self.version}, pinned in {self.lock}"


def read(path: Path) -> dict[str, Pin]:
    """Return the packages that an `evid.lock` or a run's `lock.toml` pins, by name; none without a file.

    Raises:
        PluginError: if it cannot be read, or a table lacks something.
    """
    try:
        tables: Any = parse_toml(plain_file(path).read_text(encoding="utf-8")).get("plugin", {})
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise PluginError(f"{path}: cannot be read ({cause}). `evid install` writes it.") from cause
    result: dict[str, Pin] = {}
    for package, table in tables.items():
        where = f"{path}: [plugin.{package}]"
        try:
            named = {key: str(table[key]) for key in ("version", "source", "record")}
            pin = Pin(package=package, lock=path, modules=tuple(table["modules"]), table=table, **named)
        except (KeyError, TypeError) as cause:
            raise PluginError(f"{where} lacks {cause}. `evid install` writes it.") from cause
        wrong = {
            "source": not SOURCE.fullmatch(pin.source),
            "record": not re.fullmatch("[0-9a-f]{64}", pin.record),
            "modules": not pin.modules or not all(str(item).isidentifier() for item in pin.modules),
            "name": normal(package) in result,
        }
        if key := next((key for key, is_wrong in wrong.items() if is_wrong), ""):
            raise PluginError(f"{where} has no {key} that `evid install` would have written.")
        result[normal(package)] = pin
    return result


def keep(path: Path) -> dict[str, Pin]:
    """From now on import the packages that a lock pins only as they were pinned; return them by name.

    Raises:
        PluginError: if the lock cannot be read, another lock pins one of them otherwise, the user denies
            one, or one that was imported before is not what was pinned.
    """
    pinned = read(path)
    for name, pin in pinned.items():
        before = FINDER.pins.get(name)
        if before is not None and (before.source, before.record) != (pin.source, pin.record):
            raise PluginError(f"{pin}: {before.lock} pins another state of it, {before.source}.")
        refuse_denied(pin.source)
        FINDER.take(pin)
    return pinned


def kept() -> Mapping[str, Pin]:
    """Return the pins that hold in this process, by the name of their package."""
    return FINDER.pins


def compare(package: str) -> None:
    """Raise PluginError if a package is pinned and not as it was pinned, or must not run; compares once."""
    name = normal(package)
    if FINDER.only is not None and name not in FINDER.only and not is_known(package):
        raise PluginError(f"{package} is not locked. None of its code was run.")
    if name in FINDER.pins:
        FINDER.compared(name)


def only(packages: Collection[str]) -> None:
    """From now on run the code of these packages alone, beside this repository's."""
    FINDER.only = {normal(package) for package in packages}


def name_packages(tables: Any, lock: Path, where: str) -> None:
    """Keep a lock, and write `package/component` for each `use` of the Hub in a recipe's tables, in place.

    Interpreters of isolated components get their folder before them, which is that of the recipe.

    Raises:
        PluginError: as `keep` and `component` do.
    """
    pinned, left = keep(lock), [tables]
    for value in left:
        if isinstance(value, dict) and isinstance(value.get("use"), str):
            value["use"] = component(value["use"], pinned, where)
            if isinstance(inner := value.get("isolated"), dict) and isinstance(inner.get("python"), str):
                inner["python"] = str(lock.parent / inner["python"])
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def component(use: str, pinned: Mapping[str, Pin], where: str) -> str:
    """Return `package/component` for a `hub:OWNER/NAME@COMMIT#component`, anything else as it is.

    Raises:
        PluginError: if it is written otherwise, or no pin has that commit.
    """
    if not use.startswith("hub:"):
        return use
    source, _, name = use.partition("#")
    if not (SOURCE.fullmatch(source) and name):
        form = "hub:OWNER/NAME@COMMIT#component, with a commit of 40 digits"
        raise PluginError(f"{where}: {use!r} must read {form}.")
    for pin in pinned.values():
        if pin.source == source:
            return f"{pin.package}/{name}"
    missing = f"{use!r} is in no {LOCK} beside the recipe"
    raise PluginError(f"{where}: {missing}. Look at it: `evid install {source}`.")


def trust_file() -> Path:
    """Return the user's own trust.toml, in their folder of settings."""
    import platformdirs

    return Path(platformdirs.user_config_dir("evidcore", appauthor=False)) / "trust.toml"


def trust() -> dict[str, list[str]]:
    """Return what the user allows and denies: `OWNER`, `OWNER/NAME`, `OWNER/NAME@COMMIT` or `COMMIT`.

    Read from `trust_file` and from nowhere else. `python` lists interpreters that recipes may name.

    Raises:
        PluginError: if it holds anything else.
    """
    file = trust_file()
    try:
        table = parse_toml(plain_file(file).read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise PluginError(f"{file}: cannot be read ({cause}).") from cause
    forms = {"allow": _NAMED, "deny": _NAMED, "python": re.compile("/.+")}
    for key, items in table.items():
        fine = key in forms and isinstance(items, list)
        if not fine or not all(isinstance(item, str) and forms[key].fullmatch(item) for item in items):
            must = "must be `allow` or `deny`, a list of OWNER, OWNER/NAME, OWNER/NAME@COMMIT or COMMIT"
            raise PluginError(f"{file}: {key!r} {must}, or `python`, a list of absolute paths.")
    return {key: table.get(key, []) for key in forms}


def names(source: str, items: Sequence[str]) -> bool:
    """Tell whether one of these stands for a source: its publisher, repository or commit."""
    result = SOURCE.fullmatch(source)
    assert result is not None
    repository, commit = result["repository"].lower(), result["commit"]
    meant = {repository.partition("/")[0], repository, commit, f"{repository}@{commit}"}
    return not meant.isdisjoint(item.removeprefix("hub:").lower() for item in items)


def refuse_denied(source: str) -> None:
    """Raise PluginError where the user's trust.toml denies a source."""
    if names(source, trust()["deny"]):
        raise PluginError(f"{source}: denied by your trust.toml. None of its code was run.")


def record_digest(hashes: Mapping[str, str]) -> str:
    """Return one hash of a wheel's files: path -> "sha256=…", as in RECORD."""
    lines = "".join(f"{path},{digest}\n" for path, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def recorded(dist: metadata.Distribution) -> dict[str, str]:
    """Return what RECORD says of the wheel's files: path -> "sha256=…", without what an installer adds."""
    try:
        rows = list(csv.reader((dist.read_text("RECORD") or "").splitlines()))
    except UnicodeDecodeError:
        return {}
    return {
        row[0]: row[1]
        for row in rows
        if len(row) == 3 and not _OF_INSTALLER.fullmatch(row[0]) and "__pycache__" not in row[0].split("/")
    }


def file_digest(content: bytes) -> str:
    """Return the hash of a file as RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def is_edited(dist: metadata.Distribution) -> bool:
    """Tell a package that was installed from a folder to be edited there, or has no RECORD."""
    try:
        editable = json.loads(dist.read_text("direct_url.json") or "{}")["dir_info"]["editable"]
    except (KeyError, TypeError, ValueError):
        editable = False
    return bool(editable) or not recorded(dist)


def faults(dist: metadata.Distribution, record: str = "") -> Iterator[str]:
    """Yield where an installed package is not what its RECORD says, or RECORD not what was pinned.

    `record` is the `record_digest` of its wheel; where it is empty, RECORD is not compared.
    """
    hashes, root = recorded(dist), Path(str(dist.locate_file("")))
    if is_edited(dist):
        yield "it is edited in place, so there is nothing to compare it with"
        return
    if record and record_digest(hashes) != record:
        yield "its RECORD is not that of the wheel which was pinned"
    for path, digest in hashes.items():
        try:
            content = (root / path).read_bytes()
        except OSError as cause:
            yield f"{path} cannot be read ({type(cause).__name__})"
            continue
        if file_digest(content) != digest:
            yield f"{path} is not what RECORD says"
    for top in sorted({path.partition("/")[0] for path in hashes if "/" in path} - {"", ".", ".."}):
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            is_listed = path in hashes or "__pycache__" in path.split("/") or _OF_INSTALLER.fullmatch(path)
            if file.is_file() and not is_listed:
                yield f"{path} is in no RECORD"


def hold_to(path: Path) -> None:
    """Compare what is installed with a lock before code of any package runs, and run no package beside it.

    Raises:
        RunError: if a package has another version or other code; names the first three differences.
        PluginError: if what is pinned cannot be read, or is denied.
    """
    from evidcore.recipe.load import read_toml
    from evidcore.runs.folder import difference
    from evidcore.runs.inputs import package_hash, refuse_drift, top_module, versions

    if not path.is_file():
        raise RunError(f"{path}: no such file. Give the lock.toml of a run, or an {LOCK}.")
    packages = read_toml(path)[1].get("package", {})
    only([*packages, *keep(path)])
    before, now = {}, {}
    for name, table in packages.items():
        before[name] = {"version": table.get("version"), "code": table.get("code")}
        top = top_module(next(iter(table["components"].values())))
        now[name] = {"version": versions([name])[name], "code": package_hash(top)}
    refuse_drift(path, difference(before, now))


def print_verified(lock: Path, *, as_json: bool) -> None:
    """Print each package that is not edited in place, and where it is not what was installed or pinned.

    The exit status is 1 if any is not.
    """
    from importlib import metadata

    import click

    pinned = read(lock)
    packages = {normal(row.package): row.package for row in offers()}
    result = {name: ["not installed"] for name in pinned.keys() - packages.keys()}
    for name, package in packages.items():
        dist, pin = metadata.distribution(package), pinned.get(name)
        if pin is not None or not is_edited(dist):
            result[name] = list(faults(dist, pin.record if pin else ""))
    if as_json:
        click.echo(json.dumps({"lock": str(lock), "packages": result}, indent=1))
    for name, wrong in result.items() if not as_json else ():
        source = pinned[name].source if name in pinned else "not pinned"
        state = "changed" if wrong else "as installed"
        click.echo(f"{packages.get(name, name):34} {state}, {source}")
        for line in wrong[:3]:
            click.echo(f"  {line}")
    edited = len(packages.keys() - result.keys())
    click.echo(f"{len(result)} compared, {edited} edited in place", err=as_json)
    if any(result.values()):
        click.get_current_context().exit(1)


class _Looked(SourceFileLoader):
    """Runs the bytes of a file only if they have the hash that was pinned; reads no cached bytecode."""

    def __init__(self, name: str, path: str, digest: str, pin: Pin) -> None:
        super().__init__(name, path)
        self._digest, self._pin = digest, pin

    def get_code(self, fullname: str) -> Any:
        content = self.get_data(self.path)
        if file_digest(content) != self._digest:
            raise PluginError(f"{self._pin}: {self.path} changed while it was imported.")
        return self.source_to_code(content, self.path)


class _Finder(MetaPathFinder):
    """Finds the modules of pinned packages, and only in the files that their RECORD names."""

    def __init__(self) -> None:
        self.pins: dict[str, Pin] = {}
        self.only: set[str] | None = None
        self._tops: dict[str, str] = {}  # top-level module -> package
        self._found: dict[str, tuple[dict[str, str], Path]] = {}  # package -> what `compared` returned

    def take(self, pin: Pin) -> None:
        """Hold a package to its pin; where its code was imported before, compare it now."""
        name = normal(pin.package)
        self.pins[name] = pin
        self._tops |= dict.fromkeys(pin.modules, name)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)  # a check before the import would miss later imports and bytecode
        if any(top in sys.modules for top in pin.modules):
            self.compared(name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where a module of a pinned package lies; None for anybody else's."""
        name = self._tops.get(fullname.partition(".")[0])
        if name is None:
            return None
        files, root = self.compared(name)
        for place in (f"{fullname.replace('.', '/')}/__init__.py", f"{fullname.replace('.', '/')}.py"):
            if place in files:
                loader = _Looked(fullname, str(root / place), files[place], self.pins[name])
                folders = [str((root / place).parent)] if place.endswith("/__init__.py") else None
                return spec_from_file_location(
                    fullname, root / place, loader=loader, submodule_search_locations=folders
                )
        raise ModuleNotFoundError(f"{self.pins[name]} has no module {fullname!r}", name=fullname)

    def compared(self, name: str) -> tuple[dict[str, str], Path]:
        """Return a package's files and where they lie, compared with the pin at the first call.

        Raises:
            PluginError: if anything differs; its first three differences are named.
        """
        from importlib import metadata

        if name in self._found:
            return self._found[name]
        pin = self.pins[name]
        try:
            dist = metadata.distribution(pin.package)
        except metadata.PackageNotFoundError as cause:
            raise PluginError(f"{pin}: is not installed. `evid install {pin.source}`.") from cause
        wrong = list(faults(dist, pin.record))
        if dist.version != pin.version:
            wrong.insert(0, f"version {dist.version} is installed")
        if wrong:
            more = f"; {len(wrong) - 3} more" if len(wrong) > 3 else ""
            differs = f"{'; '.join(wrong[:3])}{more}. None of its code was run"
            raise PluginError(f"{pin}: {differs}. Look at it anew: `evid install {pin.source}`.")
        self._found[name] = recorded(dist), Path(str(dist.locate_file("")))
        return self._found[name]


FINDER = _Finder()
