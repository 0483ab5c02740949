"""How well does a slice reader read, that was fitted on patients of its own?

OMP_NUM_THREADS=1 python benchmarks/slice_reader.py            about 12 minutes on a CPU core
python benchmarks/slice_reader.py --seed 1018 --channels 24 48 96
python benchmarks/slice_reader.py --seed 2017 --patients 60 --fitted runs/slice-reader/1017   on others

Draws phantom-abdomen, fits a reader on its training patients, and measures on test patients, which neither
weights nor thresholds have seen: the AUC over slices, the share of lesions that are named on the slice that
shows most of them, and the share of lesion-free slices on which nothing is named, by finding.
Two planted readers are measured beside it: one names everything, one goes by the height of the slice alone.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidcore_plugin_emrl.cross_view import QUESTION
from evidcore_plugin_emrl.reader_fit import ReaderFit, validated
from evidcore_plugin_emrl.reading_figures import is_known, reading_figures, shortfalls, shown
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_plugin_reports.agreement import affirmed
from evidcore_plugin_reports.labelers import NegationRules

from evidcore.api import Case, Crop, Labeler, Reader, read, read_mask
from evidcore.cache import cache_folder
from evidcore.contracts import FitData, ImageQuestion


class Everything(Reader):
    """Name every finding on every slice."""

    deterministic = True

    def __init__(self, findings: Sequence[str]) -> None:
        self.text = " ".join(f"There is a {name}." for name in findings)

    def __call__(self, questions: Sequence[ImageQuestion]) -> list[str | None]:
        """Look at nothing."""
        return [self.text for _ in questions]


class ByHeight(Reader):
    """Name the finding that training patients have most often at the height of the slice."""

    deterministic = True

    def __init__(self, cases: Sequence[Case], findings: Sequence[str]) -> None:
        self.counts: dict[int, Counter[str]] = {}
        for case in cases:
            volume = read(case.volumes[0])
            for name in findings:
                if name in case.masks:
                    shows = read_mask(case.masks[name], like=volume).any(axis=(1, 2))
                    for z in shows.nonzero()[0].tolist():
                        self.counts.setdefault(z, Counter())[name] += 1

    def __call__(self, questions: Sequence[ImageQuestion]) -> list[str | None]:
        """Read the index of the slice, and no pixel."""
        return [self.said(question) for question in questions]

    def said(self, question: ImageQuestion) -> str:
        """Answer one question."""
        box = question.crops[0].box_zyx
        common = self.counts.get(box[0] if box else 0, Counter()).most_common(1)
        return f"There is a {common[0][0]}." if common else "No finding is seen."


def table(figures: dict[str, Any]) -> list[str]:
    """Return figures as lines."""
    lines = [f"{'':22}{'AUC':>8}{'lesions named':>16}{'left alone':>12}{'lesions':>9}"]
    rows = {**figures["by_finding"], "all": figures}
    for name, row in rows.items():
        auc, named, alone = (
            "-" if row[key] is None else f"{row[key]:.3f}" for key in ("auc", "sensitivity", "specificity")
        )
        lines.append(f"{name:22}{auc:>8}{named:>16}{alone:>12}{row['lesions']:>9}")
    missed = shortfalls(figures)
    return [
        *lines,
        *(f"  misses: {line}" for line in missed),
        *(["  reaches all three lines"] * (not missed)),
    ]


def main() -> None:
    """Fit, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1017, help="of the population and of the fit")
    parser.add_argument("--patients", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=ReaderFit().steps)
    parser.add_argument("--channels", type=int, nargs="+", default=[32, 64, 96, 128])
    parser.add_argument("--folder", type=Path, default=Path("runs/slice-reader"))
    parser.add_argument("--fitted", type=Path, help="a folder that a fit wrote: nothing is fitted")
    parser.add_argument("--keep", type=Path, help="a file to be")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    dataset = PhantomAbdomen(
        cache_folder(),
        train_cases=asked.patients,
        validation_cases=300,
        test_cases=300,
        seed=asked.seed,
        size_zyx=(24, 96, 128),
        scan_shift_mm=60.0,
    )
    train, validation, test = (list(dataset.cases(split)) for split in ("train", "validation", "test"))
    reader = SliceReader(channels=tuple(asked.channels))
    wall, cpu = time.perf_counter(), time.process_time()
    folder = asked.fitted or asked.folder / str(asked.seed)
    if asked.fitted:
        reader.load(folder)
        spent = "fitted before"
    else:
        folder.mkdir(parents=True, exist_ok=True)
        reader.fit(FitData(train, validation, folder, asked.seed, log), options=ReaderFit(steps=asked.steps))
        spent = (
            f"{(time.perf_counter() - wall) / 60:.1f} minutes, {(time.process_time() - cpu) / 60:.1f} of CPU"
        )
    fit = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    labeler = NegationRules(findings=reader.findings)
    result = {
        f"slice-reader, {split} split": validated(reader, cases)["validation"]
        for split, cases in (("validation", validation), ("test", test))
    }
    result |= {
        "planted: everything": _measured(Everything(reader.findings), test, reader.findings, labeler),
        "planted: by height": _measured(ByHeight(train, reader.findings), test, reader.findings, labeler),
    }
    lines = [
        f"phantom numbers: {fit['cases']} patients, {fit['slices']} slices, {fit['steps']} steps, {spent};"
        f" named on blank slices {fit['named_on_blank']:.3f}, on noise {fit['named_on_noise']:.3f}"
    ]
    for name, figures in result.items():
        lines += ["", f"{name}: {figures['volumes']} patients", *table(figures)]
    print("\n".join(lines))
    if asked.keep:
        asked.keep.write_text("\n".join(lines) + "\n", encoding="utf-8")


def log(figures: Any) -> None:
    """Print a step in a hundred."""
    if figures["step"] % 100 == 0:
        print({name: round(value, 4) for name, value in figures.items()}, flush=True)


def _measured(
    reader: Reader, cases: Sequence[Case], findings: Sequence[str], labeler: Labeler
) -> dict[str, Any]:
    """Ask a reader about every slice of cases, and measure what its answers name.

    The AUC is that of a name given or not: a reader without scores has one point of the curve.
    """
    volumes, named = [], []
    for case in cases:
        if not is_known(case, findings):
            continue
        volumes.append(shown(case, findings))
        depth, height, width = read(case.volumes[0]).shape_zyx
        crops = [Crop(volume=case.volumes[0], box_zyx=(z, z + 1, 0, height, 0, width)) for z in range(depth)]
        answers = reader([ImageQuestion(crops=(crop,), text=QUESTION) for crop in crops])
        words = [affirmed(labeler(answer or "")) for answer in answers]
        named.append(np.array([[name in some for name in findings] for some in words]))
    scores = [some.astype(np.float64) for some in named]
    return reading_figures(volumes, scores, named, findings)


if __name__ == "__main__":
    main()
