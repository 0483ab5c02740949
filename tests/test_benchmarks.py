"""The committed results are what their script makes of them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "phantom_learning.py"
KEPT = ROOT / "docs" / "results" / "med3d_r1"

pytestmark = pytest.mark.skipif(not KEPT.is_dir(), reason="no results are committed yet")


def script():
    spec = importlib.util.spec_from_file_location("phantom_learning", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_made_from_the_kept_results():
    made = script()
    places = sorted(KEPT.glob("seed-*"))
    assert places
    printed = subprocess.run(
        [sys.executable, SCRIPT, "--read", KEPT], capture_output=True, text=True, check=True
    ).stdout
    assert (KEPT / "README.md").read_text(encoding="utf-8") == f"{made.TITLE}\n{printed}"
    assert (KEPT / "summary.txt").read_text(encoding="utf-8") == made.summary(places)


def test_no_answer_and_no_report_is_kept():
    kept = {file.suffix for file in KEPT.rglob("*") if file.is_file()}
    assert kept == {".json", ".toml", ".md", ".txt"}
