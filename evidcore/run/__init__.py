"""Runs: folder, lock, stages, reuse, resume."""

from evidcore.run.execute import run, start
from evidcore.run.folder import RunFolder, open_run
from evidcore.run.later import audit_run

__all__ = ["RunFolder", "audit_run", "open_run", "run", "start"]
