from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from evidcore.cli import main


@pytest.fixture(scope="session")
def evid() -> Callable[..., Result]:
    """Return a function that runs the command in this process and checks its exit status."""

    def command(*words: object, exit_code: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == exit_code, (result.output, result.stderr, result.exception)
        return result

    return command


SMALL = """\
schema = 1
name = "small"
seed = 17

[dataset.chest]
use = "phantom-chest"
train_cases = 4
validation_cases = 1
test_cases = 2
questions_per_finding = 1

[task.choice]
use = "choice"

[task.report]
use = "report"

[service.words]
kind = "labeler"
use = "phrases"

[model]
language = { use = "tiny", width = 32, layers = 1 }
view = { use = "volume" }
encoder = { use = "vit3d", width = 48, layers = 1, heads = 4, patch_zyx = [8, 16, 16] }
bridge = { use = "projection" }

[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [{ dataset = "chest", task = "report" }]
steps = 1
rows_per_step = 2
learning_rate = 1e-3

[[stage]]
kind = "evaluate"
data = [{ dataset = "chest", task = "choice", split = "test", limit = 1 }]
max_new_tokens = 8

[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [{ dataset = "chest", task = "report" }, { dataset = "chest", task = "choice" }]
steps = 12
rows_per_step = 4
learning_rate = 2e-2

[[stage]]
kind = "evaluate"
data = [{ dataset = "chest", task = "choice", split = "test" }]
max_new_tokens = 24
"""


@pytest.fixture(scope="session")
def small_run(tmp_path_factory) -> Path:
    """The folder of a finished run on phantoms, made in seconds; its model has learnt a few words."""
    from evidcore.recipe import load
    from evidcore.run import run, start

    root = tmp_path_factory.mktemp("small")
    (root / "small.toml").write_text(SMALL, encoding="utf-8")
    folder = start(load(root / "small.toml"), root / "runs")
    run(folder)
    return folder.path


@pytest.fixture
def copied_run(small_run, tmp_path) -> Path:
    """A copy of the finished run to change."""
    root = tmp_path / "copied" / "small"
    shutil.copytree(small_run.parent, root, symlinks=True)
    return root / small_run.name
