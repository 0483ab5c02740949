"""Does another reader see what the arms of an ablation cite, one that paid none of them?

python benchmarks/slice_reader.py --seed 1018 --channels 24 48 96          the reader, fitted once
OMP_NUM_THREADS=1 python benchmarks/second_reader.py recipes/ablations/emrl.toml --channels 24 48 96

The reader is shown the slice that each test answer of the ablation's finished cells cites. Grounded accuracy
is counted again with what it sees there in the place of the masks: findings rightly affirmed and seen, over
all that are affirmed or present; a healthy scan has 1 where nothing is affirmed and nothing cited, an answer
out of its form has 0. Beside it stands the same by the masks.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_plugin_lab.ablation.cells import AblationFolder, Cell
from evidcore_plugin_lab.ablation.contrasts import Arms, Contrast, Item
from evidcore_plugin_lab.ablation.definition import load_ablation
from evidcore_plugin_reports.agreement import affirmed
from evidcore_plugin_reports.labelers import NegationRules
from over_seeds import answers

from evidcore.api import Crop, Reader
from evidcore.cache import cache_folder
from evidcore.contracts import ImageQuestion, Totals
from evidcore.evaluate.reference_lines import cluster

QUESTION = "Which findings are seen on this slice?"
METRIC = "grounded_accuracy"
Line = Mapping[str, Any]  # what a run kept of an answer


def cited(line: Line) -> dict[str, Crop]:
    """Return the slice that an answer cites for each finding that it rightly affirms."""
    shown = {crop.box_zyx[0]: crop for uri in line["images"] if (crop := Crop.parse_uri(uri)).box_zyx}
    right = set(line["affirmed"]) & set(line["present"])
    slices = {name: line["slices"].get(name, line["slices"].get("")) for name in right}
    return {name: shown[z] for name, z in slices.items() if z in shown}


def seen(reader: Reader, crops: Sequence[Crop], findings: Sequence[str]) -> dict[Crop, frozenset[str]]:
    """Return what a reader sees on slices.

    Raises:
        SystemExit: if it gave no answer about one.
    """
    labeler = NegationRules(findings=tuple(findings))
    said = reader([ImageQuestion(crops=(crop,), text=QUESTION) for crop in crops])
    if None in said:
        raise SystemExit("the reader gave no answer about a slice")
    return {crop: frozenset(affirmed(labeler(text or ""))) for crop, text in zip(crops, said, strict=True)}


def grounded(line: Line, sees: Mapping[Crop, frozenset[str]]) -> float:
    """Return the share of an answer's findings that are right and seen."""
    of = set(line["affirmed"]) | set(line["present"])
    if line["malformed"] is not None:
        return 0.0
    if not of:
        return float(not line["slices"])
    return sum(name in sees[crop] for name, crop in cited(line).items()) / len(of)


def table(
    lines: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]], reader: Reader, reference: str
) -> str:
    """Return both measures of each arm, and its difference from the reference, over the seeds.

    Args:
        lines: of each arm and seed what was kept of its answers.
        reader: is shown what they cite.
        reference: an arm.
    """
    every = [line for cells in lines.values() for some in cells.values() for line in some]
    findings = sorted({name for line in every for name in (*line["affirmed"], *line["present"])})
    sees = seen(
        reader, list(dict.fromkeys(crop for line in every for crop in cited(line).values())), findings
    )
    measured = {
        "second reader": lambda line: grounded(line, sees),
        "masks": lambda line: float(line["figures"][METRIC]),
    }
    rows = [f"{'grounded accuracy by':20}" + "".join(f"{name:>30}" for name in measured)]
    arms = {
        name: Arms(
            {
                arm: {seed: {line["prompt_id"]: _item(line, value(line)) for line in some}
                      for seed, some in cells.items()}
                for arm, cells in lines.items()
            },
            patients_shared=False,
        )
        for name, value in measured.items()
    }  # fmt: skip
    for arm in lines:
        rows.append(
            f"{arm:20}" + "".join(f"{_written(one.contrast({arm: 1.0})):>30}" for one in arms.values())
        )
    for arm in lines:
        if arm != reference:
            weights = {arm: 1.0, reference: -1.0}
            cells = "".join(f"{_written(one.contrast(weights), '+'):>30}" for one in arms.values())
            rows.append(f"{arm + ' minus ' + reference:20}{cells}")
    return "\n".join(rows)


def _item(line: Line, value: float) -> Item:
    return Item(cluster(line["patient"], line["case_id"]), Totals("ratio", (value, 1.0)))


def _written(found: Contrast, sign: str = "") -> str:
    if found.value is None:
        return found.note
    if found.low is None or found.high is None:
        return f"{found.value:{sign}.3f}"
    return f"{found.value:{sign}.3f} ({found.low:.3f} to {found.high:.3f})"


def _lines(cell: Cell, stage: str, name: str) -> list[dict[str, Any]]:
    assert cell.run is not None  # it is finished
    return answers(cell.run.path, stage, name)


def main() -> None:
    """Ask, print, and keep where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ablation", type=Path, help="of recipes/emrl.toml")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where its runs lie")
    parser.add_argument("--reader", type=Path, default=Path("runs/slice-reader/1018"))
    parser.add_argument("--channels", type=int, nargs="+", default=[32, 64, 96, 128])
    parser.add_argument("--keep", type=Path, help="a file to be")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ablation = load_ablation(asked.ablation)
    place = next(item for item in ablation.metrics if item.metric == METRIC)
    lines: dict[str, dict[int, list[dict[str, Any]]]] = {arm.name: {} for arm in ablation.arms}
    for cell in AblationFolder(ablation, asked.out).cells():
        if cell.state == "finished":
            lines[cell.arm][cell.seed] = _lines(cell, place.stage, place.name)
    reader = SliceReader(
        cache_folder(), channels=tuple(asked.channels), pretrained=str(asked.reader.resolve())
    )
    text = f"phantom numbers, {ablation.name}\n\n{table(lines, reader, ablation.reference)}\n"
    print(text)
    if asked.keep:
        asked.keep.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
