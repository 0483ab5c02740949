"""Run every benchmark, keep what each gives in docs/results/benchmarks, and write its README.md from it.

python benchmarks/run_all.py [NAME …] [--quick] [--page]        all of them: 45 minutes on 2 idle cores

`--page` runs nothing and writes the page alone.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results" / "benchmarks"
PAGE = KEPT / "README.md"
PLOT = KEPT / "scaling.svg"
NAMES = (
    "startup",
    "rewards",
    "isolation",
    "grpo_step",
    "sft_step",
    "scaling",
    "volume_io",
    "data_check",
    "plan_memory",
    "propagation",
)  # as on the page
# on a GPU (benchmarks/gpu.sh), beside another checkout, and what measures no time; shown where a JSON is kept
ELSEWHERE = ("gpu_step", "grpo_step_gpu", "crop_step", "zoom_control")
HEAD = """\
# Benchmarks

Written by `make bench` from the JSON in docs/results/benchmarks: figures are measured, not typed. Each line
is a median, with the quartiles beside it where there are several samples; arms take turns in one process.
"Needed" is what the project asks of itself.
"""


def run(name: str, quick: bool) -> None:
    """Run one benchmark and keep its result."""
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / f"{name}.py"),
        "--json",
        *(["--quick"] if quick else []),
    ]
    print(f"{name} …", flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout[done.stdout.index("{") :])
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return docs/results/benchmarks/README.md."""
    parts = [HEAD]
    for name, result in results.items():
        machine = result["machine"]
        measured_on = ", ".join(value for key, value in machine.items() if key != "versions")
        parts.append(f"## {name.replace('_', ' ')}\n\n{result['claim']}\n\n    {result['command']}\n")
        parts.append("| | median | quartiles | unit | needed |\n|---|---:|---:|---|---|")
        parts += [_row(row) for row in result["figures"]]
        if name == "scaling":
            parts.append(f"\n![Time of a step over volumes and over G]({PLOT.name})")
        parts.append(f"\nMeasured on {measured_on}; {machine['versions']}.\n")
    return "\n".join(parts)


def _row(row: Mapping[str, Any]) -> str:
    spread = "" if row["low"] is None else f"{_written(row['low'])} to {_written(row['high'])}"
    needed = "" if row["is_met"] is None else f"{row['needed']}: {'met' if row['is_met'] else '**not met**'}"
    return f"| {row['name']} | {_written(row['value'])} | {spread} | {row['unit']} | {needed} |"


def _written(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def plot(details: Mapping[str, Any]) -> None:
    """Draw the time of a step over volumes and over G."""
    import statistics

    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "benchmarks"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for axis, key, title in zip(
        axes, ("volumes", "G"), ("volumes a step, G = 8", "G, 4 volumes a step"), strict=True
    ):
        counts = [int(count) for count in details[key]]
        medians = [statistics.median(taken) for taken in details[key].values()]
        axis.plot(counts, medians, "o-", color="#0b6b74", label="measured")
        straight = [medians[0] * count / counts[0] for count in counts]
        axis.plot(counts, straight, "--", color="#6d7278", label="in proportion")
        axis.set(xlabel=title, ylabel="CPU s a step", xlim=(0, None), ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].legend(frameon=False)
    figure.savefig(PLOT, metadata={"Date": None})


def kept() -> dict[str, Any]:
    """Return the results that are kept, in the page's order."""
    places = {name: KEPT / f"{name}.json" for name in (*NAMES, *ELSEWHERE)}
    return {
        name: json.loads(place.read_text(encoding="utf-8"))
        for name, place in places.items()
        if place.is_file()
    }


def main() -> None:
    """Run what was asked for, then write the page."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; none: all")
    options.add_argument(
        "--quick", action="store_true", help="see that they run; such figures are not to be kept"
    )
    options.add_argument("--page", action="store_true", help="write the page from what is kept")
    given = options.parse_args()
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        options.error(f"no benchmark is called {unknown[0]!r}. Benchmarks: {', '.join(NAMES)}.")
    if not given.page:
        for name in given.names or NAMES:
            run(name, given.quick)
    results = kept()
    PAGE.write_text(page(results), encoding="utf-8")
    if "scaling" in results:
        plot(results["scaling"]["details"])


if __name__ == "__main__":
    main()
