"""The first minute from wheels: installed without the repository, run offline."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # eight wheels are built

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "minute.md"
PACKAGES = ("audit", "encoders", "med3d-r1", "pages", "phantoms", "reports", "tour")
OURS = ("evidcore", "_editable", "__editable__")
OFFLINE = """
import socket

def refuse(*given):
    raise OSError("there is no network here")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Wheels of the core and of what the tour needs, as `make wheels` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    sources = [ROOT, *(ROOT / "plugins" / f"evidcore-plugin-{name}" for name in PACKAGES)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", folder, *sources], check=True)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    """An environment with those wheels, everything else from where the tests have it, and no network."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    others = folder / "others"
    others.mkdir()
    for place in map(Path, sys.path):
        if place.name == "site-packages":
            for item in place.iterdir():
                if not item.name.startswith(OURS) and not (others / item.name).exists():
                    (others / item.name).symlink_to(item)
    (site / "others.pth").write_text(str(others))
    (site / "sitecustomize.py").write_text(OFFLINE)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", *wheels], check=True)
    return python


def test_the_wheel_of_the_core_holds_every_module(wheels):
    (core,) = (wheel for wheel in wheels if wheel.name.startswith("evidcore-"))
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "evidcore").rglob("*.py")}
    assert there - set(zipfile.ZipFile(core).namelist()) == set()


def test_the_tour_runs_from_wheels_without_repository_and_network(environment, tmp_path):
    env = {**os.environ, "EVID_CACHE": str(tmp_path / "cache")}
    env.pop("PYTHONPATH", None)
    where = "import evidcore, evidcore_plugin_tour as t; print(evidcore.__file__, t.__file__)"
    result = subprocess.run(
        [environment, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert result.stdout.count(str(environment.parents[1])) == 2
    command = [environment, "-m", "evidcore", "tour"]
    done = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, check=True)
    said, written = (
        done.stdout.splitlines(),
        PAGE.read_text(encoding="utf-8").partition("```text\n")[2].splitlines(),
    )
    assert (tmp_path / said[-1].removeprefix("page: ")).is_file()
    assert len(said) == 12
    for ours, theirs in zip(said, written, strict=False):
        words = [re.split(r"[-+\d.]+", line)[0] for line in (ours, theirs)]
        assert words[0] == words[1]
        numbers = [[float(item) for item in re.findall(r"[-+]?\d+\.\d", line)] for line in (ours, theirs)]
        assert numbers[0] == pytest.approx(
            numbers[1], abs=5
        )  # another processor may answer another question right
