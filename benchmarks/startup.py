"""CPU seconds until `evid --help` and `evid plugins` are answered; of a bare Python too.

python benchmarks/startup.py [--json] [--quick]        half a minute, no download

Each command is a process of its own; they take turns. CPU time is that of the process, so that other load on
the machine changes little. Also with 100 packages more, and what comparing a pinned package of 20 files with
its lock adds to a run. The wall clock tells when `evid run` says its first word.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from evidcore_plugin_hub.trust import pins
from side_by_side import figure, parser, tell

LIMIT_S = 0.15
FIRST_WORD_S = 1.0
RECIPE = Path(__file__).parents[1] / "recipes" / "med3d_r1.toml"
COMPARING_S = 0.010
EVID = str(Path(sys.executable).with_name("evid"))
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "evid --help": (EVID, "--help"),
    "evid plugins": (EVID, "plugins"),
}
# as an installed package: the first run keeps its bytecode
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def once(command: Sequence[str], **more: str) -> tuple[float, float]:
    """Run a command, with `more` in its environment; return its CPU and wall-clock seconds."""
    start_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**ENVIRONMENT, **more})
    _, ended, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(ended)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, wall_s


def install(folder: Path, package: str, files: int) -> metadata.Distribution:
    """Put a package of so many files where pip would have, with a reward each of whose name begins alike."""
    module = package.replace("-", "_")
    info = folder / f"{module}-1.0.dist-info"
    texts = {folder / module / f"part_{number}.py": "X = 1\n" * 500 for number in range(files)}
    texts[info / "METADATA"] = f"Metadata-Version: 2.4\nName: {package}\nVersion: 1.0\n"
    texts[info / "entry_points.txt"] = f"[evidcore.reward]\n{package} = {module}.part_0:X\n"
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rows = [f"{path.relative_to(folder)},{pins.file_digest(text.encode())}," for path, text in texts.items()]
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,\n"]))
    return metadata.Distribution.at(info)


def comparing_s(package: metadata.Distribution) -> float:
    """Return the CPU seconds of comparing a package with what it was pinned as."""
    record = pins.record_digest(pins.recorded(package))
    start_s = time.process_time()
    assert not list(pins.faults(package, record))
    return time.process_time() - start_s


def first_word_s(folder: Path) -> float:
    """Return the seconds until `evid run` has said something."""
    start_s = time.perf_counter()
    command = (EVID, "run", str(RECIPE), "--out", str(folder))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT) as run:
        assert run.stderr is not None
        assert run.stderr.read(1)
        took_s = time.perf_counter() - start_s
        run.kill()
    return took_s


def main() -> None:
    """Measure and print."""
    given = parser(__doc__).parse_args()
    turns = 3 if given.quick else 31
    commands = {name: (command, "") for name, command in COMMANDS.items()}
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as other:
        for number in range(100):
            install(Path(place), f"evid-more-{number}", 1)
        commands["evid plugins, 100 packages more"] = (COMMANDS["evid plugins"], place)
        cpu_s: dict[str, list[float]] = {name: [] for name in commands}
        wall_s: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(turns):
            for name, (command, path) in commands.items():
                cpu, wall = once(command, PYTHONPATH=path)
                if turn:  # the first writes bytecode and fills the system's file cache
                    cpu_s[name].append(cpu)
                    wall_s[name].append(wall)
        words_s = [first_word_s(Path(other) / "runs") for _ in range(turns)][1:]
        pinned = install(Path(other), "evid-pinned", 20)
        compared_s = [comparing_s(pinned) for _ in range(turns)][1:]
    figures = [
        figure(name, cpu_s[name], "CPU s", at_most=LIMIT_S if name.startswith("evid") else None)
        for name in commands
    ]
    figures += [figure(f"{name}, wall clock", wall_s[name], "s") for name in commands]
    figures.append(figure("first word of evid run, wall clock", words_s, "s", at_most=FIRST_WORD_S))
    figures.append(figure("comparing a pinned package of 20 files", compared_s, "CPU s", at_most=COMPARING_S))
    tell(__doc__, figures, as_json=given.json)


if __name__ == "__main__":
    main()
