"""Does a slice that contradicts the report still pay? The settling test of the reward cross-view.

python benchmarks/slice_reader.py                   fits the reader, once: about 12 minutes on a CPU core
OMP_NUM_THREADS=1 python benchmarks/settling.py     about 4 minutes
python benchmarks/settling.py --second runs/slice-reader/1018 --second-channels 24 48 96

--keep docs/results/settling also writes the tables, all figures and a plot there: .txt, .json, .svg.

Draws phantom-abdomen with another seed than the reader was fitted on, and pays the gold answers of its test
patients under each condition of `evid audit reward`, with every control, agreement and binding.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from evidcore_plugin_emrl.cross_view import CrossView
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_emrl.settled import (
    AGREEMENTS,
    BINDS,
    CELLS,
    CONTROLS,
    FALSE,
    MOST_LEAKED,
    Agreement,
    Cell,
    Pay,
    Settled,
)
from evidcore_plugin_emrl.settling_conditions import CONDITIONS
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen

from evidcore.api import Case, Rollout
from evidcore.builtin.views import Slices
from evidcore.cache import cache_folder

COLOURS: Mapping[Agreement, str] = {"whole": "#0b6b74", "local": "#b3541e"}


def paid(reward: CrossView, cases: Sequence[Case], *, slices: int) -> Settled:
    """Pay the gold answers about cases, of whose scans so many slices are shown, under all conditions."""
    task, gold = ReportEvidence(cache_folder()), []
    prompts = [item for case in cases for item in task.prompts(case, Slices(slices=slices), 0)]
    for group, prompt in enumerate(prompts):
        text, _ = task.gold(prompt)
        gold.append(Rollout(prompt=prompt, group=group, text=text, answer=task.parse(prompt, text)))
    settled = reward.settled(gold)
    if settled is None:
        raise SystemExit("no patient has a slice that contradicts its report: give more patients")
    return settled


def tables(settled: Settled) -> list[str]:
    """Return what is paid, and the outcomes of each agreement and binding, as lines."""
    lines = [
        *(f"  {name:15}{says}" for name, says in CONDITIONS.items()),
        "",
        *pay_table(settled),
        "",
        "outcomes",
    ]
    for own in CELLS:
        if own.control == "others" and not own.mask_gate:
            checks = dataclasses.replace(settled, own=own).checks()
            lines += ["", str(own), *(f"  {item.outcome:6}{item.check:26}{item.says}" for item in checks)]
    return lines


def pay_table(settled: Settled) -> Iterator[str]:
    """Yield the pay of all conditions under all options as lines."""
    yield from (item.says for item in settled.checks()[:2])
    for bind, agreement in itertools.product(BINDS, AGREEMENTS):
        yield ""
        yield f'agreement = "{agreement}", bind = "{bind}"; mean pay, 95 % bounds, [perfect eyes]'
        yield f"{'':15}{'pairs':>6}" + "".join(f"{control:^33}" for control in CONTROLS).rstrip()
        for name, gate in itertools.product((*CONDITIONS, FALSE), (False, True)):
            pays = settled.pays.get(name, {})
            row = [pays.get(Cell(agreement, control, bind, gate)) for control in CONTROLS]
            known = [pay for pay in row if pay is not None]
            if known and (not gate or settled.is_gated(name, agreement, bind)):
                label = "  mask gate" if gate else name
                cells = "".join(f"{_cell(pay):^33}" for pay in row)
                yield f"{label:15}{known[0].pairs:>6}{cells}".rstrip()


def _cell(pay: Pay | None) -> str:
    if pay is None:
        return "-"
    bounds = "" if pay.low is None else f" ({pay.low:.3f}..{pay.high:.3f})"
    eyes = "-" if pay.eyes is None else f"{pay.eyes:.3f}"
    return f"{pay.value:.3f}{bounds} [{eyes}]"


def figures(settled: Settled) -> dict[str, Any]:
    """Return what each condition is paid under all options, and what is said of the reader."""
    pays = {
        name: {str(cell): dataclasses.asdict(pay) for cell, pay in cells.items()}
        for name, cells in settled.pays.items()
    }
    reader = {item.check: item.says for item in settled.checks()[:2]}
    return {"reader": reader, "kappa": settled.kappa, "pays": pays}


def draw(pays: Mapping[str, Mapping[str, Mapping[str, Any]]], place: Path) -> None:
    """Plot what conditions are paid with the control of other patients: mean, 95 % bounds, perfect eyes."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "settling"
    from matplotlib import pyplot

    names = [name for name in (*CONDITIONS, FALSE) if name in pays]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for axis, bind in zip(axes, BINDS, strict=True):
        for shift, (agreement, colour) in zip((-0.15, 0.15), COLOURS.items(), strict=True):
            cell = str(Cell(agreement, "others", bind, mask_gate=False))
            shown = [(row + shift, pays[name][cell]) for row, name in enumerate(names) if cell in pays[name]]
            for row, pay in shown:
                if pay["low"] is not None:
                    axis.plot([pay["low"], pay["high"]], [row, row], color=colour, linewidth=2)
            axis.plot([pay["value"] for _, pay in shown], [row for row, _ in shown], "o", color=colour,
                      label=agreement)  # fmt: skip
            eyes = [(pay["eyes"], row) for row, pay in shown if pay["eyes"] is not None]
            axis.plot(*zip(*eyes, strict=True), "|", color="#6d7278", markersize=9)
        axis.axvline(MOST_LEAKED, linestyle="--", color="#6d7278", linewidth=1)
        axis.set(xlabel=f"pay, bound to the {bind}", yticks=range(len(names)), yticklabels=names)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    axes[1].legend(frameon=False, title="agreement")
    figure.savefig(place, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Pay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=2017, help="of the population")
    parser.add_argument("--patients", type=int, default=400)
    parser.add_argument("--fitted", type=Path, default=Path("runs/slice-reader/1017"))
    parser.add_argument("--second", type=Path, help="a folder that another fit wrote: for a kappa")
    parser.add_argument("--second-channels", type=int, nargs="+", default=[24, 48, 96])
    parser.add_argument("--keep", type=Path, help="files to be, without their suffix")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    dataset = PhantomAbdomen(
        cache_folder(),
        train_cases=0,
        validation_cases=0,
        test_cases=asked.patients,
        seed=asked.seed,
        size_zyx=(24, 96, 128),
        scan_shift_mm=60.0,
    )
    cases = list(dataset.cases("test"))
    reader = SliceReader()
    reader.load(asked.fitted)
    second = None
    if asked.second:
        second = SliceReader(channels=tuple(asked.second_channels))
        second.load(asked.second)
    reward = CrossView(lambda: cases, cache_folder(), reader=reader, second_reader=second)
    settled = paid(reward, cases, slices=24)
    lines = [
        f"phantom numbers: phantom-abdomen, seed {asked.seed}, {len(cases)} patients, "
        f"{sum(bool(case.present()) for case in cases)} with a finding; slice-reader of {asked.fitted}",
        *tables(settled),
    ]
    print("\n".join(lines))
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    if asked.keep:
        asked.keep.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        result = figures(settled)
        asked.keep.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        draw(result["pays"], asked.keep.with_suffix(".svg"))


if __name__ == "__main__":
    main()
