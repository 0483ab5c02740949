"""Train 3D medical vision-language models whose words are tied to visible evidence."""

from typing import Any

__version__ = "0.1.0"
_FROM = {"Run": "audit", "audit_policy": "audit", "run": "lab"}


def __getattr__(name: str) -> Any:
    """Import what is used from Python when it is first asked for: an entry point of `evidcore_python`."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import entry_points

    from evidcore.registry import is_ours

    for entry in entry_points(group="evidcore_python", name=name):
        if entry.dist is not None and is_ours(entry.dist.name):
            return entry.load()
    raise ImportError(
        f"evidcore.{name} comes with another package: pip install evidcore-plugin-{_FROM[name]}"
    )
