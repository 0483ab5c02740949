"""Runs: folder, lock, stages, reuse, resume."""

from evidcore.run.begin import run, start
from evidcore.run.export import export_run
from evidcore.run.folder import RunFolder, open_run
from evidcore.run.post_run import audit_run
from evidcore.run.predict import Inquiry, Prediction, predict_scan
from evidcore.run.processes import processes

__all__ = [
    "Inquiry",
    "Prediction",
    "RunFolder",
    "audit_run",
    "export_run",
    "open_run",
    "predict_scan",
    "processes",
    "run",
    "start",
]
