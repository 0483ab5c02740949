"""Fixtures: a small finished run on generated scans; a conftest.py imports those it wants."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

SMALL = Path(__file__).parent / "small.toml"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on phantoms, made in seconds; its model has learnt a few words."""
    from evidcore.recipe import load
    from evidcore.runs import run, start

    folder = start(load(SMALL), tmp_path_factory.mktemp("small") / "runs")
    run(folder)
    return folder.path


@pytest.fixture
def copied_run(small_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run to change."""
    root = tmp_path / "copied" / "small"
    shutil.copytree(small_run.parent, root, symlinks=True)
    return root / small_run.name
