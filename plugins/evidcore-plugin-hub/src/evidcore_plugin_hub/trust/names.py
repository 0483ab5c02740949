"""Names of components and packages: those of this repository, and those that can be mistaken for others."""

import functools
import tomllib
from collections.abc import Sequence
from importlib import resources

from evidcore.registry import Offer, normal

_ALIKE = str.maketrans("01i5", "olls", "-._")


def known_elsewhere(kind: str) -> dict[str, str]:
    """Return the components of this repository's other packages, each with its package."""
    return {name: package for package, kinds in _known().items() for name in kinds.get(kind, ())}


def is_known(package: str) -> bool:
    """Tell whether a package is of this repository."""
    return normal(package) == "evidcore" or normal(package) in _known()


@functools.cache
def _known() -> dict[str, dict[str, list[str]]]:
    file = resources.files("evidcore_plugin_hub.trust") / "known_packages.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def alike(name: str) -> str:
    """Return one text for all names that look as this one does."""
    return name.replace("rn", "m").replace("vv", "w").translate(_ALIKE)


def look_alikes(rows: Sequence[Offer]) -> dict[Offer, Offer]:
    """Return the offers whose names can be mistaken for another's: of this repository, or listed earlier."""
    first: dict[tuple[str, str], Offer] = {}
    result = {}
    for row in sorted(rows, key=lambda row: not is_known(row.package)):
        other = first.setdefault((row.kind, alike(row.name)), row)
        if other.package != row.package and not is_known(row.package):
            result[row] = other
    return result
