"""Hashes of the code behind a number: whole packages for the lock, what a stage imports for its reuse."""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from importlib import util
from pathlib import Path

from evidcore.registry import Offer

CORE = "evidcore"
_WITHOUT_NUMBERS = ("cli", "testing")  # rooms of the core that change no number


@functools.cache
def package_hash(module: str) -> str:
    """Return a hash of all files of an installed (or edited in place) top-level module."""
    root = _root(module)
    if root is None:
        return "missing"
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    digest = hashlib.sha256()
    for path in files:
        name = path.relative_to(root).as_posix() if root.is_dir() else path.name
        is_code = "__pycache__" not in name and not name.startswith(".")
        if is_code and not (module == CORE and name.partition("/")[0] in _WITHOUT_NUMBERS):
            digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def offer_hash(offer: Offer) -> str:
    """Return the hash of the package behind a component."""
    return package_hash(top_module(offer.target))


def top_module(target: str) -> str:
    """Return the top-level module of a component's `module:attribute`."""
    return target.partition(":")[0].partition(".")[0]


def core_hash(offers: Iterable[Offer], modules: Iterable[str]) -> str:
    """Return a hash of those modules of the core that components and `modules` import, however indirectly.

    Args:
        offers: components; those of other packages count with what they import of the core.
        modules: of the core.
    """
    entry = set(modules)
    for offer in offers:
        if top_module(offer.target) == CORE:
            entry.add(offer.target.partition(":")[0])
        else:
            entry |= _core_imports_of_package(top_module(offer.target))
    digest = hashlib.sha256()
    for module in sorted(_closure(frozenset(entry))):
        path = _file(module)
        if path is not None:
            digest.update(module.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@functools.cache
def _closure(entry: frozenset[str]) -> frozenset[str]:
    """Return the modules of the core that these import, with themselves."""
    found: set[str] = set()
    waiting = list(entry)
    while waiting:
        module = waiting.pop()
        if module in found or _file(module) is None:
            continue
        found.add(module)
        path = _file(module)
        waiting += [] if path is None else _core_imports(path)
    return frozenset(found)


@functools.cache
def _core_imports_of_package(module: str) -> frozenset[str]:
    root = _root(module)
    files = [] if root is None else [root] if root.is_file() else list(root.rglob("*.py"))
    return frozenset(name for path in files for name in _core_imports(path))


@functools.cache
def _core_imports(path: Path) -> tuple[str, ...]:
    """Return the modules of the core that a file imports, at its top or inside its functions."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names if item.name.partition(".")[0] == CORE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == CORE:
            yield str(node.module)
            yield from (f"{node.module}.{item.name}" for item in node.names)  # where the name is a module


@functools.cache
def _file(module: str) -> Path | None:
    """Return the file of a module of the core, None where the name is no module."""
    root = _root(CORE)
    if root is None:
        return None
    path = root.joinpath(*module.split(".")[1:])
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


@functools.cache
def _root(module: str) -> Path | None:
    """Return the folder of a top-level module, or its file."""
    spec = util.find_spec(module)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)
