"""Does a slice that contradicts the report still pay? The settling test of the reward cross-view.

python benchmarks/slice_reader.py                   fits the reader, once: about 12 minutes on a CPU core
OMP_NUM_THREADS=1 python benchmarks/settling.py     some minutes more
python benchmarks/settling.py --second runs/slice-reader/1018 --second-channels 24 48 96

--keep docs/results/settling also writes the tables, all figures and a plot there: .txt, .json, .svg.

Draws phantom-abdomen with another seed than the reader was fitted on, and pays the gold answers of its test
patients under each condition of `evid audit reward`, with every control, agreement and binding, with and
without the mask gate.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from evidcore_plugin_emrl.cross_view import CrossView
from evidcore_plugin_emrl.matched_slices import MatchedSlices
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_emrl.settled import FALSE, MOST_LEAKED, Pay, Settled
from evidcore_plugin_emrl.settling import Asked
from evidcore_plugin_emrl.settling_conditions import CONDITIONS
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen

from evidcore.api import Case, Reader, Rollout
from evidcore.builtin.views import Slices
from evidcore.cache import cache_folder

Agreement = Literal["whole", "local"]
Control = Literal["none", "blank", "text", "others"]
Bind = Literal["slice", "finding"]
AGREEMENTS: tuple[Agreement, ...] = ("whole", "local")
CONTROLS: tuple[Control, ...] = ("none", "blank", "text", "others")
BINDS: tuple[Bind, ...] = ("slice", "finding")
COLOURS: Mapping[Agreement, str] = {"whole": "#0b6b74", "local": "#b3541e"}


class Cell(NamedTuple):
    """Options of the reward."""

    agreement: Agreement
    control: Control
    bind: Bind
    mask_gate: bool

    def __str__(self) -> str:
        gate = ", mask gate" if self.mask_gate else ""
        return f"{self.agreement}, control {self.control}, bound to the {self.bind}{gate}"


CELLS = [Cell(*one) for one in itertools.product(AGREEMENTS, CONTROLS, BINDS, (False, True))]
Settling = Mapping[Cell, Settled]


def paid(cases: Sequence[Case], reader: Reader, second: Reader | None = None, *, slices: int) -> Settling:
    """Pay the gold answers about cases, of whose scans so many slices are shown, under all conditions."""
    task, gold = ReportEvidence(cache_folder()), []
    prompts = [item for case in cases for item in task.prompts(case, Slices(slices=slices), 0)]
    for group, prompt in enumerate(prompts):
        text, _ = task.gold(prompt)
        gold.append(Rollout(prompt=prompt, group=group, text=text, answer=task.parse(prompt, text)))
    result, asked, other = {}, Asked(reader), second and Asked(second)
    matched = MatchedSlices(lambda: cases, cache_folder())
    for cell in CELLS:
        reward = CrossView(lambda: cases, cache_folder(), reader=asked, second_reader=other, **cell._asdict())
        reward.matched = matched
        settled = reward.settled(gold)
        if settled is None:
            raise SystemExit("no patient has a slice that contradicts its report: give more patients")
        result[cell] = settled
    return result


def pays_of(settling: Settling) -> dict[str, dict[Cell, Pay]]:
    """Return what each condition is paid, by options."""
    result: dict[str, dict[Cell, Pay]] = {}
    for cell, settled in settling.items():
        for name, pay in settled.pays.items():
            result.setdefault(name, {})[cell] = pay
    return result


def tables(settling: Settling) -> list[str]:
    """Return what is paid, and the outcomes of each agreement and binding, as lines."""
    lines = [
        *(f"  {name:15}{says}" for name, says in CONDITIONS.items()),
        "",
        *pay_table(settling),
        "",
        "outcomes",
    ]
    for cell, settled in settling.items():
        if cell.control == "others" and not cell.mask_gate:
            checks = settled.checks()
            lines += ["", str(cell), *(f"  {item.outcome:6}{item.check:26}{item.says}" for item in checks)]
    return lines


def pay_table(settling: Settling) -> Iterator[str]:
    """Yield the pay of all conditions under all options as lines."""
    known = pays_of(settling)
    yield from (item.says for item in settling[CELLS[0]].checks()[:2])
    for bind, agreement in itertools.product(BINDS, AGREEMENTS):
        yield ""
        yield f'agreement = "{agreement}", bind = "{bind}"; mean pay, 95 % bounds, [perfect eyes]'
        yield f"{'':15}{'pairs':>6}" + "".join(f"{control:^33}" for control in CONTROLS).rstrip()
        for name in (*CONDITIONS, FALSE):
            plain, gated = (
                [known.get(name, {}).get(Cell(agreement, control, bind, gate)) for control in CONTROLS]
                for gate in (False, True)
            )
            yield from _row(name, plain)
            if any(
                one and two and abs(one.value - two.value) > 1e-9
                for one, two in zip(plain, gated, strict=True)
            ):
                yield from _row("  mask gate", gated)


def _row(label: str, pays: Sequence[Pay | None]) -> Iterator[str]:
    pairs = next((pay.pairs for pay in pays if pay is not None), None)
    if pairs is not None:
        yield f"{label:15}{pairs:>6}{''.join(f'{_cell(pay):^33}' for pay in pays)}".rstrip()


def _cell(pay: Pay | None) -> str:
    if pay is None:
        return "-"
    bounds = "" if pay.low is None else f" ({pay.low:.3f}..{pay.high:.3f})"
    eyes = "-" if pay.eyes is None else f"{pay.eyes:.3f}"
    return f"{pay.value:.3f}{bounds} [{eyes}]"


def figures(settling: Settling) -> dict[str, Any]:
    """Return what each condition is paid under all options, and what is said of the reader."""
    pays = {
        name: {str(cell): dataclasses.asdict(pay) for cell, pay in cells.items()}
        for name, cells in pays_of(settling).items()
    }
    first = settling[CELLS[0]]
    reader = {item.check: item.says for item in first.checks()[:2]}
    return {"reader": reader, "kappa": first.kappa, "pays": pays}


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
    settling = paid(cases, reader, second, slices=24)
    lines = [
        f"phantom numbers: phantom-abdomen, seed {asked.seed}, {len(cases)} patients, "
        f"{sum(bool(case.present()) for case in cases)} with a finding; slice-reader of {asked.fitted}",
        *tables(settling),
    ]
    print("\n".join(lines))
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    if asked.keep:
        asked.keep.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        result = figures(settling)
        asked.keep.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        draw(result["pays"], asked.keep.with_suffix(".svg"))


if __name__ == "__main__":
    main()
