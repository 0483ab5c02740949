"""Look at a plugin of the Hub, install the very bytes that were looked at, and pin them."""

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from evidcore import __version__
from evidcore.errors import PluginError
from evidcore.recipe.resolve import toml_tables
from evidcore.registry import LOCK, normal, offers, parse_toml
from evidcore.runs.folder import write
from evidcore_plugin_hub.plugin import remote
from evidcore_plugin_hub.plugin.code_look import CAPABILITIES
from evidcore_plugin_hub.plugin.manifest import MOST_BYTES, Manifest, differences, read_manifest
from evidcore_plugin_hub.plugin.remote import FILE
from evidcore_plugin_hub.plugin.wheel import MOST_BYTES as MOST_OF_WHEEL
from evidcore_plugin_hub.plugin.wheel import Wheel, open_wheel, top_modules
from evidcore_plugin_hub.trust import pins
from evidcore_plugin_hub.trust.names import is_known

HEAD = (
    "# What the recipes of this folder use of the Hub, as it was looked at. `evid install` wrote it;\n"
    "# keep it beside them.\n"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Looked:
    """A plugin at a commit, all of it fetched, compared and read; nothing of it was run."""

    at: remote.Reference
    manifest: Manifest
    manifest_sha256: str
    wheel: Wheel

    def table(self) -> dict[str, Any]:
        """Return its table of evid.lock."""
        return {
            "version": self.wheel.version, "source": str(self.at), "record": self.wheel.record,
            "modules": sorted(top_modules(self.wheel.files)),
            "wheel": self.wheel.sha256, "manifest": self.manifest_sha256,
            "components": sorted(self.wheel.components), "capabilities": sorted(self.wheel.capabilities),
        }  # fmt: skip


def look(at: remote.Reference) -> Looked:
    """Fetch a plugin at a commit, and compare manifest, wheel, README and readable source with each other.

    Raises:
        PluginError: for whatever reason it is refused. None of its code was run.
    """
    pins.refuse_denied(str(at))
    content = remote.fetch(at, FILE, MOST_BYTES)
    manifest = read_manifest(content, str(at))
    folder, _, name = manifest.wheel.partition("/")
    if folder != "dist" or "/" in name:
        raise PluginError(f"{at}: {FILE} has its wheel at {manifest.wheel!r}, and must have it under dist/.")
    wheel = open_wheel(name, remote.fetch(at, manifest.wheel, MOST_OF_WHEEL))
    wrong = differences(manifest, wheel)
    readable = {f"src/{path}": text for path, text in wheel.source.items()}
    there = {path for path in remote.paths(at) if path.startswith(("src/", "dist/"))}
    wrong += [f"{path} is not in the wheel" for path in sorted(there - set(readable) - {manifest.wheel})]
    wrong += [f"{path} is in the wheel and cannot be read here" for path in sorted(set(readable) - there)]
    readme = remote.fetch(at, "README.md", 2 * MOST_BYTES).decode(errors="replace")
    if without_front_matter(readme).strip() != without_front_matter(wheel.readme).strip():
        wrong.append("README.md is not the wheel's")
    for path in sorted(there & readable.keys()):
        if remote.fetch(at, path, len(readable[path])) != readable[path]:
            wrong.append(f"{path} is not the wheel's")
    if wrong:
        listing = "".join(f"\n  {line}" for line in wrong[:5])
        raise PluginError(f"{at}: refused, and none of its code was run{listing}")
    if not SpecifierSet(wheel.core).contains(__version__, prereleases=True):
        what = f"is made for evidcore {wheel.core}, and this is {__version__}"
        raise PluginError(f"{at}: {what}. Install such a version, or take another commit of the plugin.")
    return Looked(at=at, manifest=manifest, manifest_sha256=hashlib.sha256(content).hexdigest(), wheel=wheel)


def without_front_matter(readme: str) -> str:
    """Return a README without the YAML at its top, by which the Hub finds it."""
    return re.sub(r"\A---\n.*?\n---\n", "", readme, count=1, flags=re.DOTALL)


def lines(found: Looked) -> Iterator[str]:
    """Yield what a person is shown before they decide."""
    wheel = found.wheel
    yield f"{wheel.package} {wheel.version}, {wheel.licence or 'no licence named'}: {wheel.about}"
    yield f"  from        {found.at}"
    yield f"  components  {', '.join(sorted(wheel.components))}"
    capabilities = dict(wheel.capabilities)
    loading = capabilities.pop("loading", "none known to do harm").split("; ")
    reach = [f"{name} ({CAPABILITIES[name]}: {what})" for name, what in capabilities.items()]
    yield f"  may reach   {'; '.join(reach) or 'only what it is given, as far as its code can be read'}"
    yield from (f"  runs code when loaded: {line}" for line in loading)
    needs = [
        f"{line} ({installed_version(Requirement(line).name) or 'not'} installed)" for line in wheel.requires
    ]
    yield f"  needs       {'; '.join(needs) or 'nothing beside evidcore'}"
    size = sum(map(len, wheel.source.values()))
    yield f"  code        {len(wheel.source)} files, {size} bytes: {remote.snapshot(found.at) / 'src'}"
    for name in sorted(wheel.components):
        kind, _, bare = name.partition("/")
        for row in offers(kind):
            if row.name == bare and normal(row.package) != normal(wheel.package):
                yield f"  beware      {row} has that name too; recipes must then name the package"


def changes(before: Looked, now: Looked) -> list[str]:
    """Return what differs between two states of a plugin: files, what it may reach, what it needs."""
    old, new = before.wheel, now.wheel
    result = [f"{old.package} {old.version} -> {new.version}, {now.at}"]
    for path in sorted({*old.source, *new.source}):
        item, other = old.source.get(path), new.source.get(path)
        if item != other:
            result.append(f"  {'new' if item is None else 'gone' if other is None else 'changed'}: {path}")
    for what, earlier, later in (
        ("may reach", set(old.capabilities), set(new.capabilities)),
        ("needs", set(old.requires), set(new.requires)),
        ("offers", set(old.components), set(new.components)),
    ):
        result += [f"  {what} now: {name}" for name in sorted(later - earlier)]
        result += [f"  {what} no more: {name}" for name in sorted(earlier - later)]
    return result


def refuse_taken(found: Looked, lock: Path) -> None:
    """Raise PluginError where another package of that name is installed than the lock pins."""
    before = installed_version(found.wheel.package)
    pinned = {normal(name): table for name, table in tables(lock).items()}.get(normal(found.wheel.package))
    ours = pinned is not None and remote.reference(pinned["source"]).repository == found.at.repository
    if before and not ours:
        raise PluginError(
            f"{found.at}: another {found.wheel.package} {before} is installed, which {lock} does not pin "
            f"from there. If you want this one in its place: `pip uninstall {found.wheel.package}` first."
        )


def install(found: Looked) -> None:
    """Install the wheel that was looked at, and nothing else; compare what lies there afterwards.

    Raises:
        PluginError: if it lacks a requirement, pip fails, or other files than the wheel's came of it, which
            are taken away again.
    """
    lacking = []
    for line in found.manifest.requires:
        item = Requirement(line.partition(" --hash")[0])
        version = installed_version(item.name)
        if not version or not item.specifier.contains(version, prereleases=True):
            lacking.append(line)
    if lacking:
        listing = "".join(f"\n  {line}" for line in lacking)
        raise PluginError(
            f"{found.at}: needs what is not installed, and installs nothing but itself. Look at these, write "
            f"them to a file and `pip install --require-hashes --no-deps -r FILE`:{listing}"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / found.wheel.file
        file.write_bytes(found.wheel.content)
        pip("install", "--no-deps", "--no-index", "--no-compile", "--force-reinstall", str(file))
    compare(found.wheel)


def compare(wheel: Wheel) -> None:
    """Raise PluginError if what lies in this environment is not what a wheel holds, and take it away."""
    if wrong := next(pins.faults(metadata.distribution(wheel.package), wheel.record), ""):
        pip("uninstall", "--yes", wheel.package)
        raise PluginError(f"{wheel.package}: was not installed as it was looked at: {wrong}.")


def uninstall(package: str) -> None:
    """Take a package out of this environment.

    Raises:
        PluginError: if it is not there, is one of evidcore's own, or pip fails.
    """
    if is_known(package) or not installed_version(package):
        raise PluginError(f"{package}: not installed, or a package of evidcore itself. `evid plugins` lists.")
    pip("uninstall", "--yes", package)


def installed_version(package: str) -> str:
    """Return the version of a package that is installed here, empty if none is."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def pip(*arguments: str, failed: str = "pip failed, and nothing was pinned", **variables: str) -> None:
    """Run pip on what it is given alone: no variable, no settings and no module of this folder reach it.

    Raises:
        PluginError: if it fails: `failed`, and the last that pip said.
    """
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    passed = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "HF_"))}
    given = {**passed, "PIP_CONFIG_FILE": os.devnull, **variables}
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=given, check=False)
    if done.returncode:
        raise PluginError("\n  ".join([failed, *done.stderr.strip().splitlines()[-15:]]))


def tables(lock: Path) -> dict[str, Mapping[str, Any]]:
    """Return the tables of an evid.lock by package.

    Raises:
        PluginError: if it is damaged, or the lock of a run, which nobody may change.
    """
    result = {pin.package: pin.table for pin in pins.read(lock).values()}
    if lock.exists() and "package" in parse_toml(lock.read_text(encoding="utf-8")):
        raise PluginError(f"{lock}: is the lock of a run and stays as it is. Give the {LOCK} beside it.")
    return result


def pin(lock: Path, changed: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Write tables into an evid.lock, and take those out that are None."""
    known = {normal(name): (name, table) for name, table in tables(lock).items()}
    for name, table in changed.items():
        known.pop(normal(name), None)
        if table is not None:
            known[normal(name)] = (name, table)
    text = toml_tables({"schema": 1, "plugin": dict(known[name] for name in sorted(known))})
    write(lock, HEAD + text)
