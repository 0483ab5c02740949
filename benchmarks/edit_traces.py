"""How well an edit is told from untouched tissue: covers and replacements in real CT, where nothing is asked.

EVID_SHARED_DATA=FOLDER python benchmarks/edit_traces.py [--places 8]        1 core, about 3 minutes

`occluded` and `replaced` remove what is asked from a scan. A policy that notices the edit itself need not see
what was there. Here ellipsoids of 10 to 24 mm in soft tissue of the 16 scans of FOLDER/ibsi_validation are
edited, away from the tumour. A detector, made for this and told where to look, knows texture, noise and seam
inside and around each: gradient-boosted trees, trained on other patients. Its AUC between edited and
untouched places is 0.5 for an edit without a trace, and is no bound: another detector may find more.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from evidcore_plugin_audit.occlusion import BLEND_MM, beside, elsewhere, without
from scipy import ndimage, stats
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from evidcore.api import MaskRef, VolumeRef, read, read_mask
from evidcore.data import Array, Mask, Volume

TISSUE_HU = (-120.0, 200.0)
RADIUS_MM = (5.0, 12.0)
SHELL_MM = 6.0
WAYS = ("occluded", "replaced")


def ellipsoid(volume: Volume, centre: Array, radii_mm: Array) -> Mask:
    """Return the voxels within an ellipsoid."""
    axes = np.ogrid[tuple(map(slice, volume.shape_zyx))]
    steps = zip(axes, centre, volume.spacing_mm_zyx, radii_mm, strict=True)
    return sum(((axis - middle) * step / radius) ** 2 for axis, middle, step, radius in steps) <= 1


def places(volume: Volume, tumour: Mask, count: int, rng: np.random.Generator) -> list[Mask]:
    """Draw ellipsoids in soft tissue, free of the tumour and of each other."""
    low, high = TISSUE_HU
    smooth = ndimage.gaussian_filter(volume.array.astype(np.float32), [3 / s for s in volume.spacing_mm_zyx])
    taken, found = ndimage.binary_dilation(tumour, iterations=3), []
    candidates = np.argwhere((smooth > low) & (smooth < high) & ~taken)
    for _ in range(60 * count):
        region = ellipsoid(volume, candidates[rng.integers(len(candidates))], rng.uniform(*RADIUS_MM, 3))
        inside = smooth[region]
        is_tissue = region.sum() > 60 and inside.min() > low and inside.max() < high
        if len(found) < count and is_tissue and not (region & taken).any():
            found.append(region)
            taken |= ndimage.binary_dilation(region, iterations=4)
    return found


def described(array: Array, region: Mask, spacing_mm_zyx: tuple[float, ...]) -> list[float]:
    """Return texture, noise and seam of a region beside those of its shell."""
    (box,) = ndimage.find_objects(region.astype(np.uint8))
    wide = tuple(slice(max(0, part.start - 6), part.stop + 6) for part in box)
    values, inside = array[wide].astype(np.float32), region[wide]
    away = ndimage.distance_transform_edt(~inside, sampling=spacing_mm_zyx)
    shell = ~inside & (away <= SHELL_MM)
    fine = values - ndimage.gaussian_filter(values, 1.0)
    result = [
        values[inside].mean() - values[shell].mean(),
        np.log((values[inside].std() + 1) / (values[shell].std() + 1)),
        np.log((fine[inside].std() + 1) / (fine[shell].std() + 1)),
        stats.kurtosis(fine[inside]) - stats.kurtosis(fine[shell]),
        np.log((np.abs(ndimage.laplace(values))[inside].mean() + 1) / (np.abs(fine)[shell].mean() + 1)),
    ]
    for axis in range(3):
        step = np.abs(np.diff(values, axis=axis))
        first, second = (np.take(inside, range(*ends), axis=axis) for ends in _pairs(inside.shape[axis]))
        low, high = (np.take(fine, range(*ends), axis=axis) for ends in _pairs(inside.shape[axis]))
        within, around, seam = first & second, ~first & ~second, first ^ second
        result += [
            np.log((step[seam].mean() + 1) / (step[around].mean() + 1)),
            float(
                np.corrcoef(low[within], high[within])[0, 1] - np.corrcoef(low[around], high[around])[0, 1]
            ),
        ]
    return [float(np.nan_to_num(item)) for item in result]


def _pairs(length: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (0, length - 1), (1, length)


def main() -> None:
    """Print each way's AUC."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--places", type=int, default=8, help="of each scan")
    asked = parser.parse_args()
    shared, rng = Path(os.environ["EVID_SHARED_DATA"]), np.random.default_rng(17)
    rows: dict[str, list[list[float]]] = {name: [] for name in ("untouched", *WAYS)}
    patients: list[int] = []
    for number, path in enumerate(sorted(shared.glob("ibsi_validation/*/CT_image.nii.gz"))):
        volume = read(VolumeRef(path=str(path)))
        tumour = read_mask(MaskRef(path=str(path.with_name("CT_mask.nii.gz"))), like=volume)
        for region in places(volume, tumour, asked.places, rng):
            source = elsewhere(volume, beside(volume, region) <= BLEND_MM, rng, "replaced")
            if source is None:
                continue
            edited: dict[str, Any] = {"untouched": volume.array}
            edited["occluded"] = without(volume, region, None, rng)
            edited["replaced"] = without(volume, region, source, rng)
            for name, array in edited.items():
                rows[name].append(described(array, region, volume.spacing_mm_zyx))
            patients.append(number)
    print(f"{len(set(patients))} real CTs, {len(patients)} places; AUC of a detector trained on others")
    for way in WAYS:
        features = np.array([*rows["untouched"], *rows[way]])
        labels = np.repeat([0, 1], len(patients))
        model = HistGradientBoostingClassifier(max_iter=80, max_depth=3, random_state=0)
        split = GroupKFold(n_splits=8)
        said = cross_val_predict(
            model, features, labels, groups=[*patients] * 2, cv=split, method="predict_proba"
        )[:, 1]
        print(f"{way:10s} {roc_auc_score(labels, said):.3f}")


if __name__ == "__main__":
    main()
