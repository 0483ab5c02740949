"""CPU seconds until `evid --help` and `evid plugins` have answered, beside a Python that does nothing.

python benchmarks/startup.py [--json] [--quick]        half a minute, no download

Each command is a process of its own; they take turns. CPU time is that of the process, so that other load on
the machine changes little.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from side_by_side import figure, parser, tell

LIMIT_S = 0.15
EVID = str(Path(sys.executable).with_name("evid"))
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "evid --help": (EVID, "--help"),
    "evid plugins": (EVID, "plugins"),
}
# as an installed package: the first run keeps its bytecode
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def once(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return its CPU and wall-clock seconds."""
    start_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, wall_s


def main() -> None:
    """Measure and print."""
    given = parser(__doc__).parse_args()
    cpu_s: dict[str, list[float]] = {name: [] for name in COMMANDS}
    wall_s: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(3 if given.quick else 31):
        for name, command in COMMANDS.items():
            cpu, wall = once(command)
            if turn:  # the first writes bytecode and fills the system's file cache
                cpu_s[name].append(cpu)
                wall_s[name].append(wall)
    figures = [
        figure(name, cpu_s[name], "CPU s", at_most=LIMIT_S if name.startswith("evid") else None)
        for name in COMMANDS
    ]
    figures += [figure(f"{name}, wall clock", wall_s[name], "s") for name in COMMANDS]
    tell(__doc__, figures, as_json=given.json)


if __name__ == "__main__":
    main()
