"""Runs: folder, lock, stages, reuse, resume."""

from evidcore.compute.processes import processes
from evidcore.runs.begin import run, start
from evidcore.runs.folder import RunFolder, open_run
from evidcore.runs.post_run import audit_run

__all__ = [
    "RunFolder",
    "audit_run",
    "open_run",
    "processes",
    "run",
    "start",
]
