"""Cases with bright and dark discs in noise, whose masks are findings, and who answers about them."""

import numpy as np
from evidcore_testing.data import save_nifti

from evidcore.api import Case, Finding, Labeler, MaskRef, Report, Span, VolumeRef
from evidcore.contracts import LabelError

SHAPE = (6, 32, 48)  # z, y, x
CYST = {1: (slice(4, 8), slice(4, 8)), 2: (slice(4, 10), slice(4, 10))}  # 16 and 36 pixels, by slice
STONE = {2: (slice(20, 23), slice(20, 23)), 3: (slice(20, 26), slice(20, 26))}  # 9 and 36
HU = {"cyst": 0.0, "stone": 90.0}  # in tissue of 50


def disc_case(folder, number, present=None, *, where=None, kinds=HU, tag_hu=None):
    """Each finding with probability one half, a disc on two slices; or `where`: name -> region by slice.

    `tag_hu` is burnt into a corner of every slice.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    hu, masks = np.full(SHAPE, 50.0), {}
    wanted = [name for name in kinds if rng.random() < 0.5] if present is None else present
    for name in wanted:
        mask = np.zeros(SHAPE, bool)
        if where is not None:
            for z, (rows, columns) in where[name].items():
                mask[z, rows, columns] = True
        else:
            z0, y0, x0 = rng.integers(0, SHAPE[0] - 1), rng.integers(6, 26), rng.integers(6, 42)
            y, x = np.ogrid[: SHAPE[1], : SHAPE[2]]
            mask[z0 : z0 + 2] = (y - y0) ** 2 + (x - x0) ** 2 <= 16
            for other in masks.values():
                mask &= ~other
        masks[name] = mask
        hu[mask] = kinds[name]
    hu += rng.normal(0, 8, SHAPE)
    if tag_hu is not None:
        hu[:, 0, 0] = tag_hu
    path = save_nifti(folder / f"{number}.nii", hu.round().astype(np.int16), (5.0, 2.0, 2.0))
    np.savez(folder / f"{number}.npz", **masks)
    findings = tuple(Finding(name=name, state="present" if name in masks else "absent") for name in kinds)
    sentences = [f"There is a {name}." if name in masks else f"No {name} is seen." for name in kinds]
    text, spans = "", []
    for sentence, finding in zip(sentences, findings, strict=True):
        label = "abnormal" if finding.state == "present" else "normal"
        spans.append(Span(start=len(text), end=len(text) + len(sentence), label=label))
        text += f"{sentence} "
    return Case(
        id=f"case-{number}", patient=f"patient-{number}", volumes=(VolumeRef(path=str(path)),),
        report=Report(text=text, spans=tuple(spans)), findings=findings,
        masks={name: MaskRef(path=str(folder / f"{number}.npz"), key=name) for name in masks},
    )  # fmt: skip


class Unreading(Labeler):
    """Reads nothing."""

    def __call__(self, text):
        raise LabelError("timed out")
