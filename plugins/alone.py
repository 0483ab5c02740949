"""Install packages alone from their wheels, each into an environment of its own, and run their tests there.

    make wheels
    python plugins/alone.py                        # every package, and the core with the tutorial's reward
    python plugins/alone.py evidcore-plugin-dicom  # one
    python plugins/alone.py --by-turns             # the core, and one package by the number of commits: CI

Our own packages come from dist/, everything else from the package index or pip's cache. A package's tests are
copied out of the repository, so that nothing but the wheels is imported.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PLUGINS = Path(__file__).parent
ROOT = PLUGINS.parent
SETTINGS = """\
[pytest]
addopts = --strict-markers --import-mode=importlib -m "not slow and not nightly"
markers =
    slow: takes three seconds or more
    nightly: of documents and benchmarks
"""


def main() -> int:
    """Install, test, print a line for each; return 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("package", nargs="*", help="names; all packages and the core if left out")
    parser.add_argument("--by-turns", action="store_true", help="the core and one package")
    asked = parser.parse_args()
    packages = {_name(file): file.parent for file in sorted(PLUGINS.glob("*/pyproject.toml"))}
    names = asked.package or ["evidcore", *packages]
    if asked.by_turns:
        count = int(_output("git", "-C", str(ROOT), "rev-list", "--count", "HEAD"))
        names = ["evidcore", list(packages)[count % len(packages)]]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            passed = (
                _core(Path(folder)) if name == "evidcore" else _package(name, packages[name], Path(folder))
            )
        print(f"{name}: {'passed' if passed else 'FAILED'}", flush=True)
        failed += [] if passed else [name]
    return bool(failed)


def _package(name: str, source: Path, folder: Path) -> bool:
    python = _environment(folder, f"{name}[test]")
    shutil.copytree(source / "tests", folder / "tests")
    (folder / "pytest.ini").write_text(SETTINGS, encoding="utf-8")
    return _runs(python, "-m", "pytest", "-q", "-x", "tests", cwd=folder)


def _core(folder: Path) -> bool:
    """Install the core, look for what it should not bring; type-check an example, and run one's recipe."""
    python = _environment(folder, "evidcore", "mypy>=1.18", str(ROOT / "examples" / "own-method"))
    listed = _output(str(python), "-m", "pip", "list", "--format=freeze")
    brought = [line for line in listed.splitlines() if line.startswith("evidcore-")]
    moved_out = ("SimpleITK", "pydicom", "python-gdcm", "pynrrd", "sacrebleu", "RapidFuzz", "monai", "timm")
    brought += [name for name in moved_out if re.search(rf"(?im)^{name}==", listed)]
    if brought:
        print(f"evidcore brings {', '.join(brought)}")
    shutil.copytree(ROOT / "examples" / "reward-laterality", folder / "reward")
    is_typed = _runs(python, "-m", "mypy", "--strict", *sorted((folder / "reward").glob("*.py")), cwd=folder)
    lists = _runs(python, "-m", "evidcore", "plugins", cwd=folder)
    recipe = ROOT / "examples" / "own-method" / "own_method.toml"
    runs = _runs(python, "-m", "evidcore", "run", recipe, "--set", "stage.sft.steps=4", cwd=folder)
    return not brought and is_typed and lists and runs


def _environment(folder: Path, *wanted: str) -> Path:
    """Make an environment with what is wanted, ours from dist/; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    _link_torch(ROOT / ".venv", folder / "venv")
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    links = ["--find-links", str(ROOT / "dist")]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *constraints, *links, *wanted], check=True)
    return python


def _link_torch(built: Path, new: Path) -> None:
    """Link torch and its CUDA libraries, 5 GB of 6, from an environment that is there, on the same disk."""
    for site in built.glob("lib/python*/site-packages"):
        for distribution in importlib.metadata.distributions(path=[str(site)]):
            if re.fullmatch(r"torch|triton|(nvidia|cuda)-.*", distribution.name):
                for file in distribution.files or []:
                    target = new / site.relative_to(built) / file
                    if ".." not in file.parts and (site / file).stat().st_dev == new.stat().st_dev:
                        target.parent.mkdir(parents=True, exist_ok=True)
                        os.link(site / file, target)


def _runs(*words: object, cwd: Path) -> bool:
    return subprocess.run([str(word) for word in words], cwd=cwd, check=False).returncode == 0


def _name(file: Path) -> str:
    return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"])


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
