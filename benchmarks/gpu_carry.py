"""Collect into one folder the wheels that an offline GPU machine lacks, so that evidcore runs there.

python benchmarks/gpu_carry.py FOLDER [--machine benchmarks/gpu_machine.txt] [--limit-mib 60]

What is wanted: everything that evidcore and the plugins of gpu.sh's parts need, at the versions of this
environment, which `make venv` built from constraints.txt. What the machine has, at a version that all of them
allow, stays as it is; torch and what it brings are never taken along. The rest is downloaded as wheels for
the machine's Python on Linux x86-64. Above the limit nothing is left in the folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
OWN = (  # what gpu.sh uses; the segmenters would bring 50 MiB of SimpleITK, DICOM 13 of GDCM
    "evidcore",
    *(
        f"evidcore-plugin-{name}"
        for name in (
            "ct-data", "emrl", "encoders", "lab", "med3d-r1", "medsam2", "medvol-r1", "medvr", "phantoms",
            "reports", "tables", "views",
        )
    ),
)  # fmt: skip
NEVER = ("torch", "triton", "nvidia-", "cuda-")  # the machine's build of torch, and what belongs to it
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a machine has."""

    python: str  # "3.12"
    packages: Mapping[str, Version | None]  # None: there, in a version that is not known

    @classmethod
    def read(cls, file: Path) -> Machine:
        """Read lines of `name==version` or `name`; a line `python==3.12` says which Python."""
        result: dict[str, Version | None] = {}
        for line in file.read_text(encoding="utf-8").splitlines():
            text = line.partition("#")[0].strip()
            if text:
                name, _, version = text.partition("==")
                result[canonicalize_name(name)] = Version(version) if version else None
        python = result.pop("python", None)
        if python is None or (python.major, python.minor) < (3, 11):
            raise SystemExit(f"{file}: has no line python==3.11 or later, got {python}. Add the machine's.")
        return cls(f"{python.major}.{python.minor}", result)


def wanted(names: Iterable[str], python: str) -> dict[str, list[Requirement]]:
    """Return every package that `names` need here, with what is asked of its version."""
    marks = {
        "python_version": python, "python_full_version": f"{python}.0", "platform_system": "Linux",
        "sys_platform": "linux", "os_name": "posix", "platform_machine": "x86_64",
        "platform_python_implementation": "CPython", "implementation_name": "cpython",
    }  # fmt: skip
    result: dict[str, list[Requirement]] = {canonicalize_name(name): [] for name in names}
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in result]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        if name.startswith(NEVER):
            continue
        for text in metadata.requires(name) or ():
            asked = Requirement(text)
            if asked.marker and not any(
                asked.marker.evaluate({**marks, "extra": extra}) for extra in (*extras, "")
            ):
                continue
            needed = canonicalize_name(asked.name), frozenset(asked.extras)
            result.setdefault(needed[0], []).append(asked)
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return result


def lacking(needs: Mapping[str, Sequence[Requirement]], machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield (package, why) for what has to be taken along."""
    for name, asked in sorted(needs.items()):
        if name in OWN or name.startswith(NEVER):
            continue
        if name not in machine.packages:
            yield name, "is not there"
            continue
        version = machine.packages[name]
        refused = [
            str(item) for item in asked if version is not None and not item.specifier.contains(version, True)
        ]
        if refused:
            yield name, f"{version} is there, but {', '.join(sorted(set(refused)))} is asked for"


def check_torch(needs: Mapping[str, Sequence[Requirement]], machine: Machine) -> None:
    """Refuse a machine whose torch is missing or too old: it is never taken along."""
    version = machine.packages.get("torch")
    asked = [
        item for item in needs.get("torch", ()) if version and not item.specifier.contains(version, True)
    ]
    if version is None or asked:
        limits = ", ".join(sorted({str(item.specifier) for item in asked})) or "torch"
        raise SystemExit(f"the machine has torch {version}, and {limits} is needed. Install it there.")


def collect(pins: Sequence[str], python: str, folder: Path) -> None:
    """Download wheels of exactly these versions, and build our own."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    only = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    if pins:
        subprocess.run([*pip, "download", "-q", "--no-deps", *only, "-d", folder, *pins], check=True)
    sources = [ROOT, *(ROOT / "plugins" / name for name in OWN[1:])]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", folder, *sources], check=True)


def main() -> None:
    """Collect, say what was taken and why, refuse above the limit."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path)
    options.add_argument("--machine", type=Path, default=ROOT / "benchmarks" / "gpu_machine.txt")
    options.add_argument("--limit-mib", type=float, default=60.0)
    options.add_argument("--list", action="store_true", help="say what would be taken, and take nothing")
    given = options.parse_args()
    machine = Machine.read(given.machine)
    needs = wanted(OWN, machine.python)
    check_torch(needs, machine)
    taken = dict(lacking(needs, machine))
    for name, why in taken.items():
        print(f"{name}=={metadata.version(name)}: {why}")
    unknown = sorted(name for name in needs if name in machine.packages and machine.packages[name] is None)
    if unknown:
        print(f"{given.machine.name} says no version of these, taken to fit: {', '.join(unknown)}")
    if given.list:
        return
    if given.folder.exists() and any(given.folder.iterdir()):
        raise SystemExit(f"{given.folder}: is not empty. Name a new folder, or remove it.")
    with tempfile.TemporaryDirectory() as name:
        collect([f"{item}=={metadata.version(item)}" for item in taken], machine.python, Path(name))
        wheels = sorted(Path(name).glob("*.whl"), key=lambda file: -file.stat().st_size)
        total = sum(file.stat().st_size for file in wheels) / MIB
        for file in wheels:
            print(f"{file.stat().st_size / MIB:8.2f} MiB  {file.name}")
        if total > given.limit_mib:
            raise SystemExit(
                f"{total:.1f} MiB are more than the {given.limit_mib:g} MiB that may be carried, so nothing "
                f"was kept. Name in {given.machine} what the machine has, or raise --limit-mib."
            )
        given.folder.mkdir(parents=True, exist_ok=True)
        for file in wheels:
            shutil.move(file, given.folder / file.name)
    print(
        f"{total:.1f} MiB in {given.folder}: {len(wheels)} wheels for Python {machine.python}, without torch"
    )


if __name__ == "__main__":
    main()
