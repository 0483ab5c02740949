"""Fixtures: a small finished run on generated scans; a conftest.py imports those it wants."""

import shutil
from pathlib import Path

import pytest
from evidcore_testing.fixtures import made_once

SMALL = Path(__file__).parent / "small.toml"


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run on phantoms, made in seconds; its model has learnt a few words."""
    from evidcore.recipe import load
    from evidcore.runs.begin import run, start

    def make(folder: Path) -> None:
        run(start(load(SMALL), folder / "runs"))

    made = made_once(tmp_path_factory, "small", make)
    (path,) = made.glob("runs/*/2*")  # beside it are its stages and the link to the newest run
    return path


@pytest.fixture
def copied_run(small_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run to change."""
    root = tmp_path / "copied" / "small"
    shutil.copytree(small_run.parent, root, symlinks=True)
    return root / small_run.name
