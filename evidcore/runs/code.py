"""Hashes of installed code, by which a lock and a finished stage say what a number came from."""

from __future__ import annotations

import functools
import hashlib
from importlib import util
from pathlib import Path

from evidcore.registry import Offer

CORE = "evidcore"
_WITHOUT_NUMBERS = ("cli",)  # rooms of the core that change no number


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


def _root(module: str) -> Path | None:
    spec = util.find_spec(module)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)
