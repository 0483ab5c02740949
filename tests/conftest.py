import importlib
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType

import pytest
from evidcore_plugin_phantoms.testing import copied_run as copied_run
from evidcore_plugin_phantoms.testing import small_run as small_run
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.fixtures import made_once
from evidcore_testing.fixtures import offered as offered
from evidcore_testing.fixtures import real_data as real_data

from evidcore.registry import _watches

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="session")
def benchmark() -> Callable[[str], ModuleType]:
    """Return a function that imports a script of benchmarks/ by its name."""

    def load(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")  # scripts import each other
            return importlib.import_module(name)

    return load


@pytest.fixture(scope="session")
def example_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of examples/, installed as a user would; the module of the reward says when it runs."""

    def install(folder: Path) -> None:
        shutil.copytree(
            EXAMPLES, folder / "copies", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        )
        with (folder / "copies" / "reward-laterality" / "evid_reward_laterality.py").open("a") as module:
            module.write('\ntry: open(f"{__file__}.imported", "w").close()\nexcept OSError: pass\n')
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        copies = sorted((folder / "copies").iterdir())
        subprocess.run([*pip, "--no-build-isolation", "--target", folder / "site", *copies], check=True)

    return made_once(tmp_path_factory, "examples", install) / "site"


TAKE_SECONDS = [
    "evidcore.train.grpo", "evidcore.train.sft", "evidcore.runs", "evidcore_plugin_pages.document",
    "monai.networks.blocks",
]  # fmt: skip


class WarmProcess:
    """A program in a process of its own that began with everything imported; it prints into files."""

    def __init__(self, context, words, folder: Path, environment: dict[str, str], printed: Path) -> None:
        self._out, self._err = printed.with_suffix(".out"), printed.with_suffix(".err")
        self._out.touch()
        given = {
            "words": [str(word) for word in words], "folder": str(folder), "environment": environment,
            "out": str(self._out), "err": str(self._err),
        }  # fmt: skip
        program = str(Path(__file__).with_name("warm_program.py"))
        self._process = context.Process(target=runpy.run_path, args=(program, {"GIVEN": given}))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def communicate(self) -> tuple[str, str]:
        """Wait for the end and return what was printed."""
        self._process.join()
        return self._out.read_text(encoding="utf-8"), self._err.read_text(encoding="utf-8")

    def lines(self) -> Iterator[str]:
        """Yield the lines printed to standard output, as they come, until the end."""
        with self._out.open(encoding="utf-8") as file:
            begun = ""
            while True:
                has_ended = self.poll() is not None
                begun += file.read()
                *whole, begun = begun.split("\n")
                yield from whole
                if has_ended:
                    return
                time.sleep(0.01)


@pytest.fixture(scope="session")
def warm(tmp_path_factory) -> Callable[..., WarmProcess]:
    """Return a function that starts `python WORDS` in a folder, without the seconds that imports take.

    Where a test is about what a fresh interpreter does, `subprocess` is right, not this.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(TAKE_SECONDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
    printed = tmp_path_factory.mktemp("printed")

    def start(*words: object, folder: Path, **environment: str) -> WarmProcess:
        number = len(list(printed.iterdir()))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        return WarmProcess(context, words, folder, environment, printed / str(number))

    return start


@pytest.fixture(scope="session")
def put_package() -> Callable[..., None]:
    """Return a function that writes a package into a folder as pip leaves it, with the sources of modules."""

    def put(folder: Path, name: str, offers: str, version: str = "1.0", readme: str = "", **modules: str):
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n{readme}"
        (info / "METADATA").write_text(about, encoding="utf-8")
        (info / "entry_points.txt").write_text(offers)
        for module, source in modules.items():
            (folder / f"{module}.py").write_text(source)

    return put


@pytest.fixture
def install(put_package, tmp_path, monkeypatch):
    """Return a function that puts a package offering one component on `sys.path`."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(package, name, body="class It: ...", *, target=None, readme="", kind="reward"):
        module = package.replace("-", "_")
        offer = f"[evidcore.{kind}]\n{name} = {target or f'{module}:It'}\n"
        modules = {} if body is None else {module: body}
        put_package(tmp_path, package, offer, readme=readme, **modules)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


@pytest.fixture
def unwatched(monkeypatch) -> Iterator[None]:
    """Leave out the package that watches over others: it is as if it were not installed."""
    monkeypatch.setattr("evidcore.registry._WATCHING", "nobodys_group")
    _watches.cache_clear()
    yield
    _watches.cache_clear()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Have torch use two threads, as it does where a machine has them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
