"""Runs: a recipe's parts built, its stages run in order, each stored under the hash of its inputs.

Belongs here: run folder, lock, assembly, execution, reuse, resume, and reading a run without torch (`read`).
Imported by the command line and by packages of commands.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evidcore.compute.processes import processes
    from evidcore.runs.begin import run, start
    from evidcore.runs.folder import RunFolder, open_run
    from evidcore.runs.post_run import audit_run

__all__ = ["RunFolder", "audit_run", "open_run", "processes", "run", "start"]
_PLACES = {
    "audit_run": "runs.post_run",
    "processes": "compute.processes",
    "run": "runs.begin",
    "start": "runs.begin",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: a viewer reads runs without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"evidcore.{_PLACES.get(name, 'runs.folder')}"), name)
