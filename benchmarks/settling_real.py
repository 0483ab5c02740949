"""Does a slice that contradicts the report still pay over real CT? The settling test with planted lesions.

EVID_SHARED_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/settling_real.py

`implant` plants lesions into each scan of FOLDER/ibsi_validation, in several copies with others each. A
reader is fitted on one half of the patients and pays the gold answers of the other half, and the other way
round. The halves have 8 patients each: under 20 there are means and no bounds. Numbers are of phantom
lesions in real CT.

--keep docs/results/settling_real also writes the tables and all figures there: .txt, .json.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from evidcore_plugin_emrl.reader_fit import ReaderFit
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_plugin_phantoms.implant.dataset import Implant
from evidcore_plugin_phantoms.implant.planting import KindName
from real_scans import real_scans
from settling import figures, paid, tables
from slice_reader import log

from evidcore.cache import cache_folder
from evidcore.contracts import FitData

KINDS: tuple[KindName, ...] = ("hypodense lesion", "fluid collection", "stone")
SIZE_YX = (128, 128)
SLICES = 70  # no scan has more: all are shown


def main() -> None:
    """Plant; fit and pay by halves; print, and keep where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scans", type=int, default=16)
    parser.add_argument("--copies", type=int, default=25)
    parser.add_argument("--steps", type=int, default=ReaderFit().steps)
    parser.add_argument("--keep", type=Path, help="files to be, without their suffix")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    lines, kept = [], {}
    with tempfile.TemporaryDirectory() as folder:
        source = real_scans(Path(folder), cache_folder(), asked.scans)
        planted = Implant(cache_folder(), source=source, kinds=KINDS, copies=asked.copies, seed=1)
        cases = list(planted.cases("test"))
        patients = list(dict.fromkeys(case.patient for case in cases))
        for half in (0, 1):
            theirs = set(patients[half::2])
            test = [case for case in cases if case.patient in theirs]
            train = [case for case in cases if case.patient not in theirs]
            reader = SliceReader(size_yx=SIZE_YX)
            place = Path(folder) / f"half-{half}"
            reader.fit(
                FitData(train, test[:: asked.copies], place, 17, log), options=ReaderFit(steps=asked.steps)
            )
            settling = paid(test, reader, slices=SLICES)
            lines += [
                f"phantom lesions in real CT: {len(theirs)} patients, {asked.copies} copies with other "
                f"lesions each; the reader was fitted on {len(patients) - len(theirs)} others",
                *tables(settling),
                "",
            ]
            kept[f"half {half + 1}"] = figures(settling)
    print("\n".join(lines))
    print(f"{(time.perf_counter() - start) / 60:.1f} minutes")
    if asked.keep:
        asked.keep.with_suffix(".txt").write_text("\n".join(lines), encoding="utf-8")
        asked.keep.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
