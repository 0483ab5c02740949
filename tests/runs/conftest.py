"""A recipe that passes through every kind of stage in seconds, and the command that runs it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

RECIPE = Path(__file__).with_name("tiny.toml").read_text(encoding="utf-8")


class Evid:
    """The command, in a process of its own."""

    def __init__(self, folder: Path, warm) -> None:
        self.folder, self._warm = folder, warm
        self.recipe = folder / "tiny.toml"
        self.recipe.write_text(RECIPE, encoding="utf-8")

    def start(self, *arguments, program=("-m", "evidcore"), **environment):
        return self._warm(*program, *arguments, folder=self.folder, **environment)

    def __call__(self, *arguments, exit_code=0, **options) -> subprocess.CompletedProcess:
        process = self.start(*arguments, **options)
        out, err = process.communicate()
        assert process.returncode == exit_code, f"exit {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def run(self, *arguments) -> Path:
        """Run the recipe and return the run folder."""
        return self.folder / json.loads(self("run", self.recipe, "--json", *arguments).stdout)["run"]

    def newest(self, out: str) -> Path:
        """Return the folder of the newest run under a folder of runs."""
        return max((self.folder / out / "tiny").glob("2*"), key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def evid(tmp_path_factory, warm) -> Evid:
    return Evid(tmp_path_factory.mktemp("evid"), warm)


@pytest.fixture(scope="module")
def done(evid) -> Path:
    """A run that went to its end."""
    return evid.run()


@pytest.fixture(scope="session")
def recipe_text() -> str:
    return RECIPE


@pytest.fixture(scope="session")
def install_hostile(put_package):
    """Return a function that installs another package, with these rewards of hostile.py, into a folder."""

    def install(folder: Path, names) -> str:
        offers = "\n".join(["[evidcore.reward]", *(f"{name} = hostile:{name}" for name in names)])
        hostile = Path(__file__).with_name("hostile.py").read_text(encoding="utf-8")
        put_package(folder, "their-rewards", offers, "1.2", hostile=hostile)
        return str(folder)

    return install


@pytest.fixture
def begin_from_grpo(evid, done):
    """Return a function that empties a folder of runs, but for the stages that a finished run computed."""

    def begin(out: str) -> None:
        shutil.rmtree(evid.folder / out, ignore_errors=True)
        (evid.folder / out / "tiny").mkdir(parents=True)
        shutil.copytree(done.parent / "stages", evid.folder / out / "tiny" / "stages")

    return begin
