"""An ablation of two arms over two seeds that takes seconds, run once; copies of it to change."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from evidcore_testing.recipes import phantoms, recipe_text, replaced

CHEST = {"dataset": "chest", "task": "choice"}
RECIPE = recipe_text(
    {"kind": "fit", "component": "model.encoder", "data": [{"dataset": "chest"}],
     "options": {"steps": 2, "cases_per_step": 2}},
    {"kind": "fit", "component": "model.language", "data": [CHEST],
     "options": {"steps": 4, "documents_per_step": 4, "validation_questions": 2, "restarts": 0}},
    {"kind": "sft", "train": ["bridge", "language"], "data": [CHEST], "steps": 6, "rows_per_step": 4,
     "learning_rate": 2e-2, "save_every_steps": 1},
    {"kind": "evaluate", "data": [{**CHEST, "split": "test"}], "max_new_tokens": 8},
    dataset={"chest": phantoms(12, 4, 22, questions_per_finding=2)},
)  # fmt: skip


class Desk:
    """A folder with the recipe and the ablation, and the command in this process."""

    def __init__(self, folder: Path, evid: Callable[..., Result]) -> None:
        self.folder, self.file, self._evid = folder, folder / "bridges.toml", evid

    @property
    def home(self) -> Path:
        return self.folder / "runs" / "tiny" / "ablations" / "bridges"

    @property
    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs" / "tiny").glob("2*-*"))

    def edit(self, *pairs: tuple[str, str]) -> None:
        self.file.write_text(replaced(self.file.read_text("utf-8"), *pairs), encoding="utf-8")

    def evid(self, *arguments: object, exit_code: int = 0) -> Result:
        with contextlib.chdir(self.folder):
            return self._evid("ablate", *arguments, exit_code=exit_code)


def desk_in(folder: Path, evid: Callable[..., Result]) -> Desk:
    (folder / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    shutil.copy(Path(__file__).with_name("bridges.toml"), folder)
    return Desk(folder, evid)


@pytest.fixture(scope="session")
def done(tmp_path_factory, evid) -> Desk:
    """An ablation that has been run; not to be changed."""
    desk = desk_in(tmp_path_factory.mktemp("done"), evid)
    desk.said = desk.evid("bridges.toml").stdout
    return desk


@pytest.fixture
def desk(tmp_path, evid) -> Desk:
    """An ablation that has not been run."""
    return desk_in(tmp_path, evid)


@pytest.fixture
def copied(done, tmp_path, evid) -> Desk:
    """A copy of the ablation that has been run, to change; its recipe lies where it lay."""
    shutil.copytree(done.folder / "runs", tmp_path / "runs", symlinks=True)
    text = done.file.read_text(encoding="utf-8").replace('"tiny.toml"', f'"{done.folder / "tiny.toml"}"')
    (tmp_path / "bridges.toml").write_text(text, encoding="utf-8")
    return Desk(tmp_path, evid)
