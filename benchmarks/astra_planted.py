"""What does Astra's published encoder, frozen, tell of nodules planted into real chest CT? In two patients.

make astra, then
EVID_SHARED_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/astra_planted.py      10 minutes, AVX-512 BF16

FOLDER holds one whole chest and one scan of a trunk with some lung at its top. `implant` plants a lung nodule
into 60 copies of the first and 20 of the second; the control of each is the same place of the same scan with
exchanged noise alone (contrast 0). A logistic regression (C = 1 on standardised features, as stage
`linear-probe` has it) reads the patch in which the nodule's centre lies. It is asked about places that it was
not fitted on: the other lung, then the other patient. Beside it stand seven statistics of HU of that patch,
read alike. Planted ellipsoids are no patients' nodules. These settings were fixed before the first run.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from astra import FOLDER
from evidcore_plugin_encoders.i3resnet import I3ResNet
from evidcore_plugin_phantoms.implant.dataset import Implant
from real_scans import data_set
from sklearn.metrics import roc_auc_score

from evidcore.api import Case, read
from evidcore.builtin.views import Volume
from evidcore.data import read_geometry
from evidcore.evaluate.reference_lines import logistic
from evidcore.model.bank import FeatureBank

SCANS = {"chest": "chest_imaging_platform/ct-64.nrrd", "trunk": "totalsegmentator/example_ct.nii.gz"}
COPIES = {"chest": 60, "trunk": 20}
SIZE_ZYX = (80, 112, 112)
LAYERS = (2, 3, "2+3")
HU = "seven statistics of HU"
PERCENTILES = (0, 10, 50, 90, 100)
Place = tuple[int, ...]


def planted(folder: Path, name: str, contrast: float) -> dict[str, Case]:
    """Return copies of a scan with a nodule each, by their number; `contrast` 0 is noise alone."""
    (folder / name).mkdir(exist_ok=True)
    scan = Path(os.environ["EVID_SHARED_DATA"], SCANS[name]).resolve()
    source = data_set(folder / name, folder / "cache", {name: scan})
    made = Implant(
        folder / "cache", source=source, kinds=("lung nodule",), prevalence=1.0, contrast=contrast,
        copies=COPIES[name], no_place="leave-out", seed=1,
    )  # fmt: skip
    return {case.id: case for case in made.cases("test")}


def patch(grid_zyx: Place, case: Case) -> tuple[Place, float]:
    """Return where on a grid the nodule's centre lies, and at which share of the scan's width."""
    (lesion,) = case.notes["implant"]["lesions"]
    sizes = read_geometry(case.volumes[0]).shape_zyx
    shares = [(c + 0.5) / n for c, n in zip(lesion["centre_zyx"], sizes, strict=True)]
    return tuple(min(n - 1, int(share * n)) for share, n in zip(shares, grid_zyx, strict=True)), shares[2]


def encoded(encoder: I3ResNet, case: Case, bank: FeatureBank) -> torch.Tensor:
    """Return features, `z y x feature`."""
    view = Volume()
    [part] = view.render(case)
    handle = bank.handle(part.crop, view.size_zyx(part, encoder.input))
    ((_, patches),) = bank.patches([handle], encoder)
    return patches.features[0].detach().float().reshape(*patches.grid_zyx, -1)


def statistics_of_hu(case: Case, grid_zyx: Place, at: Place) -> np.ndarray:
    """Return mean, spread and percentiles of the voxels of a patch."""
    array = read(case.volumes[0]).array
    ends = [[round(n * k / g) for k in (p, p + 1)] for n, g, p in zip(array.shape, grid_zyx, at, strict=True)]
    voxels = array[tuple(slice(*pair) for pair in ends)]
    return np.array([voxels.mean(), voxels.std(), *np.percentile(voxels, PERCENTILES)])


def auc(fit: list, ask: list) -> float:
    """Fit on pairs of a patch with and without a nodule; return the AUC over others."""
    tables = [np.array([*(pair[0] for pair in some), *(pair[1] for pair in some)]) for some in (fit, ask)]
    labels = [np.repeat([1, 0], len(some)) for some in (fit, ask)]
    model = logistic(tables[0], labels[0], strength=1.0)
    return float(roc_auc_score(labels[1], model.decision_function(tables[1])))


def main() -> None:
    """Plant, encode, read and print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        cases = {(name, c): planted(folder, name, c) for name in SCANS for c in (1.0, 0.0)}
        lesions = [
            lesion for case in cases["chest", 1.0].values() for lesion in case.notes["implant"]["lesions"]
        ]
        low, middle, high = np.percentile([lesion["size_mm"] for lesion in lesions], [0, 50, 100])
        count = len(cases["trunk", 1.0])
        print(
            f"chest: {len(lesions)} nodules of {low:.0f} to {high:.0f} mm, median {middle:.0f}; trunk {count}"
        )
        for layer in LAYERS:
            encoder = I3ResNet(size_zyx=SIZE_ZYX, layer=layer, precision="bfloat16", pretrained=str(FOLDER))
            encoder.load_pretrained()
            bank = FeatureBank(encoder.requires_grad_(False).eval().input)
            pairs: dict[tuple[object, str], list] = {}
            for name in SCANS:
                for id_, case in cases[name, 1.0].items():
                    control, found = cases[name, 0.0][id_], encoded(encoder, case, bank)
                    grid = tuple(found.shape[:3])
                    at, share = patch(grid, case)
                    side = name if name == "trunk" else "left" if share > 0.5 else "right"
                    pair = (found[at].numpy(), encoded(encoder, control, bank)[at].numpy())
                    pairs.setdefault((layer, side), []).append(pair)
                    numbers = [statistics_of_hu(one, grid, at) for one in (case, control)]
                    pairs.setdefault((f"{HU}, a patch of layer {layer}", side), []).append(numbers)
            for what in dict.fromkeys(what for what, _ in pairs):
                right, left, trunk = (pairs[what, side] for side in ("right", "left", "trunk"))
                asks = {"right to left lung": (right, left), "left to right lung": (left, right)}
                asks["chest to trunk"] = (right + left, trunk)
                read_ = [f"{ask} ({len(a)}, {len(b)}) {auc(a, b):.3f}" for ask, (a, b) in asks.items()]
                print(f"{f'layer {layer}' if what == layer else what}: {'; '.join(read_)}", flush=True)


if __name__ == "__main__":
    main()
