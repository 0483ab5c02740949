"""Seconds and memory until a run with many groups is shown, paged and compared; its groups are repeated.

python benchmarks/viewing.py RUN [--groups 7200]        a minute or two, no download

RUN is copied, and the groups of its last GRPO stage are written again and again, with steps of their own,
until there are that many. `evid view` is timed from its start to the answer to the request that a browser
makes first, the list of all groups; its memory is the most that the server held until then.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

EVID = (sys.executable, "-m", "evidcore")
VIEW_S, VIEW_MB, PAGE_S, COMPARE_S = 2.0, 500.0, 20.0, 5.0


def enlarge(run: Path, groups: int) -> str:
    """Repeat the groups of a run's last rollouts; return the stage that wrote them."""
    written = sorted((run / "rollouts").glob("*.jsonl"))
    if not written:
        raise SystemExit(f"{run}: has no rollouts. Name a run with a grpo stage.")
    lines = [json.loads(line) for line in written[-1].read_text(encoding="utf-8").splitlines()]
    steps = lines[-1]["step"]
    written[-1].unlink()  # it may be a link
    with written[-1].open("w", encoding="utf-8") as target:
        for number, line in zip(range(groups), itertools.cycle(lines), strict=False):
            line["step"] += steps * (number // len(lines))
            target.write(json.dumps(line) + "\n")
    return written[-1].stem


def view(run: Path, stage: str) -> tuple[float, float]:
    """Return the seconds until all groups of a stage are listed, and the server's largest memory, in MB."""
    start_s = time.perf_counter()
    words = [*EVID, "view", str(run), "--no-open", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address, key = json.loads(server.stdout.readline())["address"].split("#key=")
        rows = f"{address}api/rows?run=a&kind=rollouts&stage={stage}"
        asked = urllib.request.Request(rows, headers={"Authorization": f"Bearer {key}"})
        listed = json.load(urllib.request.urlopen(asked))
        taken_s = time.perf_counter() - start_s
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        server.terminate()
    print(f"{len(listed):,} rows")
    (peak,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return taken_s, int(peak) / 1024


def timed(*words: str) -> float:
    """Return the seconds that a command takes."""
    start_s = time.perf_counter()
    subprocess.run([*EVID, *words], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start_s


def main() -> None:
    """Measure, and print a line each."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("run", type=Path, metavar="RUN")
    options.add_argument("--groups", type=int, default=7200)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / given.run.name
        shutil.copytree(given.run, copy, symlinks=False)
        stage = enlarge(copy, given.groups)
        lines = os.path.getsize(copy / "rollouts" / f"{stage}.jsonl") / 2**20
        print(f"{given.groups:,} groups of {stage}, {lines:.0f} MiB")
        seconds, megabytes = view(copy, stage)
        print(f"evid view, until they are listed: {seconds:.2f} s (at most {VIEW_S:g}),", end=" ")
        print(f"{megabytes:.0f} MB (at most {VIEW_MB:g})")
        print(f"evid page: {timed('page', str(copy)):.1f} s (at most {PAGE_S:g})")
        print(f"evid compare: {timed('compare', str(copy)):.1f} s (at most {COMPARE_S:g})")


if __name__ == "__main__":
    main()
