"""Fixtures that tests of several packages share; a conftest.py imports those it wants."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from evidcore.api import Case, Report, Span
from evidcore.contracts import TextSample
from evidcore_testing.data import volume_case
from evidcore_testing.models import tiny_language

if TYPE_CHECKING:
    from click.testing import Result


@pytest.fixture(scope="session")
def evid() -> Callable[..., Result]:
    """Return a function that runs the command in this process and checks its exit status."""
    from click.testing import CliRunner

    from evidcore.cli import main

    def command(*words: object, exit_code: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == exit_code, (result.output, result.stderr, result.exception)
        return result

    return command


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` fills once for all processes of this run of pytest.

    Each process has a copy of its own, of hard links: its files are replaced, never written into.

    Args:
        factory: of pytest.
        name: of the folder, of its own in the whole run.
        make: fills the empty folder that it is given; it may be copied elsewhere afterwards.
    """
    own = factory.getbasetemp() / name
    if own.is_dir():  # two conftest.py that import one fixture set it up twice
        return own
    is_alone = "PYTEST_XDIST_WORKER" not in os.environ
    shared = own if is_alone else own.parent.with_name(name)
    with FileLock(f"{shared}.lock"):
        if not shared.is_dir():
            begun = factory.mktemp(name)
            make(begun)
            begun.rename(shared)
    if not is_alone:
        shutil.copytree(shared, own, symlinks=True, copy_function=os.link)
    return own


@pytest.fixture(scope="session")
def language_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny language model with its tokenizer."""
    return tiny_language(tmp_path_factory.mktemp("language") / "tiny")


def volume_cases(count: int) -> Any:
    """Return a fixture of so many cases with a small volume each, to be named `cases`."""

    @pytest.fixture(scope="session")
    def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
        folder = tmp_path_factory.mktemp("volumes")
        return [volume_case(folder, seed) for seed in range(count)]

    return cases


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real volumes; never copied from, quoted or printed."""
    beside = Path(__file__).parents[4] / "../shared/data"
    folder = Path(os.environ.get("EVID_SHARED_DATA", beside)).resolve()
    if not folder.is_dir():
        pytest.skip("no real volumes here: set EVID_SHARED_DATA to their folder")
    return folder


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Return a function that makes objects of a test look like those of an installed package."""
    modules = []
    monkeypatch.syspath_prepend(tmp_path)

    def offer(package: str, entry_points: str, version: str = "1.0", **objects: object) -> ModuleType:
        name = package.replace("-", "_")
        (tmp_path / f"{name}.py").write_text("")
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        module = importlib.import_module(name)
        modules.append(name)
        for key, value in objects.items():
            setattr(module, key, value)
        return module

    yield offer
    for name in modules:
        del sys.modules[name]


@pytest.fixture
def written() -> Callable[..., list[TextSample]]:
    """Return texts to measure from pairs of report and reference."""

    def make(*pairs: tuple[str, str | None], spans: Sequence[Span] = ()) -> list[TextSample]:
        return [
            TextSample(
                case=Case(id=f"c{index}", patient=f"p{index}", volumes=()),
                asked="Write the report.",
                text=text,
                reference=None if reference is None else Report(text=reference, spans=tuple(spans)),
            )
            for index, (text, reference) in enumerate(pairs)
        ]

    return make


@pytest.fixture
def torchrun(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that runs a program as so many processes and gives the lines that they print."""
    from torch.distributed.run import main  # accelerate's own launcher starts one process without a GPU

    for name, value in {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}.items():
        monkeypatch.setenv(name, value)

    def run(count: int, *words: object) -> list[str]:
        capfd.readouterr()
        main(["--standalone", f"--nproc_per_node={count}", *map(str, words)])
        return capfd.readouterr().out.splitlines()

    return run
